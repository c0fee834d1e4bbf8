"""Failures that a restart cannot cure: when the coordinator gives up before the budget is used up."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from ftslurm.failures.causes import POINTLESS, Evidence, classify
from ftslurm.failures.retryability import NON_RETRYABLE_S, START_S, retryability
from ftslurm.records.error import ErrorRecord, ExceptionRecord, Frame, HostResources, OomKills
from ftslurm.records.node import NodeRecord, first_record
from ftslurm.records.state import CLOSED, FAILED, FORMING, READY, RUNNING, Failure, State
from ftslurm.rendezvous.fold import begin, fold
from ftslurm.rendezvous.observation import Observation, RunSpec, Timing

TIMING = Timing(node_timeout_s=8, join_timeout_s=600, last_call_s=30)
IMPORT = "ModuleNotFoundError at start"


class Job:
    """Two nodes of two ranks each, and their coordinator."""

    def __init__(self, restarts: int = 3) -> None:
        self.state: State = begin(None, RunSpec("r", "7.0", ("n1", "n2"), 2, 2, restarts), "n1", "i1", 0)
        self.records: dict[str, NodeRecord] = {}
        for position, node in enumerate(("n1", "n2")):
            self.records[node] = first_record(node, f"i{node[1:]}", "7.0", position, 2)
        self.next_round()

    def coordinate(self, failing_s: float = 0.0) -> State:
        self.state = fold(self.state, Observation(self.records, {}, 0.0, 5, failing_for_s=failing_s), TIMING)
        return self.state

    def next_round(self) -> None:
        for node, record in self.records.items():
            self.records[node] = replace(record, status=READY)
        assert self.coordinate().phase == RUNNING
        for node, record in self.records.items():
            self.records[node] = replace(record, status=RUNNING, round=self.state.round, failure=None)

    def fail(self, rank: int, message: str = "ValueError: row 7", **retryability: Any) -> None:
        node = f"n{rank // 2 + 1}"
        known = {"at_start": True, "signature": re.sub(r"\d+", "#", message), **retryability}
        failure = Failure(self.state.round, node, rank, rank % 2, 5, "exception", 1, None, message, None, **known)
        self.records[node] = replace(self.records[node], status=FAILED, failure=failure)


def end(job: Job) -> tuple[str, int]:
    assert job.state.phase == CLOSED
    assert job.state.closed is not None
    return job.state.closed.reason, job.state.closed.exit_code


def test_a_syntax_error_closes_at_once_with_the_code_that_forbids_a_requeue() -> None:
    job = Job()
    job.fail(2, "SyntaxError: invalid syntax", non_retryable="SyntaxError at start", on_any_node=True)
    job.coordinate()
    assert end(job) == (
        "rank 2 on n2 failed: SyntaxError: invalid syntax; it would fail again: SyntaxError at start",
        78,
    )
    assert job.state.restarts_used == 0


def test_a_rank_that_must_not_be_restarted_counts_after_its_peers_too() -> None:
    job = Job()
    job.fail(0, "RuntimeError: gloo", at_start=False)
    assert job.coordinate().phase == FORMING
    job.fail(2, "SystemExit: 78", at_start=False, non_retryable="it ended with code 78", on_any_node=True)
    job.coordinate()
    assert end(job) == ("rank 2 on n2 failed: SystemExit: 78; it would fail again: it ended with code 78", 78)


def test_a_missing_module_on_all_nodes_forbids_a_requeue() -> None:
    job = Job()
    job.fail(0, non_retryable=IMPORT)
    assert job.coordinate(failing_s=0.5).phase == RUNNING, "the other node may fail by the same"
    job.fail(3, non_retryable=IMPORT)
    job.coordinate(failing_s=0.6)
    assert end(job)[1] == 78


def test_a_missing_module_on_one_node_closes_but_other_nodes_may_do_better() -> None:
    job = Job()
    job.fail(0, non_retryable=IMPORT)
    job.coordinate(failing_s=TIMING.signature_s)
    assert end(job) == (f"rank 0 on n1 failed: ValueError: row 7; it would fail again: {IMPORT}", 1)


def test_a_broken_connection_beside_it_ends_the_wait_and_takes_no_blame() -> None:
    job = Job()
    job.fail(0, "RuntimeError: gloo", at_start=False)
    job.fail(2, non_retryable=IMPORT)
    job.coordinate()
    assert end(job)[0].startswith("rank 2 on n2 failed")


def test_the_same_failure_at_start_of_the_same_rank_twice_in_a_row_ends_the_job() -> None:
    job = Job()
    job.fail(3, "ValueError: row 7")
    assert job.coordinate().phase != CLOSED
    job.next_round()
    job.fail(3, "ValueError: row 9")
    job.coordinate()
    assert end(job) == (
        "rank 3 on n2 failed: ValueError: row 9; it would fail again: the same at start in rounds 1 and 2",
        1,
    )


def test_of_another_rank_it_takes_three_rounds() -> None:
    job = Job()
    for rank in (3, 0):
        job.fail(rank)
        assert job.coordinate().phase != CLOSED
        job.next_round()
    job.fail(2)
    job.coordinate()
    assert end(job)[0].endswith("the same at start in rounds 1, 2 and 3")


@pytest.mark.parametrize(
    "second",
    [{"signature": "KeyError: 'x'"}, {"at_start": False}, {"kind": "signal"}, {"signature": None}],
    ids=["another one", "later", "another kind", "nothing to compare"],
)
def test_another_failure_or_one_after_the_start_is_no_pattern(second: dict[str, Any]) -> None:
    job = Job()
    job.fail(3)
    job.coordinate()
    job.next_round()
    job.fail(3)
    record = job.records["n2"]
    assert record.failure is not None
    job.records["n2"] = replace(record, failure=replace(record.failure, **second))
    assert job.coordinate().phase != CLOSED


def test_two_failures_of_which_nothing_but_the_exit_code_is_known_are_not_the_same() -> None:
    job = Job()
    for _ in range(3):
        job.fail(3, "exit code 1", signature=None)
        assert job.coordinate().phase == FORMING
        job.next_round()


def signed(job: Job, rank: int, signature: str | None) -> None:
    """Let the node report what it found of a failure that it has reported before."""
    node = f"n{rank // 2 + 1}"
    failure = job.records[node].failure
    assert failure is not None
    job.records[node] = replace(job.records[node], failure=replace(failure, signature=signature))


def test_what_is_found_of_a_failure_after_its_round_has_ended_counts_before_the_next_one_forms() -> None:
    job = Job()
    for _ in range(2):
        assert job.state.phase == RUNNING
        job.fail(3, "exit code 1", signature=None)
        assert job.coordinate().phase == FORMING
        signed(job, 3, "the same")
        job.records = {node: replace(record, status=READY) for node, record in job.records.items()}
        job.coordinate()
        running = {"status": RUNNING, "round": job.state.round}
        job.records = {node: replace(record, **running) for node, record in job.records.items()}
    why = "it would fail again: the same at start in rounds 1 and 2"
    assert end(job)[0] == f"rank 3 on n2 failed: exit code 1; {why}"
    assert job.state.restarts_used == 1, "the second restart never was"


def test_what_is_found_of_a_failure_too_late_for_its_round_changes_nothing() -> None:
    job = Job()
    job.fail(3, "exit code 1", signature=None)
    job.coordinate()
    late = job.records["n2"].failure
    job.next_round()
    assert late is not None
    job.records["n2"] = replace(job.records["n2"], failure=replace(late, signature="x"))
    before = job.state
    assert job.coordinate() is before


def test_a_round_between_that_ended_otherwise_breaks_the_pattern() -> None:
    job = Job(restarts=5)
    for message in ("ValueError: x", "KeyError: 'y'", "ValueError: x"):
        job.fail(3, message)
        assert job.coordinate().phase != CLOSED
        job.next_round()


def test_when_the_budget_is_used_up_that_is_what_is_reported() -> None:
    job = Job(restarts=1)
    job.fail(3)
    job.coordinate()
    job.next_round()
    job.fail(3)
    job.coordinate()
    assert end(job) == ("rank 3 on n2 failed: ValueError: row 7; the only restart is used up", 1)


# The retryability of one failure


def record(name: str | None, message: str = "", *files: str, **ours: Any) -> ErrorRecord:
    frames = tuple(Frame(file, 1, "f") for file in files)
    exception = None if name is None else ExceptionRecord(name, "builtins", message, frames=frames)
    part: dict[str, Any] = {"kind": "exception" if name else "exit", "exit_code": 1, **ours}
    return ErrorRecord(**part, time_ns=5, message=message, exception=exception)


NON_RETRYABLE = [
    (record("SyntaxError", "invalid syntax"), True),
    (record("ModuleNotFoundError", "No module named 'x'"), False),
    (record("SystemExit", "2", "/usr/lib/python3.11/argparse.py", exit_code=2, kind="exit"), True),
    (record(None, "can't open file '/x': [Errno 2] No such file or directory", exit_code=2), False),
    (record(None, "cannot start trian: no such program in PATH", exit_code=127), False),
]
RETRYABLE = [
    record("ValueError", "boom"),
    record("SystemExit", "2", "/home/a/train.py", exit_code=2, kind="exit"),
    record(None, "exit code 2, no Python exception reached the top level", exit_code=2),
    record(None, "exit code 127, no Python exception reached the top level", exit_code=127),
    record("ModuleNotFoundError", "No module named 'x'", step=4),
]


def test_a_script_that_asked_for_no_restart_gets_none_though_it_was_stopped_on_its_way_out() -> None:
    found = record("SystemExit", "78", exit_code=None, signal="SIGTERM", kind="exit", step=9)
    expected = {"at_start": False, "non_retryable": "it ended with code 78", "on_any_node": True, "blame": None}
    assert retryability(found, 5000.0) == {**expected, "by_peers": False, "signature": None}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (record("RuntimeError", "CUDA error: uncorrectable ECC error encountered"), "node"),
        (record("AcceleratorError", "CUDA error: unspecified launch failure"), "node"),
        (record(None, "x\nGPU 3: GPU has fallen off the bus", signal="SIGABRT", kind="signal"), "node"),
        (record("RuntimeError", "CUDA error: an illegal memory access was encountered"), "perhaps"),
        (record("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"), None),
        (record("RuntimeError", "CUDA error: device-side assert triggered"), None),
        (record("OSError", "[Errno 5] Input/output error: '/data/x'"), "perhaps"),
        (record("OSError", "[Errno 2] No such file or directory: '/data/x'"), None),
        (record("ValueError", "boom"), None),
        (record("DistBackendError", "Connection reset by peer"), None),
        (record(None, "killed", signal="SIGSEGV", kind="signal"), "perhaps"),
        (record(None, "stopped", signal="SIGTERM", kind="signal"), None),
        (record(None, "cannot start x", kind="spawn"), "perhaps"),
        (record(None, "no heartbeat", kind="hang"), "perhaps"),
        (record("SystemExit", "1", exit_code=1, kind="exit"), None),
    ],
)
def test_a_node_is_blamed_for_what_its_hardware_or_the_kernel_reports_and_not_for_the_program(
    found: ErrorRecord, expected: str | None
) -> None:
    assert retryability(found, 5000.0)["blame"] == expected


GIB = 1 << 30


@pytest.mark.parametrize(
    ("recent", "at_limit", "least_available", "blame"),
    [
        (0, None, 60 * GIB, "perhaps"),
        (1, True, 60 * GIB, None),
        (1, True, GIB, None),
        (1, False, GIB, "perhaps"),
        (1, False, 60 * GIB, None),
        (1, None, None, None),
    ],
    ids=["not for memory", "limit", "limit of a full host", "full host", "a limit that is not seen", "unknown"],
)
def test_a_node_is_blamed_for_a_kill_for_memory_only_where_its_own_ran_out(
    recent: int, at_limit: bool | None, least_available: int | None, blame: str | None
) -> None:
    found = record(None, "killed", signal="SIGKILL", kind="signal")
    resources = HostResources(
        OomKills(recent, recent, at_limit=at_limit), memory_total=64 * GIB, least_available=least_available
    )
    assert retryability(replace(found, host_resources=resources), 5000.0)["blame"] == blame


def as_evidence(found: ErrorRecord) -> Evidence:
    name = found.exception.type if found.exception is not None else None
    files = tuple(frame.file for frame in found.exception.frames) if found.exception is not None else ()
    return Evidence(found.kind, name, "builtins", found.message, files, found.exit_code, found.signal, found.step)


@pytest.mark.parametrize(("found", "on_any_node"), NON_RETRYABLE)
def test_what_cannot_start_is_non_retryable_as_in_the_catalogue(found: ErrorRecord, on_any_node: bool) -> None:
    assert classify(as_evidence(found)).restart == POINTLESS
    judged = retryability(found, 200.0)
    assert judged["non_retryable"]
    assert judged["on_any_node"] is on_any_node
    assert retryability(found, NON_RETRYABLE_S)["non_retryable"] is None, "so late it is no start any more"


@pytest.mark.parametrize("found", RETRYABLE)
def test_other_failures_are_retryable(found: ErrorRecord) -> None:
    assert classify(as_evidence(found)).restart != POINTLESS
    assert retryability(found, 1.0)["non_retryable"] is None


@pytest.mark.parametrize(
    ("found", "life_s", "at_start"),
    [
        (record("ValueError", "boom"), START_S - 1, True),
        (record("ValueError", "boom"), START_S, False),
        (record("ValueError", "boom", step=0), 1.0, False),
        (record("DistNetworkError", "timed out"), 1.0, False),
        (record("RuntimeError", "[/pytorch/third_party/gloo/gloo/x.cc:1] Connection closed"), 1.0, False),
        (record("RuntimeError", "x", "/lib/torch/distributed/c10d.py"), 1.0, False),
        (record(None, "", kind="signal", signal="SIGSEGV"), 1.0, True),
        (record(None, "", kind="signal", signal="SIGKILL"), 1.0, False),
        (record(None, "exit code 3", exit_code=3), 1.0, True),
    ],
)
def test_a_rank_fails_at_start_when_it_does_so_early_and_by_itself(
    found: ErrorRecord, life_s: float, at_start: bool
) -> None:
    assert retryability(found, life_s)["at_start"] is at_start


def test_a_node_record_has_the_retryability_and_an_older_one_has_none() -> None:
    job = Job()
    job.fail(0, non_retryable=IMPORT, on_any_node=True)
    record = job.records["n1"]
    assert NodeRecord.decode(record.encode(), "x") == record
    old = json.loads(record.encode())
    for name in ("at_start", "non_retryable", "on_any_node", "signature"):
        del old["failure"][name]
    failure = NodeRecord.decode(json.dumps(old).encode(), "x").failure
    assert failure is not None
    assert (failure.at_start, failure.non_retryable, failure.on_any_node, failure.signature) == (
        False,
        None,
        False,
        None,
    )


@pytest.mark.parametrize(
    ("found", "by_peers"),
    [
        (record("ValueError", "boom"), False),
        (record("DistBackendError", "NCCL error in: NCCLUtils.hpp"), True),
        (record("RuntimeError", "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed"), True),
        (record("ConnectionRefusedError", "[Errno 111] Connection refused"), False),
        (record("PeerLostError", "rank 3 did not answer the peer heartbeat 3 times in a row"), True),
        (record("WorkerLost", "worker 9 disconnected"), True),
        (record("TimeoutError", "barrier timed out at step 9, missing ranks: [7, 9]"), True),
        (record("RuntimeError", "Caught KeyError in DataLoader worker process 9."), False),
    ],
)
def test_a_broken_connection_between_ranks_is_perhaps_another_ones_failure(found: ErrorRecord, by_peers: bool) -> None:
    assert retryability(found, 5000.0)["by_peers"] is by_peers
