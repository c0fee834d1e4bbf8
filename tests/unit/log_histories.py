"""Logs of jobs of many launchers, with known truth: kinds of failures in wrappings and noise, chosen at random.

The formats are those that the launchers print; each is written here from their sources and from real outputs.
"""

# ruff: noqa: E501 - logs are as wide as they are.

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.log_failures import MAIN, SITE, USER, Failure, failures, more_failures, of_user, traceback
from tests.unit.log_noise import NOISE, NOISE_AT_END, OF_TORCHRUN

GLOO = traceback(
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:23961",
    MAIN,
    (f"{SITE}/torch/distributed/distributed_c10d.py", 2810, "all_reduce", "work.wait()"),
)
NCCL = traceback(
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, remote "
    "process exited or there was a network error, NCCL version 2.20.5\nncclRemoteError: A call failed possibly due to a "
    "network error or a remote process exiting prematurely.\nLast error:\nNET/IB : Got completion from peer 10.0.0.7<43210> "
    "with status=12 opcode=129 len=0",
    MAIN,
    (f"{SITE}/torch/distributed/distributed_c10d.py", 2810, "all_reduce", "work.wait()"),
)
CAUGHT = of_user("ConnectionResetError: [Errno 104] Connection reset by peer", "hub.py", 31, "get", "s.recv(n)")
UNLABELLED = ("srun", "torchrun_two_nodes", "lightning")
WITHOUT_ENDS = ("pods", "azure")
"""Launchers whose files do not state how a process ended."""
REWRITTEN = ("loguru", "rich", "hydra", "caught, then exit", "child")
SIGNALS = {-11: "Segmentation fault (core dumped)", -6: "Aborted (core dumped)", -9: "Killed"}
NAMES = {-11: "SIGSEGV", -6: "SIGABRT", -9: "SIGKILL"}


def _mpirun_end(failure: Failure, victim: int, process: str, pid: int, node: str) -> str:
    """Return mpirun's lines on the first process that ended, whose name there is ``process``."""
    if failure.code < 0:
        shown = SIGNALS[failure.code].partition(" (")[0]
        return (
            f"mpirun noticed that process rank {victim} with PID {pid} on node {node} exited on signal"
            f" {-failure.code} ({shown}).\n"
        )
    line = "-" * 60 + "\n"
    return (
        f"{line}mpirun detected that one or more processes exited with non-zero status, thus causing\n"
        f"the job to be terminated. The first process to do so was:\n\n  Process name: {process}\n"
        f"  Exit code:    {failure.code}\n{line}"
    )


@dataclass
class Log:
    """A log and its truth: ``rank``: of the first failure; None: the log cannot show it."""

    name: str
    files: dict[str, str]
    rank: int | None = None
    node: str | None = None
    failure: Failure | None = None
    status: str = "failed"
    says: tuple[str, ...] = ()
    victim: int | None = None
    coding: str = "plain"
    history: list[str] = field(default_factory=list)
    alike: bool = False

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = text.encode()
            if self.coding == "utf-16":
                data = text.encode("utf-16")
            elif self.coding == "crlf":
                data = text.replace("\n", "\r\n").encode()
            elif self.coding == "binary":
                data = b"\xff\xfe\x00\x01"[2:] * 40 + b"\x80\x9f\n" + data
            if self.coding == "gzip":
                path = path.with_name(path.name + ".gz")
                data = gzip.compress(data)
            path.write_bytes(data)
        return folder if len(self.files) > 1 else path


