"""ftsrun with stand-ins for Slurm's commands: what it asks of srun, whom it waits for, and its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRUN = """\
#!/bin/bash
[ "$1" = --help ] && {{ printf '%s\\n' {help}; exit; }}
echo "$@" >>srun.log
while [[ $1 == -* ]]; do shift; done
export SLURM_STEP_ID=$(($(grep -c . srun.log) - 1)) SLURM_STEP_NODELIST=n1 SLURM_NNODES=1
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0
# A shell ignores SIGINT for what it starts in the background; Slurm's tasks do not.
task() {{ exec env --default-signal "$@"; }}
{body}
"""
STUBBORN = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("up", "w").close()
time.sleep(600)
"""
SCONTROL = """\
#!/bin/bash
case "$*" in
  "show config"*) echo "KillWait = 4 sec"; echo "TaskPlugin = task/none" ;;
  "show job"*) echo "JobId=7 JobName=x"; echo "   JobState=RUNNING Reason=None"; echo "   WorkDir=$PWD" ;;
esac
"""


class Job:
    """A directory with a Slurm of one node in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.script = ROOT / "scripts" / "ftsrun"
        self.started: list[subprocess.Popen[str]] = []
        self.command("ftslurm", f'#!/bin/sh\nexec {sys.executable} -m ftslurm.cli "$@"\n')
        self.command("scontrol", SCONTROL)
        self.command("squeue", "#!/bin/sh\necho 7.0; echo 7.batch; echo 7.interactive\n")
        self.command("scancel", '#!/bin/sh\necho "$@" >>scancel.log\n')
        self.srun('task "$@"')
        (directory / "train.py").write_text("import os; print('rank', os.environ['RANK'], 'ran', flush=True)\n")

    def command(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def srun(self, body: str, help_text: str = "--no-kill") -> None:
        """Let srun do this with its program in "$@"; it is one task of step 0, 1, ..."""
        self.command("srun", SRUN.format(body=body, help=f"'{help_text}'"))

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
        slurm = {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURMD_NODENAME": "n1",
            "SLURM_SUBMIT_DIR": str(self.directory),
            "PYTHONPATH": str(ROOT),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
        }
        process = subprocess.Popen(
            [str(self.script), "--health", "off", *(arguments or ("train.py",))],
            cwd=self.directory,
            env={**clean, **slurm, **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run ftsrun to its end; return its exit code and all that was printed."""
        process = self.start(*arguments, **environment)
        output, _ = process.communicate(timeout=90)
        return process.returncode, output

    def until(self, path: str) -> None:
        end = time.monotonic() + 60
        while not (self.directory / path).exists():
            assert time.monotonic() < end, f"no {path}"
            time.sleep(0.02)

    def close(self) -> None:
        """Kill what is left: everything of it has the directory in its environment."""
        mark = f"SLURM_SUBMIT_DIR={self.directory}".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                continue
        for process in self.started:
            process.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


def test_a_run_that_succeeds_is_exit_code_0_with_the_report_after_the_output(job: Job) -> None:
    code, output = job.run()
    assert code == 0, output
    assert output.index("rank 0 ran") < output.index("job-7 succeeded"), output
    assert "Killed" not in output, output


def test_each_further_start_in_a_job_is_a_run_of_its_own_which_a_requeue_finds_again(job: Job) -> None:
    (job.directory / "fails.py").write_text("raise SystemExit('asked to fail')\n")
    job.run("--max-restarts", "0", "fails.py")
    code, output = job.run()
    assert code == 0 and "job-7-2 succeeded: 1 round" in output and "no failure" in output, output
    code, output = job.run(SLURM_RESTART_COUNT="1")
    assert code == 0 and "job-7 succeeded" in output and "round 2: 1 rank" in output, output
    code, output = job.run(SLURM_RESTART_COUNT="1")
    assert code == 0 and "job-7-2 succeeded" in output and "round 2: 1 rank" in output, output
    assert sorted(path.name for path in (job.directory / "ftslurm-runs").glob("job-*")) == ["job-7", "job-7-2"]


def test_a_run_that_the_user_named_goes_on_with_each_start(job: Job) -> None:
    for number in (1, 2):
        code, output = job.run("--rdzv-id", "llm", "train.py")
        assert code == 0 and f"round {number}: 1 rank" in output, output
    assert [path.name for path in (job.directory / "ftslurm-runs").glob("[!e]*")] == ["llm"]


