"""`ftslurm health` and `ftslurm nodes` on a real Slurm: one table, nodes kept out of jobs, drains, Slurm's hooks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ftslurm.slurm.commands import CommandSlurm
from ftslurm.slurm.errors import SlurmRefused
from ftslurm.slurm.nodelist import expand
from ftslurm.slurm.run_command import Answer, run_command
from tests.slurm.conftest import Job, Lab

FINE = "host-versions"
"""A check that finds nothing wrong on any machine."""

WITHOUT_RIGHTS = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def node_facts(lab: Lab, node: str) -> tuple[str, str]:
    """Return a node's state and its reason."""
    text = lab.command("scontrol", "show", "node", "-o", node).stdout
    reason = re.search(r"Reason=(.*?) \[", text)
    state = re.search(r" State=(\S+)", text)
    assert state is not None, text
    # Right after a restart of its daemon it may not have answered yet.
    return state[1].removesuffix("+NOT_RESPONDING"), reason[1] if reason else ""


def is_untouched(lab: Lab, node: str) -> bool:
    state, reason = node_facts(lab, node)
    return "DRAIN" not in state and not reason


@pytest.fixture
def resumed(lab: Lab) -> Iterator[None]:
    """Nodes that a test drains come back."""
    yield
    for node in lab.nodes:
        if "DRAIN" in node_facts(lab, node)[0]:
            lab.command("scontrol", "update", f"NodeName={node}", "State=RESUME", check=True)


@pytest.fixture
def configure(lab: Lab, work: Path) -> Iterator[Callable[..., None]]:
    """Give a function that adds lines to slurm.conf; the test's end takes them away."""
    conf = Path(lab.environment["SLURM_CONF"])
    before = conf.read_text()

    def add(**settings: object) -> None:
        conf.write_text(before + "".join(f"{key}={value}\n" for key, value in settings.items()))
        lab.command("scontrol", "reconfigure", check=True)

    yield add
    conf.write_text(before)
    lab.command("scontrol", "reconfigure", check=True)


# One table.


def test_srun_on_three_nodes_prints_one_table_and_the_unhealthy_one_is_on_top(lab: Lab, work: Path) -> None:
    own = '[ "$SLURMD_NODENAME" = t2 ] && { echo 1 fan of 6 turns; exit 2; }; echo 6 fans turn'
    argv = ("srun", "-N3", "--ntasks-per-node=1", "ftslurm", "health", FINE, "own", "--command", own)
    done = lab.command(*argv, cwd=work)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("ftslurm health:") == 1, done.stdout
    head, top, *_ = done.stdout.splitlines()
    assert head.startswith("ftslurm health: 3 nodes: FAIL on t2; 2 fine"), done.stdout
    assert top.startswith("  FAIL     t2: own") and "1 fan of 6 turns" in top
    assert list(work.iterdir()) == []


