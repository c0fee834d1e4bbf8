"""Examples that `--help` of each command ends with: a command line, and what it is for."""

from __future__ import annotations

EXAMPLES = {
    "ftslurm run": (
        ("ftslurm run --local-nodes 2 --nproc-per-node 2 train.py", "try it here: two agents, four ranks"),
        ("ftsrun --nproc-per-node gpu --max-restarts 5 train.py --epochs 3", "in a batch script, on all its nodes"),
        ("ftsrun --nnodes 4 --hang-timeout 20m -m lm.train", "four of five nodes, one is a spare; a module"),
    ),
    "ftslurm report": (
        ("ftslurm report 4711", "why job 4711 failed; without a job the newest run here"),
        ("ftslurm report 4711 --round 2 --rank 3", "all facts about rank 3 in round 2"),
        ("ftslurm report 4711 -o report.html", "one page for a browser or an issue"),
        ("ftslurm report --logs slurm-4711.out", "a job that ftslurm did not run, of any launcher"),
        ("ftslurm report --job 4711", "the same: finds the job's output by Slurm"),
    ),
    "ftslurm status": (
        ("ftslurm status 4711", "round, nodes, steps and time left of job 4711"),
        ("ftslurm status --watch 10s", "the newest run here, again every 10 s until it ends"),
        ("ftslurm status --json | jq .steps.last", "for programs"),
    ),
    "ftslurm chain": (
        ("ftslurm chain 5 job.sbatch", "five jobs in sequence that go on with one run"),
        ("ftslurm chain --run-id lm7 5 --time=12:00:00 job.sbatch", "with a name, and options for sbatch"),
    ),
    "ftslurm rehearse": (
        ("ftslurm rehearse preempt --at-step 120 -- train.py --checkpoint-dir /tmp/rehearsal", "SIGTERM at step 120"),
        ("ftslurm rehearse timeout --grace 300 --nproc-per-node 2 -- train.py", "five minutes to save; four ranks"),
        ("ftslurm rehearse node-loss --local-nodes 3 --nnodes 2 -- -m lm.train", "with a spare; a module"),
    ),
    "ftslurm list": (
        ("ftslurm list", "the newest runs in ./ftslurm-runs (or $FTSLURM_SHARED_DIR)"),
        ("ftslurm list --all /scratch/lm", "all runs in /scratch/lm, or in its ftslurm-runs"),
        ("ftslurm list --json | jq -r '.runs[] | select(.state == \"failed\").run'", "for programs"),
    ),
    "ftslurm history": (
        ("ftslurm history --since 30d", "the runs of 30 days, their effective training time"),
        ("ftslurm history --failed --since 7d", "failures by cause and by node, and what they cost"),
        ("ftslurm history --since 90d -o history.html", "one page"),
        ("ftslurm history --events 4711", "what happened to job 4711's run: rounds, failures, decisions"),
    ),
    "ftslurm stacks": (
        ("ftslurm stacks 4711", "where all ranks of job 4711 are now, and in which collective; it goes on"),
        ("ftslurm stacks --full", "the newest run here, with the frames inside of libraries"),
    ),
    "ftslurm stop": (
        ("ftslurm stop 4711 --wait 600", "all ranks save and leave at a common step; wait for that"),
        ("ftslurm stop --reason 'maintenance at noon'", "the newest run here"),
    ),
    "ftslurm restart": (
        ("ftslurm restart 4711", "submit the script of job 4711 again; the run goes on with its next round"),
        ("ftslurm restart 4711 --exclude n17", "without node n17"),
    ),
    "ftslurm clean": (
        ("ftslurm clean", "what runs occupy that ended and did not change for 30 days"),
        ("ftslurm clean --older-than 7d --yes", "remove those of 7 days"),
    ),
    "ftslurm logs": (
        ("ftslurm logs 4711 --rank 3", "where the output of rank 3 is, and its last lines"),
        ("ftslurm logs 4711 --rank 0 --stderr -f", "follow its stderr over all rounds"),
        ("ftslurm logs --node n7 --round 2", "all ranks of node n7 in round 2"),
    ),
    "ftslurm health": (
        ("ftslurm health", "check this node"),
        ("srun --ntasks-per-node=1 ftslurm health", "check all nodes of a job, one table"),
        ("ftslurm health gpu-ecc disk-space --json", "two checks, as JSON"),
    ),
    "ftslurm nodes": (
        ("ftslurm nodes list", "excluded nodes, why, until when"),
        ("ftslurm nodes exclude n17 --reason 'slow NIC' --for 7d", "avoid n17 for a week"),
        ('sbatch --exclude="$(ftslurm nodes list --hostlist)" job.sbatch', "keep excluded nodes out of a job"),
    ),
    "ftslurm doctor": (
        ("ftslurm doctor /scratch/lm", "test the directory from this node"),
        ("srun -N4 --ntasks-per-node=1 ftslurm doctor /scratch/lm", "from four nodes at once"),
        ("ftslurm doctor --nodes 1024 --nproc-per-node 8", "also the load of a run of that size"),
    ),
    "ftslurm completion": (
        ('eval "$(ftslurm completion bash)"', "in ~/.bashrc"),
        ('eval "$(ftslurm completion zsh)"', "in ~/.zshrc, after compinit"),
        ("ftslurm completion fish > ~/.config/fish/completions/ftslurm.fish", "once"),
    ),
}


def examples_of(prog: str) -> str:
    """Return the examples of a command as the end of its help; empty without any."""
    rows = EXAMPLES.get(prog)
    if not rows:
        return ""
    return "\nexamples:\n" + "".join(f"  {line}\n      {purpose}\n" for line, purpose in rows)
