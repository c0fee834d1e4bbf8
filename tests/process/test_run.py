"""`ftslurm run` without Slurm: real agents and workers, real signals and murders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "ftslurm.cli", "run"]


def guardian_of(agent: int) -> int:
    """Return the pid of an agent's guardian, whose death is the node's; a killed agent is replaced."""
    return int(Path(f"/proc/{agent}/stat").read_text().rsplit(") ")[1].split()[1])


class Started:
    """An `ftslurm run` in the background."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        before: tuple[str, ...] = (),
        python: str = sys.executable,
        **environment: str,
    ) -> None:
        self.directory = directory
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
        with (directory / "out").open("w") as out, (directory / "err").open("w") as err:
            self.process = subprocess.Popen(
                [*before, python, *RUN[1:], *arguments],
                cwd=directory,
                env={**clean, **environment},
                stdout=out,
                stderr=err,
            )

    def wait(self, seconds: float = 60) -> int:
        return self.process.wait(seconds)

    @property
    def out(self) -> str:
        return (self.directory / "out").read_text()

    @property
    def err(self) -> str:
        return (self.directory / "err").read_text()

    @property
    def run_dir(self) -> Path:
        # Beside the run there may be the nodes that are excluded.
        return next(
            path for path in (self.directory / "ftslurm-runs").iterdir() if not path.name.startswith("excluded")
        )

    def until(self, true: Callable[[], bool], seconds: float = 30) -> None:
        """Wait for real processes to get somewhere; the bound is for a hang, not a measurement."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"not within {seconds} s:\n{self.out}\n{self.err}"
            time.sleep(0.02)

    def marked(self) -> list[tuple[int, str]]:
        """Return the living processes that this run started: pid and command line."""
        mark = f"PWD_MARK={self.directory}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    if line:
                        found.append((int(entry.name), line))
            except OSError:
                continue
        return found


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `ftslurm run` with a script's text; whatever is left of it at the end is killed."""
    runs: list[Started] = []

    def start(script: str, *arguments: str, after: tuple[str, ...] = (), **environment: str) -> Started:
        (tmp_path / "train.py").write_text(script)
        run = Started(tmp_path, *arguments, "train.py", *after, PWD_MARK=str(tmp_path), **environment)
        runs.append(run)
        return run

    yield start
    for run in runs:
        for pid, _ in run.marked():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        run.process.wait()


