"""One agent per run and node, one writer at a time: locks that end with their holder, between real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_run import FOREVER, Start, Started, start, up  # noqa: F401

from ftslurm import host_lock
from ftslurm.agent.preflight import only_launcher
from ftslurm.host_lock import CommandLock, HostLock, LockHeld, holder_of, lock_file
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.terminal import UsageError

HOLD = """
import sys, time
from ftslurm import host_lock
host_lock.BASES = (sys.argv[1],)
lock = host_lock.HostLock("test", "/run/a")
if "child" in sys.argv:
    import subprocess
    subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_lock, "BASES", (str(tmp_path),))
    return tmp_path


def holder(base: Path, *more: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(base), *more], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_the_error_of_a_second_holder_names_the_first_process(base: Path) -> None:
    first = holder(base)
    try:
        with pytest.raises(LockHeld, match=f"process {first.pid} on this host .*{sys.executable}"):
            HostLock("test", "/run/a")
        HostLock("test", "/run/b").release()
        HostLock("other", "/run/a").release()
    finally:
        first.kill()
        first.communicate()
    HostLock("test", "/run/a").release()


def test_the_lock_ends_with_a_killed_holder_whose_children_live_on(base: Path) -> None:
    first = holder(base, "child")
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    first.kill()
    first.communicate()
    assert len(children) == 1
    try:
        HostLock("test", "/run/a").release()
    finally:
        os.kill(int(children[0]), signal.SIGKILL)


def test_a_command_waits_for_the_other_one_and_then_gives_up(base: Path) -> None:
    first = holder(base)
    began = time.monotonic()
    with pytest.raises(LockHeld, match=f"process {first.pid} "), CommandLock("test", "/run/a", patience_s=0.5):
        raise AssertionError("two at a time")
    assert 0.4 < time.monotonic() - began < 10
    subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {first.pid}"])
    with CommandLock("test", "/run/a", patience_s=30), pytest.raises(LockHeld, match=f"process {os.getpid()} "):
        HostLock("test", "/run/a")
    HostLock("test", "/run/a").release()
    first.communicate()


def test_without_a_place_for_locks_everything_works_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_lock, "BASES", (str(tmp_path / "none"),))
    assert lock_file("test", "/run/a") is None
    HostLock("test", "/run/a").release()
    with CommandLock("test", "/run/a"):
        HostLock("test", "/run/a").release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_not_used(base: Path) -> None:
    directory = base / f"ftslurm-{os.geteuid()}-locks"
    directory.mkdir()
    os.chown(directory, 12345, -1)
    assert lock_file("test", "/run/a") is None


def test_a_lock_without_a_holder_has_no_known_holder(base: Path) -> None:
    HostLock("test", "/run/a").release()
    path = lock_file("test", "/run/a")
    assert path is not None and holder_of(path) == "another process on this host"


def test_a_second_launcher_is_named_as_such_and_a_long_command_is_cut_visibly(
    base: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host_lock, "COMMAND_SHOWN", 9)
    run = RunDirectory(str(tmp_path / "run"))
    lock = only_launcher(run)
    with pytest.raises(UsageError) as refused:
        only_launcher(run)
    lock.release()
    message = str(refused.value)
    assert message.startswith(f"a launcher of the run {run.root} runs on this host already: process {os.getpid()} ")
    assert "...); wait for it" in message


def test_a_second_agent_of_a_run_on_the_node_is_refused_and_the_first_goes_on(start: Start) -> None:  # noqa: F811
    run = start(FOREVER, "--rdzv-id", "mine")
    up(run, 1)
    second = Started(run.directory, "--rdzv-id", "mine", "train.py", PWD_MARK=str(run.directory))
    assert second.wait() == 2
    assert "an agent of the run " in second.err and "runs on node " in second.err
    assert "process " in second.err and "choose another --rdzv-id" in second.err
    assert "Traceback" not in second.err
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGTERM)
    run.process.wait(60)


def test_a_second_launcher_of_a_run_is_refused_before_it_starts_agents(start: Start) -> None:  # noqa: F811
    run = start(FOREVER, "--rdzv-id", "mine", "--local-nodes", "2")
    up(run, 2)
    second = Started(run.directory, "--rdzv-id", "mine", "--local-nodes", "2", "train.py", PWD_MARK=str(run.directory))
    assert second.wait() == 2
    assert second.err.count("a launcher of the run ") == 1
    assert run.process.poll() is None


def test_a_killed_agents_lock_does_not_keep_its_replacement_out(start: Start) -> None:  # noqa: F811
    run = start(FOREVER, "--rdzv-id", "mine")
    up(run, 1)
    (run.directory / "up0").unlink()
    # By its record: its guardian inherits orphans, and may have several children for a moment.
    (record,) = (run.run_dir / "nodes").glob("*.json")
    os.kill(int(json.loads(record.read_text())["pid"]), signal.SIGKILL)
    up(run, 1)
    assert "a new one starts" in (run.directory / "err").read_text()


def test_one_command_at_a_time_saves_a_report_or_excludes_a_node(start: Start) -> None:  # noqa: F811
    run = start("print('done')")
    assert run.wait() == 0
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "FTSLURM"))}

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = "from ftslurm.host_lock import CommandLock\nCommandLock.__init__.__defaults__ = (0.2,)\n"
        program += "from ftslurm.cli import main; raise SystemExit(main())"
        return subprocess.run(
            [sys.executable, "-c", program, *arguments], cwd=run.directory, env=clean, capture_output=True, text=True
        )

    lock = HostLock("report", str(run.run_dir))
    done = command("report", "--save", str(run.run_dir))
    assert f"not saved in {run.run_dir}: process {os.getpid()} on this host" in done.stderr
    lock.release()
    assert "not saved" not in command("report", "--save", str(run.run_dir)).stderr
    directory = run.directory / "excluded"
    lock = HostLock("nodes", str(directory))
    exclude = ("nodes", "exclude", "--exclude-dir", str(directory), "n1")
    done = command(*exclude)
    assert (done.returncode, directory.exists()) == (1, False)
    assert f"{directory}: process {os.getpid()} on this host" in done.stderr and "nothing was changed" in done.stderr
    lock.release()
    done = command(*exclude)
    assert done.returncode == 0, done.stderr
