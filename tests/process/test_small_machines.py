"""Containers and small machines: what the system refuses costs one line, and where there is another way, no more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_run
import test_user_limits
from test_run import Start, Started

start = test_run.start
ROOT = Path(__file__).resolve().parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and namespaces need root")
USER, AS_USER = test_user_limits.USER, test_user_limits.AS_USER
FTSLURM = [sys.executable, "-m", "ftslurm.cli"]


def called(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an ftslurm command as a shell starts it after `script`."""
    command = ["bash", "-c", f'{script}\nexec "$@"', "bash", *FTSLURM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "command", [("nodes", "list"), ("health", "--quick"), ("doctor",), ("report",), ("status",), ("run", "x.py")]
)
def test_a_current_directory_that_is_gone_is_one_line_for_each_command(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "gone").mkdir()
    done = called(f"export PYTHONPATH={ROOT}; cd {tmp_path}/gone; rmdir {tmp_path}/gone", *command)
    assert (done.returncode, done.stderr) == (2, "ftslurm: the current directory is gone; cd to one that exists\n")


def test_a_command_without_file_descriptors_left_ends_with_one_line() -> None:
    done = called("ulimit -n 8", "health")
    assert done.returncode == 1
    assert done.stderr == "ftslurm: Too many open files; check ulimit -a and the limits of the job's cgroup\n"


QUESTIONS = [("nodes", "list"), ("health", "--list"), ("template", "single_node"), ("--version",), ("--help",)]


@pytest.mark.parametrize("command", QUESTIONS, ids="-".join)
def test_an_answer_that_cannot_be_written_is_an_error(command: tuple[str, ...]) -> None:
    done = called("exec >/dev/full", *command)
    assert (done.returncode, done.stderr) == (1, "ftslurm: the output cannot be written: No space left on device\n")
    assert called("exec >/dev/full 2>&1", *command).returncode == 1


@pytest.mark.parametrize("command", QUESTIONS, ids="-".join)
def test_a_reader_that_has_enough_of_an_answer_is_no_error(command: tuple[str, ...]) -> None:
    done = called("exec > >(true); wait $!", *command)
    assert (done.returncode, done.stderr) == (0, "")


STRANGE = "a\x1b[31mred\nline\u202ebidi\x07"


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--health", "off", "no-such.py"),
        ("run", "--health", "off", "--no-python", "true"),
        ("run", "--health", "off", "--max-restarts", "0", "--no-python", "false"),
        ("report",),
        ("report", "no-such"),
        ("status", "no-such"),
        ("nodes", "list"),
        ("nodes", "allow", "n1"),
        ("doctor", "--seconds", "0.5"),
        ("doctor", "missing"),
        ("health", "storage", "--path", "missing"),
    ],
)
def test_no_path_can_act_on_a_terminal_or_begin_a_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    place = tmp_path / STRANGE
    place.mkdir()
    environment = {**os.environ, "TMPDIR": f"{place}/missing", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*FTSLURM, *command], cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    output = done.stdout + done.stderr
    assert not {"\x1b", "\u202e", "\x07"} & set(output), output
    assert not [line for line in output.splitlines() if line.startswith("line")], output


@needs_root
@pytest.mark.parametrize("umask", ["0777", "0377", "0277", "0177"])
def test_a_umask_that_takes_the_users_own_rights_does_not_keep_a_run_from_its_files(tmp_path: Path, umask: str) -> None:
    (tmp_path / "train.py").write_text("import os; print(oct(os.umask(0)))")
    os.chown(tmp_path, USER, USER)
    for above in tmp_path.parents[:3]:
        above.chmod(above.stat().st_mode | 0o711)
    shell = (*AS_USER, "env", f"PYTHONPATH={ROOT}", "bash", "-c", f'umask {umask}; exec "$@"', "bash")
    run = Started(tmp_path, "--health", "off", "train.py", before=shell)
    assert run.wait() == 0, run.err
    # Others are kept out as before.
    assert "0o77" in run.out
    assert called(f"umask {umask}; cd {tmp_path}", "report").returncode == 0