def test_the_report_of_a_job_shows_the_newest_of_its_runs_and_names_them_all(job: Job) -> None:
    for _ in range(3):
        assert job.run()[0] == 0
    command = [sys.executable, "-m", "ftslurm.cli", "report", "7", "--offline"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=job.directory, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("job-7-3 succeeded"), done.stdout + done.stderr
    assert "job 7 has 3 runs: job-7, job-7-2, job-7-3" in done.stderr


@pytest.mark.parametrize(("code", "expected"), [(1, 1), (0, 1), (213, 213)])
def test_an_earlier_success_in_the_same_job_is_no_success_of_a_start_that_srun_refused(
    job: Job, code: int, expected: int
) -> None:
    assert job.run()[0] == 0
    job.srun(f"echo 'srun: error: Unable to create step' >&2; exit {code}")
    found, output = job.run()
    assert found == expected, output
    assert "no rank was started" in output and "succeeded" not in output, output


def test_nor_is_it_one_where_no_agent_could_start(job: Job) -> None:
    assert job.run()[0] == 0
    job.srun('FTSLURM_HEARTBEAT=never task "$@"')
    code, output = job.run()
    assert code == 2, output
    assert "FTSLURM_HEARTBEAT" in output and "succeeded" not in output, output


@pytest.mark.parametrize("knows", [True, False])
def test_one_ranks_lack_of_memory_does_not_end_the_step_where_srun_has_an_option_for_that(
    job: Job, knows: bool
) -> None:
    job.srun('task "$@"', "--oom-kill-step[=0|1]" if knows else "--no-kill")
    assert job.run()[0] == 0
    assert ("--oom-kill-step=0" in (job.directory / "srun.log").read_text()) is knows


def test_a_dry_run_prints_the_line_of_srun_with_a_reason_for_each_flag_and_leaves_no_file(job: Job) -> None:
    before = sorted(job.directory.rglob("*"))
    hostile = "it's $(touch made) \x1b[2J;"
    code, output = job.run(
        "--dry-run", "--nproc-per-node", "auto", "train.py", "--dry-run", hostile, FTSRUN_SRUN_ARGS="--mem=0\n --x=*"
    )
    assert code == 0
    assert sorted(job.directory.rglob("*")) == before
    line = next(text for text in output.splitlines() if text.startswith("  srun "))
    assert "\x1b" not in output
    # The shell reads it back as the arguments that srun would get.
    arguments = subprocess.run(
        ["bash", "-c", f"srun() {{ printf '%s\\0' \"$@\"; }}; {line}"], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    end = ["run", "--health", "off", "--nproc-per-node", "auto", "train.py", "--dry-run", hostile, ""]
    assert arguments[arguments.index("run") :] == end
    flags = arguments[: arguments.index("run") - 1]
    assert {"--nodes=1", "--no-kill", "--mem=0", "--x=*"} <= set(flags)
    reasons = {text.split()[0]: text.split()[1:] for text in output.splitlines() if text.startswith("  --")}
    assert list(reasons) == flags and all(reasons.values())
    assert f"run directory: {job.directory}/ftslurm-runs/job-7\n" in output
    assert "no GPU: " in output and "worker" in output


def test_a_dry_run_refuses_what_the_run_would_refuse(job: Job) -> None:
    code, output = job.run("--dry-run", "missing.py")
    assert (code, output.count("\n")) == (2, 1) and "missing.py: no such script" in output


def test_an_srun_that_never_ends_holds_up_neither_the_report_nor_the_end(job: Job) -> None:
    job.srun('(task "$@"); echo the agent has left; exec sleep 600')
    code, output = job.run()
    assert code == 0, output
    assert output.index("the agent has left") < output.index("job-7 succeeded"), output


def test_a_signal_for_the_script_alone_is_passed_on_to_the_steps_and_not_to_the_shell_it_came_from(job: Job) -> None:
    job.command("scancel", '#!/bin/sh\necho "$@" >>scancel.log\nkill -TERM $(cat step.pid)\n')
    job.srun('echo $BASHPID >step.pid; task "$@"')
    (job.directory / "train.py").write_text("import time; open('up', 'w').close(); time.sleep(600)\n")
    process = job.start()
    job.until("up")
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "job-7 was stopped: SIGTERM from outside" in output, output
    assert (job.directory / "scancel.log").read_text() == "--signal=TERM 7.0\n"


def test_a_task_of_an_array_stops_no_other_task_of_it(job: Job) -> None:
    job.command("squeue", "#!/bin/sh\nprintf '%s\\n' 7_0.0 7_1.0 7_1.batch 7_12.0\n")
    job.srun('echo $BASHPID >step.pid; task "$@"')
    job.command("scancel", '#!/bin/sh\necho "$@" >>scancel.log\nkill -TERM $(cat step.pid)\n')
    (job.directory / "train.py").write_text("import time; open('up', 'w').close(); time.sleep(600)\n")
    process = job.start(SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="1")
    job.until("up")
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert (job.directory / "scancel.log").read_text() == "--signal=TERM 7_1.0\n"


def test_a_step_that_does_not_stop_is_reported_before_slurm_kills_the_script(job: Job) -> None:
    (job.directory / "train.py").write_text("import time; open('up', 'w').close(); time.sleep(600)\n")
    process = job.start()
    job.until("up")
    process.terminate()  # scancel does nothing here, as when slurmctld is down
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "its agents ended after SIGTERM from outside without recording" in " ".join(output.split()), output


def test_ctrl_c_is_code_130_and_a_second_one_brings_no_traceback(job: Job) -> None:
    job.command(
        "scancel", '#!/bin/sh\nkill -INT $(cat step.pid)\ntouch "signalled$1.$(ls signalled* 2>/dev/null | wc -l)"\n'
    )
    job.srun('echo $BASHPID >step.pid; task "$@"')
    (job.directory / "train.py").write_text(STUBBORN)
    process = job.start("--grace", "60", "train.py")
    job.until("up")
    for number in range(2):
        os.killpg(process.pid, signal.SIGINT)
        job.until(f"signalled--signal=INT.{number}")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output and "job-7 was stopped: SIGINT from outside" in output, output


def test_a_third_ctrl_c_waits_for_nothing_any_more(job: Job) -> None:
    job.command("scontrol", SCONTROL.replace("4 sec", "600 sec"))
    job.command("scancel", '#!/bin/sh\ntouch "signalled.$(ls signalled.* 2>/dev/null | wc -l)"\n')
    (job.directory / "train.py").write_text(STUBBORN)
    process = job.start()
    job.until("up")
    for number in range(3):
        os.killpg(process.pid, signal.SIGINT)
        job.until(f"signalled.{number}")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output and "after SIGINT from outside" in " ".join(output.split()), output


def test_a_shared_directory_that_hangs_at_the_start_can_be_left_by_ctrl_c(job: Job) -> None:
    job.command("ftslurm", "#!/bin/sh\ntouch preparing\nexec sleep 600\n")
    process = job.start()
    job.until("preparing")
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert not (job.directory / "srun.log").exists()


def test_a_report_that_cannot_be_made_in_time_leaves_sruns_exit_code(job: Job) -> None:
    text = (job.bin / "ftslurm").read_text()
    job.command("ftslurm", text.replace("exec", '[ "$1" = conclude ] && exec sleep 600\nexec', 1))
    script = job.script.read_text()
    assert "REPORT_S=140" in script
    job.command("ftsrun", script.replace("REPORT_S=140", "REPORT_S=1"))
    job.script = job.bin / "ftsrun"
    code, output = job.run()
    assert code == 0, output
    assert "no report could be made within 1 s" in output and "ftslurm report /" in output, output


def test_a_run_directory_that_is_away_at_the_end_of_the_step_is_awaited(job: Job) -> None:
    job.srun('(task "$@"); code=$?; mv ftslurm-runs away; (sleep 2; mv away ftslurm-runs) & exit $code')
    code, output = job.run()
    assert code == 0, output
    assert "waiting up to 30 s for it" in output and "job-7 succeeded" in output, output
    assert "no longer readable" not in output, output


def test_a_heterogeneous_job_is_reported_in_one_line_that_its_first_component_is_used(job: Job) -> None:
    code, output = job.run(SLURM_HET_SIZE="3")
    assert code == 0, output
    assert output.count("a heterogeneous job of 3 components: only the first one (n1) is used") == 1


@pytest.mark.parametrize("name", ["two\nlines", "ends in a line break\n", " blanks at both ends ", "back\\slash"])
def test_the_run_is_where_the_job_was_submitted_whatever_that_directory_is_called(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    job = Job(directory)
    # PATH cannot hold every name.
    job.bin.rename(tmp_path / "bin")
    job.bin = tmp_path / "bin"
    try:
        code, output = job.run("--exclude-dir", "a place\nof mine", "train.py")
        assert code == 0, output
        assert "rank 0 ran" in output
        assert (directory / "ftslurm-runs" / "job-7" / "report.json").exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["bin", name])
    finally:
        job.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_a_name_that_another_user_has_taken_in_a_shared_directory_stops_no_job(job: Job, kind: str) -> None:
    taken = job.directory / "ftslurm-runs" / "job-7"
    taken.parent.mkdir()
    {"directory": taken.mkdir, "file": taken.touch, "link": lambda: taken.symlink_to("/tmp")}[kind]()
    os.chown(taken, 12345, 12345, follow_symlinks=False)
    code, output = job.run()
    assert code == 0, output
    assert f"{taken} is not yours: this run is in job-7-2" in output
    assert "job-7-2 succeeded" in output
    report = [sys.executable, "-m", "ftslurm.cli", "report", "7"]
    done = subprocess.run(
        report, cwd=job.directory, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout.startswith("job-7-2 succeeded"), done.stderr


@pytest.mark.parametrize(
    ("begin", "start", "warned"),
    [("", "", True), ("trap : TERM;", "", False), ("trap '' TERM;", "", False), ("", "exec ", False)],
)
def test_a_batch_shell_that_takes_ftsrun_along_when_slurm_ends_the_job_is_named(
    job: Job, begin: str, start: str, warned: bool
) -> None:
    ftsrun, job.script = job.script, job.bin / "batch"
    job.command("batch", f'#!/bin/bash\nexport SLURM_TASK_PID=$$\n{begin} {start}{ftsrun} "$@"\nexit $?\n')
    code, output = job.run()
    assert code == 0 and "rank 0 ran" in output, output
    assert ("or put this line before it: trap : TERM" in output) == warned, output
