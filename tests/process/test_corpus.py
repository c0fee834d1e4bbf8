"""Each failure of the corpus happens for real on 4 ranks of 2 nodes; the report must name rank, place and cause."""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_run import Started

from ftslurm.report.pipeline import make_report

CORPUS = Path(__file__).parents[1] / "corpus"
sys.path.insert(0, str(CORPUS))

from cases import ALL, ALONE, CASCADE, DECOYS, KINDS, RECOVERED, SOCKETS, Case  # noqa: E402

WORLD, PER_NODE = 4, 2
OOM_LIMIT = 400 << 20  # bytes; four ranks and two agents need a third of it
CGROUP = 'mkdir $0 && echo $1 > $0/{limit} && echo $$ > $0/cgroup.procs && shift && exec "$@"'


def _ways(cases: tuple[Case, ...]) -> list[Any]:
    return [pytest.param(case, way, id=f"{case.name}-{way}") for case in cases for way in case.ways]


@pytest.mark.parametrize(("case", "way"), _ways(KINDS))
def test_the_report_names_rank_node_and_cause_of(case: Case, way: str, tmp_path: Path) -> None:
    _check(case, way, _happen(case, way, tmp_path))


@pytest.mark.parametrize(("case", "way"), _ways(DECOYS))
def test_the_report_does_not_fall_for(case: Case, way: str, tmp_path: Path) -> None:
    _check(case, way, _happen(case, way, tmp_path))


@pytest.mark.parametrize("case", SOCKETS, ids=lambda case: case.name)
def test_a_rank_whose_own_connection_broke_is_not_blamed_for(case: Case, tmp_path: Path) -> None:
    run = _happen(case, ALONE, tmp_path)
    entry = json.loads((run.run_dir / "report.json").read_text())["rounds"][0]
    assert (entry["first_failure"]["cause"], entry["first_failure"]["node"]) == (case.cause, case.node), run.out
    assert [group["what"] for group in entry["groups"]] == [
        "ConnectionResetError: [Errno 104] Connection reset by peer"
    ]


TAKES_ALL = """
import os, time, ftslurm
ftslurm.progress(1)
kept = []
while os.environ["RANK"] == "1":
    kept.append(b"x" * (8 << 20))
time.sleep(600)
"""


def test_a_node_is_not_excluded_for_kills_at_the_memory_limit_of_its_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TAKES_ALL)
    options = ("--local-nodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", "--health", "report")
    with _within(Case("", "", needs=("cgroup",))) as before:
        run = Started(tmp_path, *options, "train.py", before=before)
        assert run.wait(90) == 1, run.err
    rounds = json.loads((run.run_dir / "report.json").read_text())["rounds"]
    assert [entry["first_failure"]["cause"] for entry in rounds] == ["memory-limit", "memory-limit"], run.out
    assert "is excluded" not in run.err and "excluding" not in run.err


def _happen(case: Case, way: str, directory: Path) -> Started:
    """Let it happen."""
    for need in case.needs:
        _skip_without(need)
    shutil.copy(CORPUS / case.program, directory)
    for shared in ("ranks.py", "wrappings.py"):
        shutil.copy(CORPUS / shared, directory)
    (directory / "model_of_mine.py").write_text("def model(:\n    pass\n")
    (directory / "small").mkdir()
    restarts = () if "--max-restarts" in case.options else ("--max-restarts", "1" if way == RECOVERED else "0")
    nodes = ("--local-nodes", "2", "--nproc-per-node", str(PER_NODE), "--grace", "5")
    program = ("sh",) if case.program.endswith(".sh") else ()
    environment = {
        "PWD_MARK": str(directory),
        "CORPUS_RANK": str(case.rank if case.rank is not None else 2),
        "CORPUS_CASCADE": str(int(way == CASCADE)),
    }
    with _within(case) as before:
        arguments = (*nodes, *restarts, *case.options, *program, case.program, *case.arguments)
        run = Started(directory, *arguments, before=before, **environment)
        try:
            assert run.wait(90) == (0 if way == RECOVERED else case.exit_code), run.err
        finally:
            for pid, _ in run.marked():
                os.kill(pid, 9)
            run.process.wait()
    return run