# Stands for a seccomp profile, or a limit, in the processes of ftslurm itself.
REFUSES = """
import os, sys
refused = os.environ.get("REFUSED")
if refused and "ftslurm.cli" in sys.orig_argv:
    import threading, _socket
    def not_permitted(*arguments, **named):
        raise PermissionError(1, "Operation not permitted")
    def no_process():
        raise BlockingIOError(11, "Resource temporarily unavailable")
    def no_thread(*arguments, **named):
        raise RuntimeError("can't start new thread")
    class NoSocket(_socket.socket):
        __slots__ = ()
        __init__ = not_permitted
    if refused == "mkfifo":
        os.mkfifo = not_permitted
    elif refused == "socket":
        _socket.socket = NoSocket
    elif refused == "fork":
        os.fork = no_process
    elif refused == "setpgid":
        os.setpgid = not_permitted
    elif refused == "thread":
        threading._start_new_thread = no_thread
    elif refused == "prctl":
        import ftslurm.kernel
        ftslurm.kernel.become_subreaper = not_permitted
"""


def mounted(start_dir: Path, before: str, *options: str, **environment: str) -> Started:
    """Start a run in a mount namespace of its own, after a shell command there."""
    (start_dir / "train.py").write_text("print('ran')")
    shell = ("unshare", "--mount", "sh", "-ec", f'{before}; exec "$@"', "sh")
    return Started(start_dir, *options, "train.py", before=shell, **environment)


@needs_root
@pytest.mark.parametrize(
    "before",
    [
        "rm -rf there",
        "rmdir there; touch there",
        "mount -t tmpfs -o nr_inodes=1 none there",
        "mount -t tmpfs -o nr_inodes=5 none there",
        "mount -t tmpfs -o nr_inodes=18 none there",
        "mount -t tmpfs -o ro none there",
        "mount -t tmpfs -o size=4k none there",
    ],
    ids=["missing", "a file", "no inode", "few inodes", "inodes for few ranks", "read-only", "no space"],
)
def test_a_tmpdir_in_which_agent_and_ranks_cannot_work_is_named_and_another_place_is_used_on_a_node_that_stays_fit(
    tmp_path: Path, before: str
) -> None:
    (tmp_path / "there").mkdir()
    run = mounted(tmp_path, before, "--nproc-per-node", "8", TMPDIR=str(tmp_path / "there"))
    assert run.wait() == 0, run.err
    lines = [line for line in run.err.splitlines() if f"{tmp_path / 'there'}: " in line]
    assert len(lines) == 1 and lines[0].endswith("/tmp is used for temporary files instead"), run.err
    assert "Traceback" not in run.err and "unhealthy" not in run.err + run.out, run.err


@needs_root
@pytest.mark.parametrize("nodes", [("--nproc-per-node", "8"), ("--local-nodes", "2", "--nproc-per-node", "4")])
def test_the_report_of_a_run_whose_agents_gave_up_has_the_end_and_why_it_is_not_recorded(
    tmp_path: Path, nodes: tuple[str, ...]
) -> None:
    place = tmp_path / "there"
    place.mkdir()
    run = mounted(
        tmp_path, "mount -t tmpfs -o nr_inodes=30 none there", *nodes, "--health", "off", "--join-timeout", "1",
        FTSLURM_SHARED_DIR=str(place), TMPDIR=str(place),
    )  # fmt: skip
    assert run.wait() == 1, run.err
    assert "the shared directory has failed for 1 s: giving up" in run.err
    printed = " ".join(run.out.split())
    assert "is still running" not in printed
    assert "the run directory is not writable (No space left on device)" in printed, run.out