class Writer:
    """Writes logs of jobs with four ranks on two nodes."""

    world, per_node = 4, 2

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.job = rng.randrange(10**5, 10**6)
        self.victim = rng.randrange(self.world)
        self.form = rng.choice(
            [
                "rank {r} step {s} loss {x:.3f}",
                "[2026-11-21 10:0{m}:11] iteration {s}/ 5000 | loss: {x:.4E} | grad norm: 1.{s} |",
                "step={s} loss={x:.2f} rank={r}",
                "INFO:train:epoch 1 batch {s} loss {x:.3f}",
                "Epoch 1:  {m}0%|###   | {s}/5000 [00:0{m}<01:00, 31.2it/s, loss={x:.3f}]",
            ]
        )
        self.end = "\r" if self.form.startswith("Epoch") else "\n"

    def node(self, rank: int) -> str:
        return f"gpu{11 + rank // self.per_node}"

    def step(self, rank: int, step: int) -> str:
        return self.form.format(r=rank, s=step, x=9.0 / (step + 1), m=step % 6) + self.end

    def steps(self, number: int, label: Callable[[int], str] = lambda rank: "", first: int = 0) -> str:
        return "".join(
            label(rank) + self.step(rank, s) for s in range(first, first + number) for rank in range(self.world)
        )

    def labelled(self, text: str, label: str) -> str:
        return "".join(label + line for line in text.splitlines(True))

    def cascades(self, label: Callable[[int], str] = lambda rank: "") -> str:
        if self.rng.random() < 0.4:
            return ""
        text = self.rng.choice([GLOO, NCCL])
        others = [rank for rank in range(self.world) if rank != self.victim]
        return "".join(self.labelled(text, label(rank)) for rank in others[: self.rng.randrange(1, 4)])

    def head(self) -> str:
        parts = [
            f"Job {self.job} on gpu[11-12] at Sat Nov 21 10:00:00 UTC 2026\n",
            "Loading cuda/12.4\n  Loading requirement: gcc/12.2\n",
            "\x1b[32mINFO\x1b[0m starting\n",
            f"{SITE}/torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated.\n  import pynvml\n",
            "gpu11:4242:4242 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>\n",
            "/var/spool/slurmd/job1/slurm_script: line 4: module: command not found\n",
            "Lmod has detected the following error: The following module(s) are unknown: \"cuda/99\"\n",
        ]  # fmt: skip
        parts += [each.replace("{rank}", "0") for each in self.rng.sample(NOISE, 3)]
        return "".join(self.rng.sample(parts, self.rng.randrange(0, 6)))

    def before(self, failure: Failure, label: Callable[[int], str] = lambda rank: "") -> str:
        text = ""
        if self.rng.random() < 0.3:
            text += self.steps(3, label) + self.labelled(CAUGHT, label(0)) + self.steps(12, label, 3)
        if self.rng.random() < 0.3:
            rank = self.rng.randrange(self.world)
            text += self.labelled(self.rng.choice(NOISE).replace("{rank}", str(rank)), label(rank))
        return text + ("" if failure.early else self.steps(self.rng.randrange(2, 30), label, 20))

    def step_end(self, code: int, *, named: bool = False) -> str:
        """Return what srun prints when a task ends, and perhaps ends the others; ``named``: these printed their ranks."""
        node, task = self.node(self.victim), self.victim
        how = f"Exited with exit code {code}" if code > 0 else SIGNALS[code]
        lines = [f"srun: error: {node}: task {task}: {how}\n"]
        if named or self.rng.random() < 0.7:
            lines += [
                f"srun: Terminating StepId={self.job}.0\n",
                f"slurmstepd: error: *** STEP {self.job}.0 ON gpu11 CANCELLED AT 2026-11-21T10:07:00 ***\n",
                *(f"srun: error: {self.node(r)}: task {r}: Terminated\n" for r in range(self.world) if r != task),
                f"srun: Force Terminated StepId={self.job}.0\n",
            ]
        return "".join(lines)

    def table(self, failed: Sequence[tuple[int, int]], first: int, agent: int = 700, at: str = "10:07:00") -> str:
        """Return torchrun's lines at its end; ``failed``: ranks with their codes."""
        local, code = first % self.per_node, dict(failed)[first]
        pids = {rank: 800 + rank for rank, _ in failed}
        others = [rank for rank, c in failed if rank != first and c == -15]
        file = "torch/distributed/elastic/multiprocessing/api.py"
        text = "".join(
            f"W1121 10:07:00.337000 {agent} {file}:1010] Sending process {pids[r]} closing signal SIGTERM\n"
            for r in others
        )
        text += f"E1121 10:07:00.461000 {agent} {file}:984] failed (exitcode: {code}) local_rank: {local} "
        text += f"(pid: {pids[first]}) of binary: /opt/venv/bin/python\n"
        text += traceback(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            ("/opt/venv/bin/torchrun", 8, "<module>", "sys.exit(main())"),
            (f"{SITE}/torch/distributed/run.py", 918, "main", "run(args)"),
            (f"{SITE}/torch/distributed/launcher/api.py", 269, "launch_agent", "raise ChildFailedError("),
        )
        text += "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n"
        rows = [(r, c) for r, c in failed if r != first]
        text += "".join(f"[{i}]:\n{self.row(r, c, pids[r], at)}" for i, (r, c) in enumerate(rows, 1))
        text += "" if rows else "  <NO_OTHER_FAILURES>\n"
        text += (
            "-" * 60
            + f"\nRoot Cause (first observed failure):\n[0]:\n{self.row(first, code, pids[first], at)}"
            + "=" * 60
        )
        return text + "\n"

    def row(self, rank: int, code: int, pid: int, at: str) -> str:
        name = NAMES.get(code, "SIGTERM" if code == -15 else "")
        note = f"Signal {-code} ({name}) received by PID {pid}" if code < 0 else "To enable traceback see: https://x"
        return (
            f"  time      : 2026-11-21_{at}\n  host      : {self.node(rank)}\n  rank      : {rank} "
            f"(local_rank: {rank % self.per_node})\n  exitcode  : {code} (pid: {pid}) {f' ({name})' if name else ''}\n"
            f"  error_file: <N/A>\n  traceback : {note}\n"
        )

    # The launchers.

    def srun(self, failure: Failure) -> Log:
        text = self.head() + self.before(failure) + failure.text + self.cascades() + failure.slurm
        return Log("srun", {f"slurm-{self.job}.out": text + self.step_end(failure.code)}, self.victim,
                   self.node(self.victim), failure)  # fmt: skip

    def srun_labels(self, failure: Failure) -> Log:
        def label(rank: int) -> str:
            return f"{rank}: "

        text = self.before(failure, label) + self.labelled(failure.text, label(self.victim))
        text += self.cascades(label) + failure.slurm
        return Log("srun -l", {f"slurm-{self.job}.out": text + self.step_end(failure.code)}, self.victim,
                   self.node(self.victim), failure)  # fmt: skip

    def hook(self, failure: Failure) -> Log:
        """Each rank's exceptions behind torch's prefix, lines of ranks between each other."""

        def label(rank: int) -> str:
            return f"[rank{rank}]: "

        raised = failure.code == 1 and "Traceback" in failure.text
        own = self.labelled(failure.text, label(self.victim)) if raised else failure.text
        mixed = _interleaved(self.rng, own.splitlines(True), self.cascades(label).splitlines(True))
        text = self.head() + self.before(failure) + mixed + failure.slurm
        return Log("torch's hook", {f"train_{self.job}.log": text + self.step_end(failure.code, named=True)}, self.victim,
                   self.node(self.victim), failure)  # fmt: skip

    def torchrun_two_nodes(self, failure: Failure) -> Log:
        """One torchrun per node, all in one file."""
        mates = [(r, -15) for r in range(self.world) if r // 2 == self.victim // 2 and r != self.victim]
        text = OF_TORCHRUN + self.head() + self.before(failure) + failure.text + self.cascades() + failure.slurm
        text += self.table([(self.victim, failure.code), *mates], self.victim, agent=700 + self.victim // 2)
        node = self.victim // 2
        text += f"srun: error: {self.node(self.victim)}: task {node}: Exited with exit code 1\n"
        return Log("torchrun, 2 nodes", {f"slurm-{self.job}.out": text}, self.victim, self.node(self.victim), failure)

    def torchrun_tee(self, failure: Failure) -> Log:
        self.per_node = 4

        def label(rank: int) -> str:
            return f"[default{rank}]:"

        others = [(r, -15) for r in range(self.world) if r != self.victim]
        text = self.head() + self.before(failure, label) + self.labelled(failure.text, label(self.victim))
        text += self.cascades(label) + failure.slurm + self.table([(self.victim, failure.code), *others], self.victim)
        return Log("torchrun --tee", {f"job{self.job}.out": text}, self.victim, self.node(self.victim), failure)

    def torchrun_folder(self, failure: Failure) -> Log:
        self.per_node = 4
        files = {}
        for rank in range(self.world):
            folder = f"logs/none_abc/attempt_0/{rank}"
            own = failure.text if rank == self.victim else ""
            files[f"{folder}/stdout.log"] = "".join(self.step(rank, s) for s in range(9))
            files[f"{folder}/stderr.log"] = own
        others = [(r, -15) for r in range(self.world) if r != self.victim]
        files[f"slurm-{self.job}.out"] = (
            self.head() + failure.slurm + self.table([(self.victim, failure.code), *others], self.victim)
        )
        return Log("torchrun --log-dir", files, self.victim, None, failure)

    def deepspeed(self, failure: Failure) -> Log:
        def label(rank: int) -> str:
            return f"{self.node(rank)}: "

        stamp = "[2026-11-21 10:07:00,857]"
        text = self.before(failure, label) + self.labelled(failure.text, label(self.victim)) + failure.slurm
        text += "".join(
            f"{label(r)}{stamp} [INFO] [launch.py:315:sigkill_handler] Killing subprocess {900 + r}\n" for r in range(4)
        )
        text += f"{label(self.victim)}{stamp} [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', "
        # Of the command line that was started last on the node.
        text += f"'--local_rank=1', '--deepspeed'] exits with return code = {failure.code}\n"
        text += f"pdsh@gpu11: {self.node(self.victim)}: ssh exited with exit code {failure.code % 256}\n"
        return Log("deepspeed", {f"ds_{self.job}.log": text}, None, self.node(self.victim), failure)

    def lightning(self, failure: Failure) -> Log:
        text = self.head() + "".join(f"[rank: {r}] Seed set to 42\n" for r in range(4)) + self.before(failure)
        text += failure.text + self.cascades() + failure.slurm
        text += f"[rank: {self.victim}] Child process with PID 4242 terminated with code {failure.code}. Forcefully "
        text += "terminating all other processes to avoid zombies 🧟\n"
        return Log("lightning", {f"{self.job}.log": text}, self.victim, None, failure)

    def accelerate(self, failure: Failure) -> Log:
        status = (
            f"returned non-zero exit status {failure.code}"
            if failure.code > 0
            else f"died with <Signals.{NAMES.get(failure.code)}: {-failure.code}>"
        )
        text = self.head() + self.before(failure) + failure.text + failure.slurm + traceback(
            f"subprocess.CalledProcessError: Command '['/opt/venv/bin/python', 'train.py']' {status}.",
            ("/opt/venv/bin/accelerate", 8, "<module>", "sys.exit(main())"),
            (f"{SITE}/accelerate/commands/launch.py", 1168, "launch_command", "simple_launcher(args)"),
            (f"{SITE}/accelerate/commands/launch.py", 763, "simple_launcher", "raise subprocess.CalledProcessError("),
        )  # fmt: skip
        return Log("accelerate", {f"slurm-{self.job}.out": text}, None, None, failure)

    def spawn(self, failure: Failure) -> Log:
        frames = ((f"{USER}/train.py", 500, "<module>", "mp.spawn(main, nprocs=4)"),
                  (f"{SITE}/torch/multiprocessing/spawn.py", 215, "join", "raise Error(msg)"))  # fmt: skip
        at = failure.text.find("Traceback (most")
        printed, exact = (
            (failure.text[:at], failure.text[at:]) if at >= 0 and failure.name != "rich" else (failure.text, "")
        )
        if failure.code > 0:
            text = traceback(
                "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
                f"-- Process {self.victim} terminated with the following error:\n{exact}", *frames,
            ) if exact else traceback(
                f"torch.multiprocessing.spawn.ProcessExitedException: process {self.victim} terminated with exit code "
                f"{failure.code}", *frames)  # fmt: skip
        else:
            text = failure.text + traceback(
                f"torch.multiprocessing.spawn.ProcessExitedException: process {self.victim} terminated with signal "
                f"{NAMES[failure.code]}", *frames)  # fmt: skip
        head = self.head() + self.before(failure) + (printed if failure.code > 0 else "") + failure.slurm
        return Log("mp.spawn", {f"slurm-{self.job}.out": head + text}, self.victim, None, failure)

    def mpirun(self, failure: Failure) -> Log:
        def label(rank: int) -> str:
            return f"[1,{rank}]<stderr>:"

        text = self.before(failure, label) + self.labelled(failure.text, label(self.victim)) + failure.slurm
        text += _mpirun_end(failure, self.victim, f"[[1234,1],{self.victim}]", 0, self.node(self.victim))
        return Log("mpirun", {f"mpi.{self.job}.out": text}, self.victim, None, failure)

    def single(self, failure: Failure) -> Log:
        text = self.head() + self.before(failure) + failure.text + failure.slurm
        if failure.code < 0:
            shown = SIGNALS[failure.code].partition(" (")[0]
            text += (
                f"/var/spool/slurmd/job{self.job}/slurm_script: line 28:  8156 {shown}                python train.py\n"
            )
        elif not failure.text:
            text += f"srun: error: {self.node(0)}: task 0: Exited with exit code {failure.code}\n"
            return Log("one process", {f"slurm-{self.job}.out": text}, 0, self.node(0), failure)
        return Log("one process", {f"slurm-{self.job}.out": text}, None, None, failure)

    def submitit(self, failure: Failure) -> Log:
        files = {}
        for rank in range(self.world):
            own = failure.text if rank == self.victim else self.cascades() and GLOO
            files[f"{self.job}_{rank}_log.out"] = "".join(self.step(rank, s) for s in range(9))
            files[f"{self.job}_{rank}_log.err"] = own
        files[f"{self.job}_0_log.err"] += failure.slurm + self.step_end(failure.code)
        return Log("submitit", files, self.victim, None, failure)

    def unlabelled_mix(self, failure: Failure) -> Log:
        """Tracebacks of several ranks between each other, without labels, and no statement on ends."""
        mixed = _interleaved(self.rng, failure.text.splitlines(True), GLOO.splitlines(True))
        return Log("mixed lines", {f"slurm-{self.job}.out": self.head() + self.before(failure) + mixed}, None, None,
                   failure)  # fmt: skip

    def torchrun_both_tables(self, failure: Failure) -> Log:
        """Each node's torchrun ends by itself, the other node's because of broken connections, and a moment later."""

        def label(rank: int) -> str:
            return f"[rank{rank}]: "

        mine, other = self.victim // 2, 1 - self.victim // 2
        theirs = [other * 2, other * 2 + 1]
        own = self.labelled(failure.text, label(self.victim)) if failure.code == 1 else failure.text
        lost = "".join(self.labelled(self.rng.choice([GLOO, NCCL]), label(rank)) for rank in theirs)
        mates = [(r, -15) for r in range(self.world) if r // 2 == mine and r != self.victim]
        tables = [
            self.table([(self.victim, failure.code), *mates], self.victim, 700 + mine, "10:07:00"),
            self.table([(rank, 1) for rank in theirs], theirs[0], 700 + other, "10:07:02"),
        ]
        self.rng.shuffle(tables)
        outputs = [own, lost]
        self.rng.shuffle(outputs)
        text = OF_TORCHRUN + self.head() + self.before(failure) + "".join(outputs) + failure.slurm + "".join(tables)
        text += (
            "srun: error: gpu11: task 0: Exited with exit code 1\nsrun: error: gpu12: task 1: Exited with exit code 1\n"
        )
        return Log("torchrun, 2 tables", {f"slurm-{self.job}.out": text}, self.victim, self.node(self.victim), failure)

    def accelerate_table(self, failure: Failure) -> Log:
        self.per_node = 4
        others = [(r, -15) for r in range(self.world) if r != self.victim]
        text = OF_TORCHRUN + self.head() + self.before(failure) + failure.text + failure.slurm
        table = self.table([(self.victim, failure.code), *others], self.victim)
        table = table.replace("/opt/venv/bin/torchrun", "/opt/venv/bin/accelerate")
        return Log(
            "accelerate, table", {f"slurm-{self.job}.out": text + table}, self.victim, self.node(self.victim), failure
        )

    def composer(self, failure: Failure) -> Log:
        text = self.head() + ("" if self.victim == 0 else self.before(failure))
        text += f"ERROR:composer.cli.launcher:Rank {self.victim} crashed with exit code {failure.code}.\n"
        text += "Waiting up to 30 seconds for all training processes to terminate. Press Ctrl-C to exit immediately.\n"
        for rank in range(self.world):
            code = failure.code if rank == self.victim else -15
            text += f"Global rank {rank} (PID {4240 + rank}) exited with code {code}\n"
            if rank:
                out = "".join(self.step(rank, s) for s in range(4))
                own = failure.text if rank == self.victim else ""
                for stream, part in (("STDOUT", out), ("STDERR", own)):
                    text += f"----------Begin global rank {rank} {stream}----------\n{part}\n"
                    text += f"----------End global rank {rank} {stream}----------\n"
            elif rank == self.victim:
                text += failure.text
        code = failure.code if self.victim == 0 else -15
        text += failure.slurm + f"ERROR:composer.cli.launcher:Global rank 0 (PID 4240) exited with code {code}\n"
        return Log("composer", {f"mcli-{self.job}.log": text}, self.victim, None, failure)

    def pods(self, failure: Failure) -> Log:
        """One process per pod, of which each has its file."""
        files = {}
        for rank in range(self.world):
            name = f"bert-{self.job}-master-0" if rank == 0 else f"bert-{self.job}-worker-{rank - 1}"
            own = "".join(self.step(rank, s) for s in range(9))
            own += failure.text if rank == self.victim else self.cascades() and GLOO
            at = "2026-11-21T10:07:00.12345678{}Z "
            files[f"{name}.log"] = "".join(
                f"{at.format(i % 10)}{line}\n" for i, line in enumerate(own.rstrip("\n").split("\n"))
            )
        failure.slurm = ""
        return Log("pods", files, None, None, failure)

    def sagemaker(self, failure: Failure) -> Log:
        def label(rank: int) -> str:
            return f"[1,mpirank:{rank},algo-{1 + rank // 2}]<stderr>:"

        text = self.before(failure, label) + self.labelled(failure.text, label(self.victim)) + self.cascades(label)
        node = f"algo-{1 + self.victim // 2}"
        text += _mpirun_end(failure, self.victim, f"[[41154,1],{self.victim}]", 77, node)
        text += "2026-11-21 10:07:03,101 sagemaker-training-toolkit INFO     Waiting for the process to finish and give a return code.\n"
        text += "2026-11-21 10:07:03,101 sagemaker-training-toolkit ERROR    Reporting training FAILURE\n"
        text += f"2026-11-21 10:07:03,101 sagemaker-training-toolkit ERROR    ExecuteUserScriptError:\nExitCode {abs(failure.code)}\n"
        return Log("sagemaker", {f"algo-{self.job}.log": text + failure.slurm}, self.victim, None, failure)

    def azure(self, failure: Failure) -> Log:
        files = {}
        for rank in range(self.world):
            own = "".join(self.step(rank, s) for s in range(9))
            own += failure.text if rank == self.victim else self.cascades() and GLOO
            files[f"user_logs/std_log_process_{rank:02}.txt"] = own
        return Log("azure", files, None if not failure.text else self.victim, None, failure)

    def srun_files(self, failure: Failure) -> Log:
        """``srun --output=slurm-%j_%t.out``."""
        files = {}
        for rank in range(self.world):
            own = "".join(self.step(rank, s) for s in range(9))
            own += failure.text if rank == self.victim else self.cascades() and self.rng.choice([GLOO, NCCL])
            files[f"slurm-{self.job}_{rank}.out"] = own
        files[f"slurm-{self.job}.out"] = self.head() + failure.slurm + self.step_end(failure.code)
        return Log("srun, file per task", files, self.victim, self.node(self.victim), failure)

    # Failures of more ranks than one.

    def alike(self, failure: Failure) -> Log:
        """All ranks fail in the same way, and write at once."""
        style = self.rng.choice(["hook", "srun -l", "tee", "files", "mpirun", "plain"])
        forms = {"hook": "[rank{}]: ", "srun -l": "{}: ", "tee": "[default{}]:", "mpirun": "[1,{}]<stderr>:"}
        self.per_node = 4 if style == "tee" else 2

        def label(rank: int) -> str:
            return forms.get(style, "").format(rank)

        parts = [self.labelled(failure.text, label(rank)).splitlines(True) for rank in range(self.world)]
        if style == "files":
            files = {f"slurm-{self.job}_{rank}.out": "".join(part) for rank, part in enumerate(parts)}
            files[f"slurm-{self.job}.out"] = self.head() + self.all_end(failure)
            return Log("alike, files", files, None, None, failure, alike=True)
        mixed = [parts[0], parts[1], parts[2], parts[3]]
        text = "".join(_interleaved(self.rng, list(one), list(two)) for one, two in (mixed[:2], mixed[2:]))
        if style == "plain":
            text = "".join("".join(part) for part in parts)
        text = self.head() + self.before(failure, label) + text
        if style == "tee":
            text += self.table([(rank, failure.code) for rank in range(self.world)], self.victim)
        elif style == "mpirun":
            text += (
                "-" * 60 + "\nmpirun detected that one or more processes exited with non-zero status, thus causing\n"
            )
            text += f"the job to be terminated. The first process to do so was:\n\n  Process name: [[1234,1],{self.victim}]\n"
            text += f"  Exit code:    {failure.code}\n" + "-" * 60 + "\n"
        else:
            text += self.all_end(failure)
        return Log(f"alike, {style}", {f"slurm-{self.job}.out": text}, None, None, failure, alike=style != "plain")

    def all_end(self, failure: Failure) -> str:
        lines = [
            f"srun: error: gpu{11 + node}: tasks {2 * node}-{2 * node + 1}: Exited with exit code {failure.code}\n"
            for node in range(2)
        ]
        return "".join(self.rng.sample(lines, 2))

    def watchdog(self) -> Log:
        """A rank hangs, the others' watchdogs give up."""
        self.per_node = 4
        call = "WorkNCCL(SeqNum=118, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000)"
        caught = f"Watchdog caught collective operation timeout: {call} ran for 600012 milliseconds before timing out."
        others = [rank for rank in range(self.world) if rank != self.victim]
        self.rng.shuffle(others)
        text = self.head() + self.steps(12)
        for rank in others:
            at = f"[rank{rank}]:[E1121 10:17:00.41417012 ProcessGroupNCCL.cpp"
            of = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
            text += f"{at}:632] {of} {caught}\n"
            text += (
                f"{at}:756] {of} Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA "
            )
            text += "kernels, subsequent GPU operations might run on corrupted/incomplete data.\n"
            text += f"{at}:762] {of} To avoid data inconsistency, we are taking the entire process down.\n"
        for rank in others:
            of = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
            text += "terminate called after throwing an instance of 'c10::DistBackendError'\n"
            text += f"  what():  {of} Process group watchdog thread terminated with exception: {caught}\n"
        failed = [(rank, -6) for rank in others] + [(self.victim, -15)]
        text += self.table(failed, others[0])
        return Log("watchdog", {f"slurm-{self.job}.out": text}, says=(f"rank {self.victim}",), victim=self.victim)

    # Ends without a failure of a rank.

    def without_failure(self) -> list[Log]:
        name = f"slurm-{self.job}.out"
        step, job = f"STEP {self.job}.0", f"JOB {self.job}"
        line = "slurmstepd: error: *** {} ON gpu11 CANCELLED AT 2026-11-21T10:07:00{} ***\n"
        steps = self.head() + self.steps(20)

        def both(why: str) -> str:
            lines = [line.format(step, why), line.format(job, why)]
            self.rng.shuffle(lines)
            return "".join(lines)

        reaction = traceback("KeyboardInterrupt", MAIN) if self.rng.random() < 0.5 else ""
        node = ", SEE SLURMCTLD LOG FOR DETAILS"
        again = "host is gpu11\nversion is 1.2.3\nreading the configuration\n" + self.steps(6)
        return [
            Log("time limit", {name: steps + both(" DUE TO TIME LIMIT") + reaction}, status="stopped", says=("time limit",)),
            Log("preempted", {name: steps + both(" DUE TO PREEMPTION")}, status="stopped", says=("preempted",)),
            Log("scancel", {name: steps + line.format(job, "") + reaction}, status="stopped", says=("cancelled",)),
            Log("node", {name: steps + self.cascades() + "srun: error: Node failure on gpu12\n" + both(
                f" DUE TO NODE FAILURE{node}")}, says=("gpu12 failed",)),
            Log("success", {name: steps + "done\n"}, status="unfinished"),
            Log("running", {name: steps + "rank 3 step 21 lo"}, status="unfinished"),
            Log("caught", {name: self.steps(4) + CAUGHT + self.steps(9)}, status="unfinished"),
            Log("recovered", {name: again + both(" DUE TO PREEMPTION") + again + "saved\n"}, status="unfinished"),
            Log("execve", {name: "slurmstepd: error: execve(): /home/ann/trian: No such file or directory\n"
                "srun: error: gpu11: tasks 0-1: Exited with exit code 2\n"}, says=("/home/ann/trian",)),
            Log("pyxis", {name: "pyxis: importing docker image: nvcr.io/nvidia/pytorch:99.99\n"
                "slurmstepd: error: pyxis: child 71 failed with error code: 1\n"
                "slurmstepd: error: pyxis: failed to import docker image\n"
                "slurmstepd: error: pyxis: printing enroot log file:\n"
                "slurmstepd: error: pyxis:     [ERROR] URL https://nvcr.io/v2/nvidia/pytorch/manifests/99.99 returned error "
                "code: 404 Not Found\nslurmstepd: error: pyxis: couldn't start container\n"
                "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"
                "slurmstepd: error: Failed to invoke spank plugin stack\n"
                "srun: error: gpu11: task 0: Exited with exit code 1\n"}, says=("404 Not Found",)),
            Log("apptainer", {name: "INFO:    Converting SIF file to temporary sandbox...\n"
                "FATAL:   could not open image /img/x.sif: failed to retrieve path for /img/x.sif: lstat /img/x.sif: no such "
                "file or directory\nsrun: error: gpu11: task 0: Exited with exit code 255\n"},
                says=("could not open image /img/x.sif",)),
            Log("arguments", {name: "usage: train.py [-h] [--lr LR] [--steps STEPS]\n"
                "train.py: error: argument --lr: invalid float value: 'fast'\n"
                "srun: error: gpu11: task 0: Exited with exit code 2\n"}, says=("invalid float value",)),
        ]  # fmt: skip

    def wrapped(self, log: Log) -> Log:
        """Add what may happen to any log: another coding, an earlier attempt, the time limit later."""
        (name, *_) = [each for each in log.files if each.startswith("slurm") or len(log.files) == 1][-1:] or [""]
        if name and len(log.files) == 1 and self.rng.random() < 0.2:
            banner = f"Job {self.job} begins\nhost is gpu11\nversion is 1.2.3\n"
            first = (
                banner
                + self.steps(40)
                + "slurmstepd: error: *** JOB 1 ON gpu11 CANCELLED AT 2026-11-21T09:00:00 DUE TO "
            )
            log.files[name] = first + "JOB REQUEUE ***\n" + banner + log.files[name]
            log.history.append("requeued")
        if (
            name
            and log.failure is not None
            and log.failure.name not in ("exit text", "logged error")
            and self.rng.random() < 0.15
        ):
            log.files[name] += (
                f"slurmstepd: error: *** JOB {self.job} ON gpu11 CANCELLED AT 2026-11-21T12:00:00 DUE TO TIME "
            )
            log.files[name] += "LIMIT ***\n"
            log.history.append("time limit later")
        named = log.failure is not None and log.failure.text and log.failure.name not in ("exit text", "logged error")
        if named and log.failure is not None and len(log.files) == 1 and self.rng.random() < 0.15:
            self.cut(log, log.failure.text)
        if len(log.files) == 1:
            log.coding = self.rng.choice(["plain"] * 6 + ["crlf", "gzip", "utf-16", "binary"])
        return log

    def cut(self, log: Log, text: str) -> None:
        """Leave out a part before the failure's own lines, or one after them, as where a log is posted."""
        ((name, whole),) = log.files.items()
        lines = whole.split("\n")
        first, last = text.strip("\n").split("\n")[0].strip(), text.strip("\n").split("\n")[-1].strip()
        begin = next((i for i, line in enumerate(lines) if line.endswith(first)), 0)
        end = max((i for i, line in enumerate(lines) if line.endswith(last)), default=len(lines))
        if self.rng.random() < 0.5:
            lines = lines[self.rng.randrange(begin + 1) :]
            log.history.append("begin cut off")
        else:
            lines = lines[: self.rng.randrange(end, len(lines)) + 1]
            log.history.append("end cut off")
            log.rank = log.node = None
        log.files[name] = "\n".join(lines)


def _interleaved(rng: random.Random, one: list[str], other: list[str]) -> str:
    lines = []
    while one or other:
        source = one if one and (not other or rng.random() < 0.5) else other
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            if source:
                lines.append(source.pop(0))
    return "".join(lines)


def logs(seed: int, number: int) -> list[Log]:
    """Return logs, at least `number`, of all launchers."""
    rng = random.Random(seed)
    found: list[Log] = []
    while len(found) < number:
        for launch in ("srun", "srun_labels", "hook", "torchrun_two_nodes", "torchrun_tee", "torchrun_folder", "deepspeed",
                       "lightning", "accelerate", "spawn", "mpirun", "single", "submitit", "unlabelled_mix",
                       "torchrun_both_tables", "accelerate_table", "composer", "pods", "sagemaker", "azure", "srun_files"):  # fmt: skip
            writer = Writer(rng)
            kinds = [*failures(rng), *more_failures(rng)]
            if launch == "unlabelled_mix":
                kinds = [each for each in failures(rng) if each.code == 1 and each.name not in ("group", "loader")]
            elif launch in WITHOUT_ENDS:
                kinds = [each for each in kinds if each.text.count("\n") > 2]
            elif launch == "spawn":
                # A process passes its traceback on as Python prints it.
                kinds = [each for each in kinds if each.name not in REWRITTEN]
            failure = rng.choice(kinds)
            failure.text = failure.text.replace("{rank}", str(writer.victim))
            if failure.code == 1 and failure.text and rng.random() < 0.25:
                failure.text += rng.choice(NOISE_AT_END).replace("{rank}", str(writer.victim))
            log = getattr(writer, launch)(failure)
            log.victim = writer.victim
            if (
                launch in UNLABELLED
                and failure.code == 1
                and sum(
                    " Connection closed by peer" in text or "ncclRemoteError" in text for text in log.files.values()
                )
            ):
                # Whose traceback is the first one cannot be known.
                log.rank = log.node = None
            found.append(writer.wrapped(log))
        for _ in range(3):
            kinds = [each for each in [*failures(rng), *more_failures(rng)] if each.code > 0 and each.text]
            failure = rng.choice([each for each in kinds if each.name not in ("group", "logged error", "exit text")])
            found.append(Writer(rng).alike(failure))
        found.append(Writer(rng).watchdog())
        ends = Writer(rng).without_failure()
        found += [Writer(rng).wrapped(each) for each in rng.sample(ends, 5)]
    return found