def _check(case: Case, way: str, run: Started) -> None:
    report = json.loads((run.run_dir / "report.json").read_text())
    assert report["problems"] == []
    entry = report["rounds"][0]
    failure = entry["first_failure"]
    assert failure is not None, run.out
    others = {group["cause"] for group in entry["groups"]} | {other["cause"] for other in entry["same_time"]}
    assert failure["cause"] == case.cause, run.out
    assert not {failure["cause"], *others} & set(case.never), run.out
    assert failure["round"] == 1
    assert failure["step"] == case.step
    if case.rank is not None or not (case.node or case.follows or way == ALL):
        assert failure["rank"] == case.rank, run.out
    node = case.node or f"local{failure['rank'] // PER_NODE}"
    assert failure["node"] == node, run.out
    assert case.evidence in "\n".join(failure["evidence_lines"])
    if case.follows:
        assert failure["role"] == "cascade"
        assert failure["rank"] != 2
    elif way != ALL:
        assert failure["role"] == "primary"
        # Any other failure only follows from it, and none is reported to be of the same time.
        assert [group for group in entry["groups"] if group["role"] == "primary"] == []
        assert entry["same_time"] == []
    where = f"{case.program}:{_line(case)}" if case.here else ""
    if where and failure["hang"] is None:
        assert f"{failure['where']['shown']}:{failure['where']['line']}" == where, run.out
    _check_text(case, way, run, node, failure)
    _check_short_forms(run.run_dir)


def _check_short_forms(directory: Path) -> None:
    """The short forms of error records in nodes' files must not change what is reported, only how much is read."""
    whole = directory.with_name(f"{directory.name}-whole")
    shutil.copytree(directory, whole)
    for file in whole.glob("rounds/*/nodes/*.json"):
        node = json.loads(file.read_text())
        assert all("error" in worker for worker in node["workers"] if worker.get("failed") and worker.get("pid")), file
        workers = [{key: value for key, value in worker.items() if key != "error"} for worker in node["workers"]]
        file.write_text(json.dumps(node | {"workers": workers}))
    made = [json.dumps(make_report(path, now_ns=1)) for path in (directory, whole)]
    assert made[0] == made[1].replace(str(whole), str(directory))


def _check_text(case: Case, way: str, run: Started, node: str, failure: dict[str, Any]) -> None:
    text = (run.run_dir / "report.txt").read_text()
    lines = text.splitlines()
    # After a job that went on, the first line says so, and the failure follows.
    answer = "\n".join(lines[1:4] if way == RECOVERED else lines[:3])
    flat = " ".join(answer.split())
    wanted = [node, *case.expected]
    wanted += [] if failure["rank"] is None else [f"rank {failure['rank']}"]
    wanted += [f"{case.program}:{_line(case)}"] if case.here else []
    wanted += [] if case.step is None else [f"step {case.step}"]
    wanted += ["round 1"]
    for expected in wanted:
        assert expected in flat, f"{expected!r} is not in:\n{answer}\n\n{text}"
    if way == RECOVERED:
        assert "succeeded" in lines[0]


def _line(case: Case) -> int:
    lines = (CORPUS / case.program).read_text().splitlines()
    (found,) = (number for number, line in enumerate(lines, 1) if "# here" in line)
    return found


@contextmanager
def _within(case: Case) -> Iterator[tuple[str, ...]]:
    """Give what the command is started by: a mount namespace of its own, or a memory cgroup."""
    if case.small:
        what = "ro,size=1m" if case.small == "ro" else "size=1m"
        place = "small" if case.small == "ro" else case.small
        mount = f'mount -t tmpfs -o {what} tmpfs {place} && exec "$0" "$@"'
        yield ("unshare", "--mount", "--propagation", "private", "sh", "-c", mount)
    elif "cgroup" in case.needs:
        group = _new_cgroup()
        try:
            yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"')
        finally:
            group.rmdir()
    else:
        yield ()


def _own_cgroup() -> tuple[Path, str] | None:
    """Return the directory of this process's memory cgroup, and the name of the limit's file."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/"), "memory.limit_in_bytes"
        if number == "0" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            return Path("/sys/fs/cgroup") / path.lstrip("/"), "memory.max"
    return None


def _new_cgroup() -> Path:
    found = _own_cgroup()
    if found is None:
        pytest.skip("no memory cgroup is mounted here")
    parent, limit = found
    group = parent / f"ftslurm-corpus-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"a memory cgroup cannot be made here: {error}")
    try:
        (group / limit).write_text(str(OOM_LIMIT))
    except OSError as error:
        group.rmdir()
        pytest.skip(f"a limit of memory cannot be set here: {error}")
    return group


def _skip_without(need: str) -> None:
    if need == "torch":
        pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    elif need == "python3.11" and sys.version_info < (3, 11):
        pytest.skip("exception groups came with Python 3.11")
    elif need == "libstdc++" and ctypes.util.find_library("stdc++") is None:
        pytest.skip("libstdc++ is not there")
    elif need == "root":
        try_mount = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
        if os.geteuid() != 0 or subprocess.run(try_mount, check=False, capture_output=True).returncode != 0:
            pytest.skip("a small disk needs root, unshare and mount")