@needs_root
@pytest.mark.skipif(sys.executable.startswith("/tmp/"), reason="this Python is below /tmp, which the test hides")
def test_the_report_of_a_machine_without_any_place_for_temporary_files_is_one_line(tmp_path: Path) -> None:
    # Below /tmp, which is to be hidden, there is nothing left to write to.
    before = "mount -t tmpfs -o ro none /dev/shm; mount -t tmpfs -o ro none /tmp; cd /"
    run = Started(
        tmp_path,
        "--health",
        "off",
        "--no-python",
        "true",
        before=("unshare", "--mount", "sh", "-ec", f'{before}; exec "$@"', "sh"),
    )
    assert run.wait() == 2
    assert len(run.err.splitlines()) == 1
    assert "no place for temporary files: /tmp: Read-only file system; /dev/shm: Read-only file system" in run.err


@needs_root
@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        (("unshare", "--pid", "--fork"), "/proc is that of another PID namespace"),
        (
            ("unshare", "--pid", "--fork", "--mount", "sh", "-c", 'mount -t tmpfs none /proc; "$@"', "sh"),
            "there is no /proc",
        ),
    ],
    ids=["foreign", "none"],
)
def test_a_proc_that_does_not_show_this_process_is_refused_before_anything_is_killed(
    tmp_path: Path, shell: tuple[str, ...], expected: str
) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    run = Started(tmp_path, "--health", "off", "train.py", before=shell)
    assert run.wait() == 2
    assert expected in run.err and len(run.err.splitlines()) == 1, run.err


@pytest.mark.parametrize(
    ("refused", "code", "line"),
    [
        ("mkfifo", 0, "no named pipe can be made on this node: torch's timers are not received"),
        ("socket", 1, "an agent cannot run here: ftslurm/agent/ports.py"),
        ("thread", 1, "no more threads can be started here (ulimit -u, ulimit -v, the cgroup's pids.max)"),
        ("fork", 2, "no process can be started for the agent"),
        ("prctl", 2, "cannot supervise processes here: "),
    ],
)
def test_what_the_system_refuses_is_one_line(start: Start, tmp_path: Path, refused: str, code: int, line: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(REFUSES)
    path = os.pathsep.join((str(tmp_path / "site"), str(Path(__file__).parents[2])))
    run = start("print('ran')", "--health", "off", "--max-restarts", "0", REFUSED=refused, PYTHONPATH=path)
    assert run.wait() == code, run.err
    # A line for each part of the agent that does without: none has a thread.
    printed = [each for each in run.err.splitlines() if line in each]
    assert len(printed) == (2 if refused == "thread" else 1), run.err
    assert "Traceback" not in run.err + run.out and "defect" not in run.err + run.out


def test_a_process_group_of_its_own_is_nothing_that_an_agent_must_have(start: Start, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(REFUSES)
    path = os.pathsep.join((str(tmp_path / "site"), str(ROOT)))
    run = start("print('ran')", "--health", "off", REFUSED="setpgid", PYTHONPATH=path)
    assert run.wait() == 0, run.err
    assert "Traceback" not in run.err


@needs_root
def test_a_machine_without_dev_null_is_named_as_such(tmp_path: Path) -> None:
    run = mounted(tmp_path, "mount -t tmpfs none /dev", "--health", "off", "--max-restarts", "0")
    assert run.wait() == 1
    assert "cannot start a worker: /dev/null: No such file or directory" in run.err, run.err


@needs_root
@pytest.mark.parametrize("command", ["mount -t tmpfs none /proc", "umount -l /proc"])
def test_the_doctor_names_a_proc_that_is_missing_and_finds_nothing_wrong_with_the_directory(
    tmp_path: Path, command: str
) -> None:
    doctor = [*FTSLURM, "doctor", str(tmp_path), "--seconds", "0.5"]
    shell = ["unshare", "--mount", "sh", "-ec", f'{command}; exec "$@"', "sh", *doctor]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout.count(" FAIL ") == 1 and "there is no /proc" in done.stdout, done.stdout
    assert "mount -t proc proc /proc" in done.stdout and "one winner each" in done.stdout, done.stdout
    assert done.stderr == ""
