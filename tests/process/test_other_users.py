"""Directories that other users share: what they put there is neither followed, nor believed, nor waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_run
from test_run import Start

from ftslurm.sharedfs.rundir import exposed

start = test_run.start
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "print('a line of the rank', flush=True)"
OTHER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def as_other(command: str, cwd: Path) -> None:
    """Run a shell command as another user, without further rights."""
    drop = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]
    subprocess.run([*drop, "sh", "-ec", command], cwd=cwd, check=True)


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A directory that other users can get at, below pytest's own, which they cannot."""
    above = tmp_path
    while above.stat().st_uid == os.geteuid() and above != Path("/tmp"):
        above.chmod(above.stat().st_mode | 0o055)
        above = above.parent
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    return shared


@needs_root
@pytest.mark.parametrize("level", ["mine", "mine/rounds", "mine/rounds/000001", "mine/rounds/000001/ranks/00000"])
def test_a_log_directory_that_another_user_has_made_is_refused_in_one_line(
    start: Start, open_path: Path, level: str
) -> None:
    as_other(f"umask 0; mkdir -p {level}", open_path)
    run = start(SCRIPT, "--health", "off", "--rdzv-id", "mine", "--log-dir", str(open_path))
    assert run.wait() != 0
    assert f"it belongs to uid {OTHER}" in run.err and "Traceback" not in run.err
    assert not [path for path in open_path.rglob("*") if path.is_file()]


@needs_root
def test_a_link_in_the_place_of_a_log_directory_is_not_followed(start: Start, open_path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(0o700)
    as_other(f"ln -s {victim} mine", open_path)
    run = start(SCRIPT, "--health", "off", "--rdzv-id", "mine", "--log-dir", str(open_path))
    assert run.wait() == 2
    assert "a symbolic link, which is not followed" in run.err
    assert not list(victim.iterdir())


@pytest.mark.parametrize("trap", ["link", "dangling", "hard link", "fifo", "fifo with a reader", "directory", "socket"])
def test_nothing_but_a_plain_file_of_its_own_takes_a_ranks_output(start: Start, tmp_path: Path, trap: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    logs = tmp_path / "logs" / "mine" / "rounds" / "000001" / "ranks" / "00000"
    logs.mkdir(parents=True)
    place = logs / "stdout.log"
    reader = -1
    if trap == "link":
        place.symlink_to(victim)
    elif trap == "dangling":
        place.symlink_to(tmp_path / "made")
    elif trap == "hard link":
        place.hardlink_to(victim)
    elif trap == "directory":
        place.mkdir()
    elif trap == "socket":
        os.mknod(place, 0o140600)
    else:
        os.mkfifo(place)
        reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK) if trap == "fifo with a reader" else -1
    try:
        run = start(
            SCRIPT, "--health", "off", "--rdzv-id", "mine", "--log-dir", str(tmp_path / "logs"), "--max-restarts", "0"
        )
        assert run.wait() == 1
    finally:
        if reader >= 0:
            os.close(reader)
    assert (
        f"cannot open the log file {place}" in (run.run_dir / "report.txt").read_text().replace("\n  ", " ") + run.err
    )
    assert victim.read_text() == "precious"
    assert not (tmp_path / "made").exists()


def test_a_link_in_the_place_of_a_run_directory_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "ftslurm-runs").mkdir()
    (tmp_path / "ftslurm-runs" / "mine").symlink_to(tmp_path / "elsewhere")
    run = start(SCRIPT, "--health", "off", "--rdzv-id", "mine")
    assert run.wait() == 2
    assert "a symbolic link, which is not followed" in run.err
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("agents", [(), ("--local-nodes", "2")], ids=["one agent", "two agents"])
def test_a_directory_in_which_others_may_rename_the_run_is_named_once(
    start: Start, tmp_path: Path, agents: tuple[str, ...]
) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "team").chmod(0o777)
    run = start(
        SCRIPT, "--health", "off", "--rdzv-id", "mine", "--shared-dir", str(tmp_path / "team" / "runs"), *agents
    )
    assert run.wait() == 0
    line = f"any user may rename it, because {tmp_path / 'team'} is writable without the sticky bit"
    assert run.err.count(line) == 1
    (tmp_path / "team").chmod(0o1777)
    again = start(
        SCRIPT, "--health", "off", "--rdzv-id", "again", "--shared-dir", str(tmp_path / "team" / "runs"), *agents
    )
    assert again.wait() == 0 and "sticky" not in again.err