FOREVER = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(f"up{os.environ['RANK']}", "w").close()
time.sleep(600)
"""


def up(run: Started, ranks: int) -> None:
    run.until(lambda: sum((run.directory / f"up{r}").exists() for r in range(ranks)) == ranks)


def test_success_is_exit_code_0_and_the_first_rank_is_shown(start: Start) -> None:
    run = start("import os; print('rank', os.environ['RANK'])", "--nproc-per-node", "2")
    assert run.wait() == 0, run.err
    assert "[rank 0] rank 0" in run.out
    assert "rank 1" not in run.out


def test_arguments_after_the_script_reach_it_untouched(start: Start) -> None:
    given = ("--max-restarts", "--", "-x", "--nproc-per-node=7", "", "a b")
    run = start("import sys; print(sys.argv)", after=given)
    assert run.wait() == 0, run.err
    assert f"[rank 0] {['train.py', *given]}" in run.out


def test_a_failing_job_is_exit_code_1_and_every_restart_was_used(start: Start) -> None:
    script = "import ftslurm, os; ftslurm.progress(1); raise ValueError('round ' + os.environ['FTSLURM_ROUND'])"
    run = start(script, "--max-restarts", "2")
    assert run.wait() == 1
    assert "ValueError: round 3" in run.out
    assert "all 2 restarts are used up" in run.out + run.err


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError at start"),
        ("def f(:", "SyntaxError at start"),
        ("import argparse; argparse.ArgumentParser().parse_args(['-x'])", "the script refused its arguments"),
    ],
)
def test_a_job_that_cannot_start_is_neither_restarted_nor_requeued(start: Start, script: str, why: str) -> None:
    run = start(script, "--local-nodes", "2", "--max-restarts", "5")
    assert run.wait() == 78, run.out + run.err
    assert f"it would fail again: {why}" in run.err
    assert len(list(run.run_dir.glob("rounds/*"))) == 1


def test_a_rank_that_fails_at_start_in_the_same_way_twice_ends_the_job(start: Start) -> None:
    run = start("raise ValueError('no such model')", "--max-restarts", "5")
    assert run.wait() == 1
    assert "it would fail again: the same at start in rounds 1 and 2" in run.out + run.err
    assert len(list(run.run_dir.glob("rounds/*"))) == 2


def test_a_worker_that_ends_with_78_is_not_restarted(start: Start) -> None:
    run = start("import sys; sys.exit(78)", "--max-restarts", "5")
    assert run.wait() == 78
    assert len(list(run.run_dir.glob("rounds/*"))) == 1


def test_tee_shows_the_chosen_local_ranks_and_redirects_keeps_the_rest(start: Start) -> None:
    script = "import os, sys; r = os.environ['RANK']; print('out', r); print('err', r, file=sys.stderr)"
    run = start(script, "--nproc-per-node", "3", "--tee", "1:3,2:1", "--redirects", "3")
    assert run.wait() == 0, run.err
    assert sorted(line for line in run.out.splitlines() if line.startswith("[")) == ["[rank 1] out 1", "[rank 2] out 2"]
    assert "[rank 1] err 1" in run.err
    assert "err 2" not in run.err
    ranks = run.run_dir / "rounds/000001/ranks"
    assert [(ranks / f"{r:05d}/{s}.log").read_text() for r in range(3) for s in ("stdout", "stderr")] == [
        f"{s} {r}\n" for r in range(3) for s in ("out", "err")
    ]


def test_torchruns_filters_prefix_and_local_rank_have_torchruns_meaning(start: Start) -> None:
    script = "import os, sys; print('out', sys.argv[1:]); print('keep', file=sys.stderr); print('x', file=sys.stderr)"
    options = [
        "--nproc-per-node",
        "3",
        "-r",
        "0",
        "-t",
        "3",
        "--local-ranks-filter",
        "0,2",
        "--duplicate-stderr-filters",
        "keep",
    ]
    template = "[${role_name}${local_rank}]:"
    after = ("${local_rank}", "$$x")
    run = start(script, *options, after=after, TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=template)
    assert run.wait() == 0, run.err
    assert sorted(line for line in run.out.splitlines() if line.startswith("[")) == [
        f"[default{rank}]:out ['{rank}', '$x']" for rank in (0, 2)
    ]
    ranks = run.run_dir / "rounds/000001/ranks"
    copied = sorted((ranks / "00000/filtered_stderr.log").read_text().splitlines())
    assert copied == ["[default0]:keep", "[default2]:keep"]
    assert (ranks / "00001/stdout.log").read_text() == "out ['1', '$x']\n"


def test_redirects_0_leaves_the_output_where_it_is(start: Start) -> None:
    run = start("print('plain')", "--redirects", "0")
    assert run.wait() == 0
    assert run.out.splitlines()[0] == "plain"


def test_log_dir_takes_the_ranks_log_files_and_the_report_finds_them(start: Start, tmp_path: Path) -> None:
    script = "import sys; print('a last word', file=sys.stderr); sys.exit(3)"
    run = start(script, "--log-dir", "logs", "--max-restarts", "0", "--rdzv-id", "r")
    assert run.wait() == 1
    assert (tmp_path / "logs/r/rounds/000001/ranks/00000/stderr.log").read_text() == "a last word\n"
    assert "a last word" in run.out


def test_a_module_and_a_program_can_be_run(start: Start, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__main__.py").write_text("import sys; print('module', sys.argv[1:])")
    run = Started(tmp_path, "-m", "package", "--flag", PWD_MARK=str(tmp_path))
    assert run.wait() == 0, run.err
    assert "[rank 0] module ['--flag']" in run.out
    run = Started(tmp_path, "--no-python", "sh", "-c", "echo program $RANK of $WORLD_SIZE", PWD_MARK=str(tmp_path))
    assert run.wait() == 0, run.err
    assert "[rank 0] program 0 of 1" in run.out


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_from_outside_stops_all_and_leaves_nothing(
    start: Start, nodes: int, number: signal.Signals, code: int
) -> None:
    run = start(FOREVER, "--local-nodes", str(nodes), "--nproc-per-node", "2")
    up(run, 2 * nodes)
    run.process.send_signal(number)
    assert run.wait() == code, run.err
    assert run.marked() == []
    assert f"{number.name} from outside" in run.out


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(start: Start) -> None:
    script = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER.replace(
        "time.sleep(600)\n", "time.sleep(0.5) if os.environ['RANK'] == '1' else time.sleep(600)\nsys.exit(9)\n"
    )
    run = start(script, "--nproc-per-node", "2", "--max-restarts", "0", "--grace", "0.5")
    assert run.wait() == 1
    assert run.marked() == []
    workers = json.loads(
        (run.run_dir / f"rounds/000001/nodes/{os.uname().nodename.partition('.')[0]}.json").read_text()
    )
    keys = ("exit_code", "signal", "stop_signal", "failed")
    ends = {w["rank"]: {key: w[key] for key in keys if key in w} for w in workers["workers"]}
    assert ends == {0: {"signal": "SIGKILL", "stop_signal": "SIGKILL"}, 1: {"exit_code": 9, "failed": True}}


def test_when_a_guardian_is_killed_its_agent_cleans_up_and_the_job_ends(start: Start) -> None:
    run = start(FOREVER, "--local-nodes", "2", "--nproc-per-node", "2", "--heartbeat", "1", "--node-timeout", "4")
    up(run, 4)
    record = json.loads((run.run_dir / "nodes/local1.json").read_text())
    agent = int(record["pid"])
    guardian = int(Path(f"/proc/{agent}/stat").read_text().rsplit(") ")[1].split()[1])
    os.kill(guardian, signal.SIGKILL)
    assert run.wait(30) == 1, run.err
    assert run.marked() == []
    assert "local1 left: its guardian" in run.err, run.err
    assert "Traceback" not in run.err


def test_a_rank_dir_and_node_file_of_rubbish_never_stop_the_job(start: Start, tmp_path: Path) -> None:
    script = """
