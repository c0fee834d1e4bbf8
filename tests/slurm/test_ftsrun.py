"""ftsrun on a real Slurm: signals that reach it, allocations of other kinds, and what it says without a verdict."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.conftest import Job, Lab

TRAIN = """\
import os, signal, sys, time
import ftslurm
rank = int(os.environ["RANK"])
if "--save" in sys.argv:
    def save(*_):
        time.sleep(1)
        open(f"saved.{rank}", "w").close()
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
if "--slow" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: None)
open(f"up.{rank}", "w").close()
for step in range(4000):
    ftslurm.progress(step)
    time.sleep(0.05)
    if os.path.exists("finish"):
        break
"""


@pytest.fixture
def train(work: Path) -> Path:
    (work / "train.py").write_text(TRAIN)
    return work


def up(lab: Lab, work: Path, job: Job, ranks: int = 2) -> None:
    lab.until(lambda: len(list(work.glob("up.*"))) == ranks, 40, job.explain)


def parent_of(pid: str) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


class Terminal:
    """A command on a terminal of its own, as salloc has it."""

    def __init__(self, lab: Lab, work: Path, *argv: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(work)
            os.execvpe(argv[0], argv, lab.environment)
        self.text = ""

    def read(self, seconds: float) -> bool:
        """Read what there is; False when the command has closed its terminal."""
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                return False
            self.text += data.decode(errors="replace")
            return bool(data)
        return True

    def until(self, text: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while text not in self.text:
            assert self.read(0.1) and time.monotonic() < end, self.text

    def press_ctrl_c(self) -> None:
        os.write(self.fd, b"\x03")

    def wait(self, seconds: float = 90) -> int:
        """Wait for its end; return its exit code."""
        end = time.monotonic() + seconds
        while self.read(0.1):
            assert time.monotonic() < end, self.text
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        try:
            os.kill(self.pid, signal.SIGHUP)
        except ProcessLookupError:
            pass
        os.close(self.fd)


@pytest.fixture
def salloc(lab: Lab, train: Path) -> Iterator[Terminal]:
    """Let two ranks that are slow to stop run in a terminal."""
    terminal = Terminal(
        lab, train, "salloc", "--nodes=2", "ftsrun", "--health", "off", "--grace", "20", "train.py", "--slow"
    )
    yield terminal
    terminal.close()


@pytest.mark.parametrize("traps", [False, True])
def test_scancel_of_a_script_without_exec(lab: Lab, train: Path, traps: bool) -> None:
    """Slurm signals the batch shell alone, which ends, and ftsrun is killed with it, unless the shell traps SIGTERM."""
    begin = "trap : TERM\n" if traps else ""
    job = lab.submit(train, f"{begin}ftsrun --health off train.py\necho after $?")
    up(lab, train, job)
    lab.command("scancel", job.id, check=True)
    assert job.wait() == "CANCELLED", job.explain()
    expected = "was stopped: cancelled by a user"
    assert (expected in job.output, "after 143" in job.output) == (traps, traps), job.explain()
    assert ("put this line before it: trap : TERM" in job.output) != traps
    report = lab.command("ftslurm", "report", job.id, cwd=train)
    assert expected in report.stdout and "job exit code 143; no rank is to blame" in " ".join(report.stdout.split())
    shown = lab.command("ftslurm", "status", job.id, cwd=train).stdout
    assert "no save recorded" in " ".join(shown.split()) and f"job {job.id} is CANCELLED" in shown


def test_ctrl_c_in_salloc_ends_with_code_130_and_the_second_one_without_a_traceback(
    lab: Lab, train: Path, salloc: Terminal
) -> None:
    salloc.until("round 1: 2 ranks")
    lab.until(lambda: len(list(train.glob("up.*"))) == 2, 40, lambda: salloc.text)
    salloc.press_ctrl_c()
    salloc.until("SIGINT from outside: stopping")
    salloc.press_ctrl_c()
    assert salloc.wait() == 130, salloc.text
    assert "was stopped" in salloc.text and "exit code 130" in salloc.text, salloc.text
    assert "Traceback" not in salloc.text and "srun: interrupt" not in salloc.text, salloc.text


def test_scancel_full_leaves_the_ranks_their_grace(lab: Lab, train: Path) -> None:
    job = lab.submit(train, "exec ftsrun --health off train.py --save")
    up(lab, train, job)
    lab.command("scancel", "--full", "--signal=TERM", job.id, check=True)
    assert job.wait(60) == "FAILED", job.explain()
    assert job.facts()["ExitCode"] == "143:0"
    assert sorted(path.name for path in train.glob("saved.*")) == ["saved.0", "saved.1"], job.output
    assert f"job-{job.id} was stopped" in job.output, job.output


def test_a_heterogeneous_job_uses_its_first_component_and_prints_that(lab: Lab, train: Path) -> None:
    (train / "finish").touch()
    (train / "job.sbatch").write_text("#!/bin/bash\nexec ftsrun --health off train.py\n")
    argv = ["sbatch", "--parsable", "--output=slurm-%j.out", "--nodes=1", ":", "--nodes=1", "job.sbatch"]
    done = lab.command(*argv, cwd=train)
    assert done.returncode == 0, done.stderr
    job = Job(lab, done.stdout.strip(), train)
    job.until_output("succeeded: 1 round, 1 node", 60)
    assert f"a heterogeneous job of 2 components: only the first one ({lab.nodes[0]}) is used" in job.output


def test_a_job_that_finds_its_run_held_by_another_one_prints_that_and_not_the_others_report(
    lab: Lab, train: Path
) -> None:
    holder = lab.submit(train, "exec ftsrun --rdzv-id shared --health off train.py", nodes=1)
    up(lab, train, holder, 1)
    refused = lab.submit(train, "exec ftsrun --rdzv-id shared --health off train.py", nodes=1)
    assert refused.wait(60) == "FAILED", refused.explain()
    assert (
        f"is held by job {holder.id}, which runs already" in refused.output
        and "choose another --rdzv-id" in refused.output
    )
    assert f"attempt {refused.id}.0 took no part in the run" in refused.output, refused.output
    assert "is still running" not in refused.output, refused.output
    printed = lab.command("ftslurm", "report", refused.id, cwd=train).stdout
    assert f"job {refused.id} FAILED" in printed and "took no part" in " ".join(printed.split()), printed
    (train / "finish").touch()
    assert holder.wait(60) == "COMPLETED", holder.explain()


def test_a_killed_srun_leaves_a_report_that_does_not_call_the_run_running(lab: Lab, train: Path) -> None:
    job = lab.submit(train, "exec ftsrun --health off train.py")
    up(lab, train, job)
    lines = [line.split() for line in lab.processes(f"SLURM_JOB_ID={job.id}")]
    # There are two: the second one waits for the death of the first, and ends the step then.
    sruns = {int(fields[0]): parent_of(fields[0]) for fields in lines if Path(fields[1]).name == "srun"}
    os.kill(next(pid for pid, parent in sruns.items() if parent not in sruns), signal.SIGKILL)
    assert job.wait(60) == "FAILED", job.explain()
    assert "its step is over: srun ended with code 137 (SIGKILL)" in " ".join(job.output.split()), job.output
    assert "is still running" not in job.output
    printed = lab.command("ftslurm", "report", job.id, cwd=train).stdout
    assert "is still running" not in printed and "its step is over" in printed, printed
    assert "has ended: its agents" in lab.command("ftslurm", "status", job.id, cwd=train).stdout


def test_a_run_directory_that_vanishes_is_no_wrong_usage_and_the_agents_report_from_their_own_data(
    lab: Lab, work: Path
) -> None:
    (work / "train.py").write_text(
        "import ftslurm, os, shutil, time\n"
        "ftslurm.progress(7)\n"
        "time.sleep(1)\n"
        "shutil.rmtree(os.environ['FTSLURM_RUN_DIR'], ignore_errors=True)\n"
        "time.sleep(1)\n"
        "raise ValueError('boom')\n"
    )
    job = lab.submit(work, "exec ftsrun --health off --join-timeout 3 train.py", nodes=1)
    assert job.wait(90) == "FAILED", job.explain()
    assert job.facts()["ExitCode"] == "1:0", job.explain()
    assert "is no longer readable" in job.output, job.output
    for expected in ("rank 0 on", "ValueError: boom", "step 7"):
        assert expected in job.output, job.output


def test_a_run_directory_elsewhere_is_found_by_the_job_id_through_a_link_beside_the_output(
    lab: Lab, train: Path
) -> None:
    (train / "finish").touch()
    job = lab.submit(train, f"export FTSLURM_SHARED_DIR={train}/far\nexec ftsrun --health off train.py", nodes=1)
    assert job.wait(60) == "COMPLETED", job.explain()
    assert (train / f"slurm-{job.id}.ftslurm").readlink() == train / "far" / f"job-{job.id}"
    printed = lab.command("ftslurm", "report", job.id, cwd=Path("/")).stdout
    assert f"job-{job.id} succeeded" in printed, printed


def test_a_job_that_was_refused_before_its_start_is_reported_by_slurm(lab: Lab, work: Path) -> None:
    job = lab.submit(work, "exec ftsrun nothere.py", nodes=1)
    assert job.wait(60) == "FAILED", job.explain()
    printed = lab.command("ftslurm", "report", job.id, cwd=Path("/")).stdout
    for expected in (f"job {job.id} FAILED", "exit code 2:0", f"slurm-{job.id}.out", "nothere.py: no such script"):
        assert expected in printed, printed