@needs_root
def test_a_group_shares_a_directory_of_runs_in_which_each_user_can_change_only_their_own(
    open_path: Path, tmp_path: Path
) -> None:
    """The first user of a setgid project directory locks no other user out."""
    group = 54321
    project = open_path / "project"
    project.mkdir()
    os.chown(project, -1, group)
    project.chmod(0o2770)
    program = f"""
import os, sys
sys.path[:0] = {[path for path in sys.path if "site-packages" in path] + [str(Path(__file__).parents[2])]!r}
from ftslurm.nodes.exclude import Exclusions, folder
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.rundir import open_run
run = open_run("{project}/ftslurm-runs/" + sys.argv[1], "owner", 1, "0.1.0")
nodes = Exclusions(PosixFileSystem(owner=os.geteuid()), folder(run.root))
nodes.exclude("n1", "excluded by " + sys.argv[1], "me", None, 1)
assert nodes.known("n1").reason == "excluded by " + sys.argv[1], nodes.problems
"""
    for user, name in ((1001, "first"), (1002, "second")):
        drop = ["setpriv", f"--reuid={user}", f"--regid={user}", f"--groups={group}"]
        subprocess.run([*drop, _python(drop), "-c", program, name], cwd=project, check=True)
    runs = project / "ftslurm-runs"
    assert runs.stat().st_mode & 0o7777 == 0o3770 and runs.stat().st_gid == group
    for name, user in (("first", 1001), ("second", 1002)):
        assert ((runs / name).stat().st_uid, (runs / name).stat().st_mode & 0o077) == (user, 0)
    drop = ["setpriv", "--reuid=1002", "--regid=1002", f"--groups={group}"]
    for deed in ("mv first stolen", "rm -r first", "touch first/x", "ls first"):
        assert subprocess.run([*drop, "sh", "-c", deed], cwd=runs, capture_output=True).returncode != 0
    refused = subprocess.run(
        [*drop, _python(drop), "-c", program, "first"], cwd=project, capture_output=True, text=True
    )
    assert "it belongs to uid 1001, you are uid 1002; choose another --rdzv-id" in refused.stderr


@needs_root
def test_the_owner_of_the_directory_of_runs_or_of_a_link_above_it_is_named(tmp_path: Path) -> None:
    theirs, stranger = tmp_path / "theirs", 1001
    theirs.mkdir()
    os.chown(theirs, stranger, stranger)
    theirs.chmod(0o1777)
    warning = exposed(str(theirs / "run")) or ""
    assert f"uid {stranger} may rename it, because {theirs} belongs to it" in warning
    (tmp_path / "mine").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "mine")
    os.chown(link, stranger, stranger, follow_symlinks=False)
    assert f"{link} is a link that belongs to it" in (exposed(str(link / "run")) or "")
    os.chown(link, os.geteuid(), -1, follow_symlinks=False)
    assert "theirs" not in (exposed(str(link / "run")) or "")


def _python(drop: list[str]) -> str:
    """A Python that the other user may run."""
    for python in (sys.executable, "/usr/bin/python3"):
        test = "import sys, json; assert sys.version_info >= (3, 10)"
        try:
            if subprocess.run([*drop, python, "-c", test], capture_output=True).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("no Python that another user may run")