def test_srun_with_several_tasks_on_a_node_checks_once_each_node(lab: Lab, work: Path) -> None:
    done = lab.command("srun", "-N2", "-n4", "--overcommit", "ftslurm", "health", FINE, "network", cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ftslurm health:") == 1 and "2 nodes: " in done.stdout, done.stdout
    assert "network-reach" in done.stdout and "1 of 1 other nodes reached" in done.stdout, done.stdout


# Excluded nodes.


def submitted_around(lab: Lab, work: Path, *options: str) -> str:
    script = work / "where.sbatch"
    script.write_text("#!/bin/bash\nhostname\n")
    line = f'sbatch --parsable -N1 {" ".join(options)} --exclude="$(ftslurm nodes list --hostlist)" {script}'
    done = lab.command("bash", "-c", line, cwd=work)
    assert done.returncode == 0, done.stderr
    job = Job(lab, done.stdout.strip(), work)
    assert job.wait() == "COMPLETED", job.explain()
    return job.output.strip()


def test_a_job_is_submitted_around_the_nodes_excluded_and_with_none_as_ever(lab: Lab, work: Path) -> None:
    assert submitted_around(lab, work) in lab.nodes, "an empty list"
    aside = ",".join(name for name in lab.nodes if name != "t3")
    lab.command("ftslurm", "nodes", "exclude", aside, "--for", "1h", cwd=work, check=True)
    assert submitted_around(lab, work) == "t3"
    # sbatch refuses a job for one name that it does not know.
    lab.command("ftslurm", "nodes", "exclude", "long-gone", cwd=work, check=True)
    assert submitted_around(lab, work) == "t3"
    lab.command("ftslurm", "nodes", "allow", aside, "long-gone", cwd=work, check=True)
    assert submitted_around(lab, work) in lab.nodes


def test_a_waiting_job_is_reported_and_one_that_could_never_start_is_not(lab: Lab, work: Path) -> None:
    others = lab.nodes[2:]
    job = lab.submit(work, "true", "--hold", f"--exclude={','.join(others)}", nodes=1)
    lab.command("ftslurm", "nodes", "exclude", "t2", cwd=work, check=True)
    done = lab.command("ftslurm", "nodes", "pass-on", job.id, cwd=work)
    assert done.returncode == 0 and f"job {job.id} now excludes t2" in done.stderr
    assert set(expand(job.facts()["ExcNodeList"])) == {"t2", *others}, "beside what its owner excluded"
    lab.command("ftslurm", "nodes", "exclude", "t1", cwd=work, check=True)
    done = lab.command("ftslurm", "nodes", "pass-on", job.id, cwd=work)
    assert done.returncode == 0 and "0 usable nodes are left in partition lab, and it needs 1" in done.stderr
    assert set(expand(job.facts()["ExcNodeList"])) == {"t2", *others}


def test_slurm_takes_the_list_at_a_requeue_and_not_before(
    lab: Lab, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", lab.environment["SLURM_CONF"])
    job = lab.submit(work, "sleep 300", "--requeue", nodes=1)
    lab.until(lambda: job.state == "RUNNING", 30, job.explain)
    slurm = CommandSlurm()
    with pytest.raises(SlurmRefused, match="no longer pending"):
        slurm.exclude_nodes(job.id, ["t1"])
    slurm.requeue(job.id)
    slurm.exclude_nodes(job.id, ["t1"])
    assert job.facts()["ExcNodeList"] == "t1"
    lab.until(lambda: job.state == "RUNNING", 60, job.explain)
    assert job.facts()["NodeList"] != "t1"


def test_ftsrun_keeps_a_requeued_job_away_from_nodes_excluded_meanwhile(lab: Lab, work: Path) -> None:
    job = lab.submit(work, "exec ftsrun --no-python sleep 300", "--requeue", nodes=1)
    started(lab, job)
    aside = job.facts()["BatchHost"]
    lab.command("ftslurm", "nodes", "exclude", aside, cwd=work, check=True)
    assert job.facts()["ExcNodeList"] == "(null)"
    lab.command("scontrol", "requeue", job.id, check=True)
    lab.until(lambda: job.facts()["ExcNodeList"] == aside, 40, job.explain)
    lab.until(lambda: job.state == "RUNNING", 60, job.explain)
    assert job.facts()["BatchHost"] != aside
    job.until_output(f"job {job.id} now excludes {aside}")


def started(lab: Lab, job: Job) -> None:
    rounds = job.run_dir / "rounds"
    lab.until(lambda: rounds.is_dir() and any(rounds.iterdir()), 60, job.explain)


def test_a_cancelled_job_does_not_report_excluded_nodes(lab: Lab, work: Path) -> None:
    lab.command("ftslurm", "nodes", "exclude", "t3", cwd=work, check=True)
    job = lab.submit(work, "exec ftsrun --no-python sleep 300", "--requeue", nodes=1)
    started(lab, job)
    lab.command("scancel", job.id, check=True)
    assert job.wait() == "CANCELLED"
    lab.until(lambda: "ftslurm report" in job.output or (job.run_dir / "report.txt").exists(), 40, job.explain)
    time.sleep(1)
    assert "ftslurm nodes" not in job.output, job.output


# Drains.


def test_root_drains_a_node_once_and_existing_reasons_stay(
    lab: Lab, work: Path, resumed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", lab.environment["SLURM_CONF"])
    slurm = CommandSlurm()
    assert slurm.drain("t2", "ftslurm: GPU 3: 2 uncorrected ECC errors") is None
    assert node_facts(lab, "t2") == ("IDLE+DRAIN", "ftslurm: GPU 3: 2 uncorrected ECC errors")
    assert slurm.drain("t2", "another") == "t2 is IDLE+DRAIN already: ftslurm: GPU 3: 2 uncorrected ECC errors"
    lab.command("scontrol", "update", "NodeName=t1", "State=DRAIN", "Reason=RAM is being changed", check=True)
    assert slurm.drain("t1", "ours") == "t1 is IDLE+DRAIN already: RAM is being changed"
    assert node_facts(lab, "t1")[1] == "RAM is being changed"
    with pytest.raises(SlurmRefused, match="Slurm knows no node nosuch"):
        slurm.drain("nosuch", "ours")


def test_a_user_may_not_drain_and_gets_the_reason(lab: Lab, work: Path) -> None:
    def unprivileged(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        return run_command([*WITHOUT_RIGHTS, *command], env, timeout_s)

    # The lab's directory is root's alone.
    Path(lab.environment["SLURM_CONF"]).parents[1].chmod(0o711)
    with pytest.raises(SlurmRefused, match="may not drain t2: expected root, SlurmUser or an operator"):
        CommandSlurm(lab.environment, run=unprivileged).drain("t2", "x")
    assert is_untouched(lab, "t2")


# Slurm's own programs.


def hook(work: Path, lab: Lab, mode: str, *options: str) -> Path:
    """Write what the help recommends to sites: Slurm gives its programs next to no environment."""
    ftslurm = lab.command("which", "ftslurm").stdout.strip()
    own = f"test -e {work}/sick-$SLURMD_NODENAME && {{ echo a fan is missing; exit 2; }}; echo fine"
    script = work / mode
    script.write_text(
        f"#!/bin/sh\nexport SLURM_CONF={lab.environment['SLURM_CONF']}\n"
        f"exec {ftslurm} health --slurm {mode} {' '.join(options)} own --command '{own}' >>{work}/{mode}.out 2>&1\n"
    )
    script.chmod(0o755)
    return script


def test_slurms_health_check_drains_the_unhealthy_node_with_the_reason_and_no_other(
    lab: Lab, work: Path, configure: Callable[..., None], resumed: None
) -> None:
    program = hook(work, lab, "health-check", "--drain")
    (work / "sick-t2").touch()
    configure(HealthCheckProgram=program, HealthCheckInterval=2, HealthCheckNodeState="ANY")
    lab.until(lambda: "DRAIN" in node_facts(lab, "t2")[0], 60, lambda: (work / "health-check.out").read_text())
    state, reason = node_facts(lab, "t2")
    assert reason.startswith("ftslurm: own") and "a fan is missing" in reason, (state, reason)
    assert all(is_untouched(lab, node) for node in lab.nodes if node != "t2")
    # Well again, it stays drained: that is for people to end.
    (work / "sick-t2").unlink()
    time.sleep(5)
    assert node_facts(lab, "t2") == (state, reason)


def test_a_health_check_without_drain_changes_nothing(
    lab: Lab, work: Path, configure: Callable[..., None], resumed: None
) -> None:
    program = hook(work, lab, "health-check")
    (work / "sick-t2").touch()
    configure(HealthCheckProgram=program, HealthCheckInterval=2, HealthCheckNodeState="ANY")
    out = work / "health-check.out"
    lab.until(lambda: out.exists() and "a fan is missing" in out.read_text(), 60, lambda: "no output")
    time.sleep(3)
    assert is_untouched(lab, "t2")


def test_a_prolog_that_acts_keeps_a_job_off_the_unhealthy_node_and_gives_the_reason(
    lab: Lab, work: Path, configure: Callable[..., None], resumed: None
) -> None:
    configure(Prolog=hook(work, lab, "prolog", "--act"))
    assert submitted_around(lab, work) in lab.nodes, "all are well"
    (work / "sick-t2").touch()
    job = lab.submit(work, "hostname", "--requeue", "-w", "t2", nodes=1)
    lab.until(lambda: "DRAIN" in node_facts(lab, "t2")[0], 30, job.explain)
    assert node_facts(lab, "t2")[1].startswith("ftslurm: own"), "and not Prolog error"
    lab.until(lambda: job.state == "PENDING" and job.facts()["Restarts"] == "1", 30, job.explain)
    assert job.output.count("t2") == 0


def test_a_prolog_that_does_not_act_lets_the_job_start(
    lab: Lab, work: Path, configure: Callable[..., None], resumed: None
) -> None:
    configure(Prolog=hook(work, lab, "prolog"))
    (work / "sick-t2").touch()
    job = lab.submit(work, "hostname", "-w", "t2", nodes=1)
    assert job.wait() == "COMPLETED", job.explain()
    assert "a fan is missing" in (work / "prolog.out").read_text() and is_untouched(lab, "t2")


def test_an_epilog_that_acts_drains_the_node_after_the_job(
    lab: Lab, work: Path, configure: Callable[..., None], resumed: None
) -> None:
    configure(Epilog=hook(work, lab, "epilog", "--act"))
    (work / "sick-t2").touch()
    job = lab.submit(work, "hostname", "-w", "t2", nodes=1)
    assert job.wait() == "COMPLETED", job.explain()
    lab.until(lambda: "DRAIN" in node_facts(lab, "t2")[0], 30, job.explain)
    assert node_facts(lab, "t2")[1].startswith("ftslurm: own")
