"""Ranks that NCCL's watchdog ended: which collective each was in, by what torch printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.failures.nccl_timeout import CollectiveTimeout, difference, odd_rank, timeout_in
from ftslurm.report.pipeline import report_of_logs
from ftslurm.report.text import render

Call = tuple[int, str, int]
CAUGHT = (
    "[rank{rank}]:[E1105 08:12:33.123 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for"
    " 600052 milliseconds before timing out.\n"
)
ABORTS = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG 0 (default_pg) Rank {rank}] Process group watchdog thread terminated with exception: [Rank {rank}]"
    " Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}) ran for 600052"
    " milliseconds before timing out.\n"
)


def text_of(path: Path, calls: list[Call], before: str = "") -> str:
    """Return the report on the log of one file, without its line breaks."""
    lines = [form.format(rank=r, operation=o, number=n) for form in (CAUGHT, ABORTS) for r, o, n in calls]
    tasks = ",".join(str(rank) for rank, _, _ in calls)
    end = f"srun: error: n1: tasks {tasks}: Aborted (core dumped)\n"
    path.write_text(before + "".join(f"step {i} loss 2.5\n" for i in range(20)) + "".join(lines) + end)
    return " ".join(render(report_of_logs(path)).split())


def test_ranks_in_the_same_collective_are_named_together(tmp_path: Path) -> None:
    text = text_of(tmp_path / "slurm-1.out", [(r, "ALLREDUCE", 1234) for r in (0, 1, 3)])
    assert "FAILED: ranks 0-1, 3 on n1: NCCL's watchdog aborted the process (SIGABRT): ALLREDUCE #1234" in text
    assert "of 4096 elements timed out after 10 min" in text


def test_a_rank_without_a_time_out_is_where_to_look(tmp_path: Path) -> None:
    calls = [(r, "ALLREDUCE", 1234) for r in (0, 1, 3)]
    assert "rank 2 printed no time-out" in text_of(tmp_path / "slurm-1.out", calls, before="[rank2]: warming up\n")


@pytest.mark.parametrize("odd", [("_ALLGATHER_BASE", 1234), ("ALLREDUCE", 1233)])
def test_the_rank_in_another_collective_comes_first(tmp_path: Path, odd: tuple[str, int]) -> None:
    calls = [(r, *(odd if r == 2 else ("ALLREDUCE", 1234))) for r in range(4)]
    text = text_of(tmp_path / "slurm-1.out", calls)
    assert "FAILED: rank 2 on n1: NCCL's watchdog" in text
    assert f"rank 2 was in {odd[0]} #{odd[1]} of 4096 elements, ranks 0-1, 3 in ALLREDUCE #1234" in text


def test_two_against_two_blame_no_rank() -> None:
    calls = {r: CollectiveTimeout(r, "ALLREDUCE" if r < 2 else "BROADCAST", 7) for r in range(4)}
    assert odd_rank(calls) is None
    assert difference(calls) == "ranks 0-1 were in ALLREDUCE #7, ranks 2-3 in BROADCAST #7"


def test_the_rank_within_another_group_is_not_taken_for_the_jobs() -> None:
    line = CAUGHT.format(rank=1, operation="ALLREDUCE", number=3)
    assert timeout_in(line.replace("[rank1]:", "").replace("[Rank 1]", "[PG ID 2 PG GUID 7(tp) Rank 1]")) is not None
    found = timeout_in(line.replace("[rank1]:", "").replace("[Rank 1]", "[PG ID 2 PG GUID 7(tp) Rank 1]"))
    assert found is not None and found.rank is None


@pytest.mark.parametrize("line", ["", "Watchdog", "step 3: the watchdog caught nothing"])
def test_other_lines_state_no_time_out(line: str) -> None:
    assert timeout_in(line) is None