def test_directories_of_a_user_alone_are_made_for_that_user_alone(start: Start, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    run = start(SCRIPT, "--health", "off", "--rdzv-id", "mine", "--log-dir", str(tmp_path / "logs"))
    assert run.wait() == 0, run.err
    for directory in ("ftslurm-runs", "ftslurm-runs/mine", "logs", "logs/mine"):
        assert (tmp_path / directory).stat().st_mode & 0o7777 == 0o700


@needs_root
@pytest.mark.parametrize("command", ["health", "doctor"])
@pytest.mark.parametrize("make", ["mkdir", "mkdir -m 777", "ln -s ../victim"])
def test_nodes_do_not_meet_in_a_directory_that_another_user_has_made(
    open_path: Path, tmp_path: Path, command: str, make: str
) -> None:
    from ftslurm.health.node_context import node_context

    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
    step = {"JOB_ID": "77", "STEP_ID": "3", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "STEP_NODELIST": "n[0-1]"}
    environment |= {f"SLURM_{k}": v for k, v in step.items()} | {"SLURMD_NODENAME": "n0", "SLURM_NNODES": "2"}
    environment |= {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "2"}
    stand = node_context(environment, "n0", "x", "")
    assert stand is not None and stand.expected == ("n0", "n1")
    victim = tmp_path / "victim"
    (victim / "joined").mkdir(parents=True)
    (victim / "joined" / "n0.json").write_text("precious")
    tmp_path.chmod(0o755)
    name = f".ftslurm-{command}-{stand.session}"
    as_other(f"{make} {name}", open_path)
    if make == "mkdir -m 777":
        # What the victim hands in, and removes in the end, would be elsewhere.
        as_other(f"ln -s {victim}/joined {name}/joined", open_path)
    options = ["--shared-dir", str(open_path), "host"] if command == "health" else [str(open_path), "--seconds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "ftslurm.cli", command, *options, "--wait", "1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    printed = " ".join((done.stdout + done.stderr).split())
    what = "a directory" if "mkdir" in make else "a symbolic link"
    assert f"{what} of uid {OTHER} is in the place of the session's directory" in printed
    assert (victim / "joined" / "n0.json").read_text() == "precious"
    assert sorted(path.name for path in victim.rglob("*")) == ["joined", "n0.json"]
    assert "Traceback" not in printed


@needs_root
@pytest.mark.parametrize("action", ["allow", "exclude"])
def test_a_directory_of_excluded_nodes_that_is_another_users_is_named_and_nothing_in_it_is_changed(
    open_path: Path, action: str
) -> None:
    place = open_path / f"excluded-{os.geteuid()}"
    as_other(f"mkdir -p {place}/strikes; echo theirs | tee {place}/n1.json > {place}/strikes/n1.json", open_path)
    command = [sys.executable, "-m", "ftslurm.cli", "nodes", action, "n1", "n2", "--shared-dir", str(open_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        f"{place}: it belongs to uid {OTHER}, you are uid 0; nothing was changed; choose your own directory"
        in done.stderr
    )
    assert {path.name for path in place.rglob("*")} == {"n1.json", "strikes"}
    assert (place / "n1.json").read_text() == "theirs\n"


IN_STEP = {
    "SLURM_JOB_ID": "25", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURMD_NODENAME": "n1", "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "2",
    "SLURM_NNODES": "2",
}  # fmt: skip


@needs_root
@pytest.mark.parametrize(
    ("make", "what"),
    [
        ("mkdir -m 755", "a directory"),
        ("mkdir -m 777", "a directory"),
        ("mkfifo", "a named pipe"),
        ("touch", "a file"),
        ("ln -s /nowhere", "a symbolic link"),
        ("ln -s /", "a symbolic link"),
    ],
)
@pytest.mark.parametrize("command", ["doctor", "health"])
def test_what_another_user_has_put_where_the_nodes_meet_is_named_with_its_place_and_what_to_do(
    open_path: Path, make: str, what: str, command: str
) -> None:
    place = open_path / f".ftslurm-{command}-25.0.0"
    as_other(f"{make} {place}", open_path)
    options = ("host", "--shared-dir") if command == "health" else ("--seconds", "0.5")
    done = subprocess.run(
        [sys.executable, "-m", "ftslurm.cli", command, *options, str(open_path), "--wait", "0.5"],
        env={**os.environ, **IN_STEP}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"{place}: {what} of uid {OTHER} is in the place of the session's directory (you are uid 0)" in output
    assert "have that user or root remove it" in output or command == "health"
    assert "choose another directory" not in output and "Traceback" not in output
    assert os.path.lexists(place)


@needs_root
@pytest.mark.parametrize("command", ["report", "status"])
@pytest.mark.parametrize("argument", ["ftslurm-runs/job-7", "7", "job-7"])
def test_a_run_that_may_not_be_read_is_reported_as_there(open_path: Path, command: str, argument: str) -> None:
    run_dir = open_path / "ftslurm-runs" / "job-7"
    (run_dir / "state").mkdir(parents=True)
    run_dir.parent.chmod(0o755)
    run_dir.chmod(0o700)
    drop = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "env", f"PYTHONPATH={ROOT}"]
    # The system's own Python: this one may lie where only root can read.
    python = [*drop, "/usr/bin/python3", "-B"]
    if subprocess.run([*python, "-c", "import ftslurm.cli"], cwd="/", check=False, capture_output=True).returncode:
        pytest.skip("another user cannot run ftslurm from here")
    done = subprocess.run(
        [*python, "-m", "ftslurm.cli", command, argument],
        cwd=open_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done
    assert f"job-7 belongs to user id 0, you are {OTHER}, and is not readable" in done.stderr, done


@needs_root
def test_a_link_to_a_run_that_another_user_left_beside_the_jobs_output_is_not_followed(
    start: Start, open_path: Path
) -> None:
    run = start(SCRIPT, "--health", "off", "--rdzv-id", "mine", "--shared-dir", str(open_path / "runs"))
    assert run.wait() == 0, run.err
    os.chmod(open_path / "runs", 0o755)
    as_other(f"ln -s {open_path}/runs/mine slurm-14.ftslurm", open_path)
    status = [sys.executable, "-m", "ftslurm.cli", "status", "14"]
    done = subprocess.run(status, cwd=open_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done
    (open_path / "slurm-14.ftslurm").unlink()
    (open_path / "slurm-14.ftslurm").symlink_to(open_path / "runs" / "mine")
    done = subprocess.run(status, cwd=open_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "mine" in done.stdout, done