import os, pathlib
run = pathlib.Path(os.environ["FTSLURM_RUN_DIR"])
if os.environ["FTSLURM_ROUND"] == "1":
    (run / "nodes/rubbish.json").write_text("{]")
    (run / "nodes/pipe.json").symlink_to("/dev/zero")
    os.mkfifo(run / "nodes/fifo.json")
    (run / "rounds/rubbish").mkdir()
    (run / "rounds/000001/nodes/zzz.json").write_bytes(b"\\xff\\x00")
    raise ValueError("now restart")
"""
    run = start(script)
    assert run.wait() == 0, run.err
    assert "zzz.json" in run.out
    assert "ignoring this file" in run.err


def test_user_signals_reach_the_workers(start: Start) -> None:
    script = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *a: sys.exit(0))
open(f"up{os.environ['RANK']}", "w").close()
time.sleep(600)
"""
    run = start(script, "--nproc-per-node", "2")
    up(run, 2)
    run.process.send_signal(signal.SIGUSR1)
    assert run.wait() == 0, run.err


def test_the_same_run_id_goes_on_counting_its_rounds(start: Start) -> None:
    assert start("pass", "--rdzv-id", "again").wait() == 0
    run = start("import os; print('round', os.environ['FTSLURM_ROUND'])", "--rdzv-id", "again")
    assert run.wait() == 0
    assert "[rank 0] round 2" in run.out


def test_the_launcher_prints_no_report_where_none_is_wanted(start: Start) -> None:
    run = start("import sys; sys.exit(3)", "--local-nodes", "2", "--max-restarts", "0", FTSLURM_REPORT="0")
    assert run.wait() == 1
    assert run.out == ""
    assert not (run.run_dir / "report.txt").exists()


