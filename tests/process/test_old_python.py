"""Pythons and kernels that lack what supervising processes needs: an old libc's Python works, a refusal is one line."""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import test_run
from test_run import FOREVER, Start, Started, up

start = test_run.start

# As conda's Python and older standalone builds are: their libc and kernel headers have none of this.
STRIPPED = """
import os, signal
for module, names in (
    (os, "pidfd_open memfd_create eventfd eventfd_read eventfd_write copy_file_range getrandom preadv pwritev P_PIDFD"),
    (signal, "pidfd_send_signal"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
whole = os.posix_spawn
def posix_spawn(*arguments, setsid=False, **options):
    if setsid:
        raise NotImplementedError("posix_spawn: setsid unavailable on this platform")
    return whole(*arguments, **options)
os.posix_spawn = posix_spawn
"""


@pytest.fixture
def old(start: Start, tmp_path: Path) -> Callable[..., Started]:
    """Start `ftslurm run` with a Python that was built against an old libc."""
    place = tmp_path / "site"
    place.mkdir()
    (place / "sitecustomize.py").write_text(STRIPPED)

    def begin(script: str, *arguments: str) -> Started:
        return start(script, *arguments, PYTHONPATH=str(place))

    return begin


def test_a_job_fails_restarts_and_succeeds_and_each_rank_leads_its_session(old: Callable[..., Started]) -> None:
    script = """
import os, signal
assert not hasattr(os, "pidfd_open")
assert os.getsid(0) == os.getpid() == os.getpgrp()
assert signal.getsignal(signal.SIGTTOU) == signal.SIG_DFL
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("once")
"""
    run = old(script, "--nproc-per-node", "2", "--max-restarts", "1")
    assert run.wait() == 0, run.err
    assert "ValueError: once" in run.out


def test_ranks_are_stopped_with_grace_and_leave_nothing(old: Callable[..., Started]) -> None:
    script = FOREVER.replace(
        "import os,", "import signal; signal.signal(15, lambda *_: (open('saved', 'w').close(), exit(0)))\nimport os,"
    )
    run = old(script, "--nproc-per-node", "1")
    up(run, 1)
    run.process.terminate()
    assert run.wait() == 143, run.err
    assert (run.directory / "saved").exists()
    assert run.marked() == []


def test_an_agent_that_is_killed_leaves_nothing_and_is_replaced(old: Callable[..., Started]) -> None:
    run = old(FOREVER, "--nproc-per-node", "2")
    up(run, 2)
    before = {pid for pid, _ in run.marked()}
    agent = next(int(child) for child in _children(run.process.pid))
    os.kill(agent, signal.SIGKILL)
    run.until(lambda: "round 2: 2 ranks" in run.err)
    assert not before & {pid for pid, _ in run.marked()} - {run.process.pid}
    run.process.terminate()
    assert run.wait() == 143, run.err
    assert run.marked() == []


def test_the_stacks_of_ranks_that_hang_are_collected(old: Callable[..., Started]) -> None:
    script = """
import ftslurm, os, subprocess, sys, time
def fetch():
    ftslurm.heartbeat()
    time.sleep(600)
fetch()
"""
    run = old(script, "--nproc-per-node", "2", "--heartbeat-timeout", "1", "--max-restarts", "0")
    assert run.wait() == 1, run.err
    texts = [path.read_text() for path in sorted(run.run_dir.glob("rounds/000001/ranks/*/stacks.txt"))]
    assert len(texts) == 2
    assert all("in fetch" in text for text in texts)


def test_health_checks_run_with_commands_of_the_users_own(old: Callable[..., Started]) -> None:
    run = old("pass", "--health-command", "echo the disk is slow; exit 1")
    assert run.wait() == 0, run.err
    assert "the disk is slow" in run.err
    assert "check run failed" not in run.err


def test_a_spares_standby_workers_become_ranks_and_what_they_printed_is_kept(
    old: Callable[..., Started], tmp_path: Path
) -> None:
    (tmp_path / "chatty.py").write_text("print('imported ahead', flush=True)")
    script = """
import os, sys, time
open(f"up{os.environ['RANK']}.{os.environ['FTSLURM_ROUND']}", "w").close()
while not os.path.exists("done"):
    time.sleep(0.02)
print("chatty" in sys.modules)
"""
    run = old(
        script, "--local-nodes", "2", "--nnodes", "1", "--warm-imports", "chatty", "--max-restarts", "1",
        "--redirects", "3", "--node-timeout", "5",
    )  # fmt: skip
    run.until(lambda: "standby workers are ready" in run.err and (run.directory / "up0.1").exists())
    node = json.loads(next(run.run_dir.glob("rounds/000001/nodes/*.json")).read_text())
    os.kill(test_run.guardian_of(node["agent_pid"]), signal.SIGKILL)
    run.until(lambda: (run.directory / "up0.2").exists())
    (run.directory / "done").touch()
    assert run.wait() == 0, run.err
    assert (run.run_dir / "rounds/000002/ranks/00000/stdout.log").read_text() == "imported ahead\nTrue\n"


# What the kernel, or a container's seccomp filter, refuses

REFUSE = """
import ctypes, errno, os, struct, sys
number, error = int(sys.argv[1]), int(sys.argv[2])
def instruction(code, jt, jf, k):
    return struct.pack("HBBI", code, jt, jf, k)
program = b"".join((
    instruction(0x20, 0, 0, 0),                   # load the number of the system call
    instruction(0x15, 0, 1, number),              # the one that is refused
    instruction(0x06, 0, 0, 0x00050000 | error),  # SECCOMP_RET_ERRNO
    instruction(0x06, 0, 0, 0x7FFF0000),          # SECCOMP_RET_ALLOW
))
text = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter, 0, 0):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
    sys.exit(77)
os.execv(sys.argv[3], sys.argv[3:])
"""
NUMBERS = {
    "pidfd_open": 434,
    "pidfd_send_signal": 424,
    "prctl": {"x86_64": 157, "aarch64": 167}.get(platform.machine()),
}


@pytest.mark.parametrize("python", ["new", "old"])
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("call", NUMBERS)
def test_what_the_kernel_refuses_is_one_line_and_code_2_and_nothing_is_left(
    tmp_path: Path, call: str, error: str, python: str
) -> None:
    number = NUMBERS[call]
    if number is None:
        pytest.skip(f"the number of prctl on {platform.machine()} is not known here")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(STRIPPED if python == "old" else "")
    refused_is_one_line(
        tmp_path, call, sys.executable, "-c", REFUSE, str(number), str(getattr(errno, error)),
        PYTHONPATH=str(site),
    )  # fmt: skip


def test_a_python_without_ctypes_is_one_line_and_code_2_and_nothing_is_left(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; sys.modules['_ctypes'] = None")
    refused_is_one_line(tmp_path, "it lacks ctypes", PYTHONPATH=str(site))


def refused_is_one_line(tmp_path: Path, expected: str, *before: str, **environment: str) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "train.py").write_text("open('started', 'w')")
    run = Started(
        tmp_path, "--local-nodes", "2", "train.py", before=before, TMPDIR=str(scratch), PWD_MARK=str(tmp_path),
        **environment,
    )  # fmt: skip
    code = run.wait()
    if code == 77:
        pytest.skip("seccomp filters cannot be installed here")
    assert code == 2, run.err
    assert len(run.err.splitlines()) == 1, run.err
    assert expected in run.err and "expected Linux 5.3" in run.err
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "started").exists() and not (tmp_path / "ftslurm-runs").exists()
    assert run.marked() == []


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