def test_a_run_id_in_use_by_a_living_job_is_refused(start: Start, tmp_path: Path) -> None:
    first = start(FOREVER, "--rdzv-id", "mine", "--heartbeat", "1")
    up(first, 1)
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.py").write_text("print('stolen')")
    shared = str(tmp_path / "ftslurm-runs")
    second = Started(
        other, "--rdzv-id", "mine", "--shared-dir", shared, "--heartbeat", "1", "--node-timeout", "4", "train.py"
    )
    assert second.wait() == 2
    assert "runs on node" in second.err and "choose another --rdzv-id" in second.err
    assert first.process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "expected a program"),
        (["nothere.py"], "nothere.py: no such script"),
        (["--nnodes", "3:2", "train.py"], "--nnodes 3:2"),
        (["--nnodes", "2", "train.py"], "--nnodes 2"),
        (["--nproc-per-node", "0", "train.py"], "--nproc-per-node 0"),
        (["--nproc-per-node", "gpu", "train.py"], "no GPU found"),
        (["--unknown", "train.py"], "--unknown"),
        (["--max-restart", "1", "train.py"], "--max-restart"),
        (["--rdzv-endpoint", "host:1", "train.py"], "use: ftslurm run train.py"),
        (["--shared-dir", "train.py", "train.py"], "is a file, expected a directory"),
        (["--shared-dir", "/proc/nothing", "train.py"], "/proc/nothing"),
        (["--rdzv-id", "../up", "train.py"], "--rdzv-id '../up'"),
        (["-m", "--no-python", "train.py"], "only one"),
        (["--no-python", "./train.py"], "not executable"),
        (["--local-nodes", "0", "train.py"], "--local-nodes 0"),
        (["--local-nodes", "2", "--nnodes", "3", "train.py"], "--nnodes 3"),
        (["--local-nodes", "2", "nothere.py"], "nothere.py: no such script"),
    ],
)
def test_bad_input_gives_one_line_and_code_2_and_nothing_starts(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')")
    run = Started(tmp_path, *arguments)
    assert run.wait() == 2, run.err
    assert expected in run.err
    # Options of torchrun that are to be dropped are listed, with the corrected command line.
    assert len(run.err.splitlines()) == (3 if "--rdzv-endpoint" in arguments else 1), run.err
    assert run.out == ""
    assert not (tmp_path / "started").exists()


def test_a_run_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory of another user")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "ftslurm-runs/theirs").mkdir(parents=True, mode=0o700)
    os.chown(tmp_path / "ftslurm-runs/theirs", 12345, -1)
    run = Started(tmp_path, "--rdzv-id", "theirs", "train.py")
    assert run.wait() == 2
    assert "belongs to uid 12345" in run.err


def test_a_run_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    directory = tmp_path / "ftslurm-runs/new"
    directory.mkdir(parents=True, mode=0o700)
    (directory / "run.json").write_text('{"schema":"ftslurm/run","version":99}')
    run = Started(tmp_path, "--rdzv-id", "new", "train.py")
    assert run.wait() == 2
    assert "newer ftslurm" in run.err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small disk needs root and mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_reported_before_anything_starts(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "train.py").write_text("")

    def fill() -> None:
        with (small_disk / "hog").open("wb", buffering=0) as hog:
            while True:
                hog.write(b"x" * 4096)

    with pytest.raises(OSError, match="No space"):
        fill()
    run = Started(tmp_path, "--shared-dir", str(small_disk), "train.py")
    assert run.wait() == 2, run.err
    assert "the disk is full" in run.err
    assert len(run.err.splitlines()) == 1, run.err


def test_a_disk_that_fills_up_during_the_run_ends_it_with_that_reason_and_no_hang(
    start: Start, small_disk: Path
) -> None:
    script = """
import os
with open(os.path.join(os.environ["FTSLURM_SHARED_DIR"], "checkpoint"), "wb", buffering=0) as file:
    while True:
        file.write(b"x" * 65536)
"""
    run = start(script, "--join-timeout", "2", "--max-restarts", "1", FTSLURM_SHARED_DIR=str(small_disk))
    assert run.wait(40) == 1, run.err
    assert "No space left on device" in run.err


def test_the_workers_environment_has_every_name_that_torchrun_sets(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    script = "import os, json; print(json.dumps({k: v for k, v in os.environ.items()}))"
    run = start(script, "--nproc-per-node", "2", "--role", "trainer")
    assert run.wait() == 0, run.err
    ours = json.loads(
        next(line for line in run.out.splitlines() if line.startswith("[rank 0]")).removeprefix("[rank 0] ")
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--role",
        "trainer",
    ]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
    done = subprocess.run(
        [*command, "--local-ranks-filter", "0", "train.py"],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    set_by_torchrun = {name for name in theirs if name not in clean}
    assert set_by_torchrun - set(ours) == set()
    same = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "ROLE_NAME",
        "ROLE_RANK",
        "OMP_NUM_THREADS",
    )
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}


@pytest.mark.parametrize("options", [(), ("--local-nodes", "2")])
def test_a_launcher_above_finds_the_first_failure_in_its_error_file(start: Start, options: tuple[str, ...]) -> None:
    script = "raise ValueError('no such shard')"
    run = start(script, "--max-restarts", "0", *options, TORCHELASTIC_ERROR_FILE="above.json", FTSLURM_REPORT="0")
    assert run.wait() == 1
    content = json.loads((run.directory / "above.json").read_text())
    assert list(content) == ["message"]
    message = content["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: no such shard", 1)
    assert "train.py" in message["extraInfo"]["py_callstack"]


def test_a_script_that_starts_a_run_and_ends_with_its_code_is_reported_by_what_failed_in_that(start: Start) -> None:
    script = (
        "import os, subprocess, sys\n"
        "if len(sys.argv) == 1: raise ValueError('no such shard')\n"
        "inner = [sys.executable, '-m', 'ftslurm', 'run', '--max-restarts', '0', '--rdzv-id', 'inner', 'train.py']\n"
        "sys.exit(subprocess.run(inner).returncode)\n"
    )
    run = start(script, "--max-restarts", "0", "--rdzv-id", "outer", after=("outer",))
    assert run.wait(60) == 1
    (run.directory / "ftslurm-runs/inner").rename(run.directory / "inner")
    failure = json.loads((run.run_dir / "report.json").read_text())["rounds"][0]["first_failure"]
    assert failure["what"] == "ValueError: no such shard"
    assert failure["where"]["line"] == 2


def test_without_a_failure_a_launcher_above_finds_no_error_file(start: Start) -> None:
    run = start("pass", TORCHELASTIC_ERROR_FILE="above.json", FTSLURM_REPORT="0")
    assert run.wait() == 0
    assert not (run.directory / "above.json").exists()
