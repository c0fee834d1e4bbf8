"""What is written down of nodes that fail first, and of those whose hardware is broken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from fold_histories import Job

from ftslurm.agent.exclusion import Excluder, exclusion_of
from ftslurm.agent.option_groups import ExclusionOptions
from ftslurm.nodes.exclude import Exclusions
from ftslurm.records.health import FAIL, Health, HealthFinding
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import BY_NODE, FAILED, Failure
from ftslurm.testing.memoryfs import MemoryFileSystem

DAY_NS = 86_400 * 10**9


class Coordinator:
    def __init__(self, after: int = 2, drained: list[str] | None = None, problem: str | None = None) -> None:
        self.lines: list[str] = []
        self.changes: list[tuple[str, str, int | None]] = []
        self.heard = threading.Event()
        self.exclusions = Exclusions(MemoryFileSystem(), "/runs/excluded")
        self.now_ns = 10**18

        def drain(node: str, reason: str) -> str | None:
            assert drained is not None
            drained.append(f"{node}: {reason}")
            return problem

        self.aside = Excluder(
            ExclusionOptions(after, 86_400.0, None, drained is not None),
            self.exclusions,
            "job-7",
            lambda: self.now_ns,
            self._log,
            drain if drained is not None else None,
            self._start,
            lambda *change: self.changes.append(change),
        )
        self.started = 0

    def _start(self, work: Callable[[], None]) -> None:
        self.started += 1
        work()

    def _log(self, text: str) -> None:
        self.lines.append(text)
        if "drained" in text:
            self.heard.set()

    def see(self, job: Job) -> int:
        """Show it the newest state; return whether there was something to do."""
        before = self.started
        self.aside.on_state(job.state)
        return self.started - before

    def hear(self, record: NodeRecord) -> int:
        """Show it the node's record; return whether there was something to do."""
        before = self.started
        self.aside.on_health(record)
        return self.started - before


def fail_first(job: Job, number: int, blame: str) -> None:
    job.run().fail(number, signal="SIGSEGV", code=None)
    failure = job.records[f"n{number}"].failure
    assert isinstance(failure, Failure)
    job.publish(number, failure=replace(failure, blame=blame)).coordinate()
    assert job.last.outcome == FAILED
    job.ready(*(int(p.node[1:]) for p in job.state.participants))


def unhealthy(check: str | None, confirmed: bool = True) -> NodeRecord:
    record = Job(1).join(1).records["n1"]
    if check is None:
        return record
    finding = HealthFinding(check, FAIL, "GPU 3", "gone", "Reset it.", 5, confirmed)
    return replace(record, unhealthy="GPU 3: gone", health=Health(FAIL, 5, "quick", (finding,)))


def test_a_node_that_fails_first_twice_is_excluded_once_with_reason_and_expiry() -> None:
    coordinator, job = Coordinator(), Job(2)
    job.join()
    fail_first(job, 2, "perhaps")
    assert coordinator.see(job) == 0
    fail_first(job, 2, "perhaps")
    assert (coordinator.see(job), coordinator.see(job)) == (1, 0)
    known = coordinator.exclusions.of("n2", coordinator.now_ns)
    assert known is not None and known.by == "run job-7" and "first to fail in 2 rounds" in known.reason
    assert known.until_ns == coordinator.now_ns + DAY_NS
    assert coordinator.exclusions.of("n2", coordinator.now_ns + DAY_NS) is None
    assert coordinator.lines == [f"n2 is excluded for 1 d: {known.reason} (`ftslurm nodes allow n2`)"]
    assert exclusion_of(coordinator.exclusions, "n2", coordinator.now_ns)[0] == known.reason
    assert coordinator.changes == [("n2", known.reason, known.until_ns)]


def test_failures_that_name_the_hardware_count_over_jobs() -> None:
    coordinator, job = Coordinator(), Job(2)
    job.join()
    fail_first(job, 2, BY_NODE)
    assert coordinator.see(job) == 1
    assert coordinator.exclusions.of("n2", coordinator.now_ns) is None
    later = Coordinator()
    later.exclusions = later.aside._exclusions = coordinator.exclusions
    again = Job(2)
    again.join()
    fail_first(again, 2, BY_NODE)
    failure = again.last.failure
    again.state = replace(again.state, history=(replace(again.last, failure=replace(failure, time_ns=99)),))
    later.now_ns = 10**12
    later.see(again)
    known = later.exclusions.of("n2", later.now_ns)
    assert known is not None and "2 failures began here within 7 days" in known.reason


def test_broken_hardware_sets_its_node_aside_until_it_is_well() -> None:
    coordinator = Coordinator()
    assert (coordinator.hear(unhealthy("gpu-count")), coordinator.hear(unhealthy("gpu-count"))) == (1, 0)
    assert coordinator.exclusions.of("n1", coordinator.now_ns) is not None
    assert coordinator.hear(unhealthy(None)) == 1
    assert coordinator.exclusions.of("n1", coordinator.now_ns) is None
    until_ns = coordinator.now_ns + DAY_NS
    assert [(node, until) for node, _, until in coordinator.changes] == [("n1", until_ns), ("n1", None)]


def test_what_no_second_check_has_confirmed_excludes_no_node() -> None:
    drained: list[str] = []
    coordinator = Coordinator(drained=drained)
    assert coordinator.hear(unhealthy("gpu-count", confirmed=False)) == 0
    assert coordinator.exclusions.of("n1", coordinator.now_ns) is None
    assert coordinator.hear(unhealthy("gpu-count")) == 1
    assert coordinator.heard.wait(10) and drained == ["n1: ftslurm: GPU 3: gone"]


def test_what_hardware_reported_by_itself_needs_no_second_check() -> None:
    coordinator = Coordinator()
    assert coordinator.hear(unhealthy("gpu-xid", confirmed=False)) == 1


def test_a_users_exclusion_of_the_node_meanwhile_stays() -> None:
    coordinator = Coordinator()
    coordinator.hear(unhealthy("gpu-count"))
    coordinator.exclusions.exclude("n1", "under repair", "ann", None, coordinator.now_ns)
    coordinator.hear(unhealthy(None))
    known = coordinator.exclusions.of("n1", coordinator.now_ns)
    assert known is not None and known.reason == "under repair"


def test_a_full_filesystem_excludes_no_node_nor_do_leftovers_on_its_gpu() -> None:
    coordinator = Coordinator()
    assert coordinator.hear(unhealthy("storage-paths")) == coordinator.hear(unhealthy("gpu-processes")) == 0


def test_strikes_outlast_hardware_that_is_well_again() -> None:
    coordinator = Coordinator()
    coordinator.hear(unhealthy("gpu-count"))
    coordinator.exclusions.add_strike("n1", "job-6", "CUDA error", coordinator.now_ns)
    coordinator.now_ns += 10**9
    coordinator.hear(unhealthy(None))
    known = coordinator.exclusions.known("n1")
    assert known is not None and not known.holds(coordinator.now_ns) and len(known.strikes) == 1


def test_a_gpu_that_reported_an_error_under_load_is_not_well_for_idling() -> None:
    coordinator = Coordinator()
    coordinator.hear(unhealthy("gpu-xid"))
    assert coordinator.hear(unhealthy(None)) == 0
    assert coordinator.exclusions.of("n1", coordinator.now_ns) is not None


def test_a_failure_that_follows_its_rank_revokes_the_strike_of_the_first_node() -> None:
    coordinator, job = Coordinator(), Job(3, low=2, high=2, restarts=9)
    job.join()
    for _ in range(2):
        fail_first(job, 2, "perhaps")
    job.coordinate()
    coordinator.see(job)
    assert coordinator.exclusions.of("n2", coordinator.now_ns) is not None
    fail_first(job, 3, "perhaps")
    assert (coordinator.see(job), coordinator.see(job)) == (1, 0)
    assert coordinator.exclusions.of("n2", coordinator.now_ns) is None


def test_a_node_that_a_user_allowed_is_not_excluded_again_for_an_earlier_attempts_failures() -> None:
    drained: list[str] = []
    coordinator, job = Coordinator(drained=drained), Job(2)
    job.join()
    for _ in range(2):
        fail_first(job, 2, "perhaps")
    job.state = replace(job.state, attempt="12.1")
    assert coordinator.see(job) == 0 and drained == []


def test_the_next_coordinator_repeats_no_line() -> None:
    coordinator, job = Coordinator(), Job(2)
    job.join()
    for _ in range(2):
        fail_first(job, 2, "perhaps")
    coordinator.see(job)
    heir = Coordinator()
    heir.exclusions = heir.aside._exclusions = coordinator.exclusions
    heir.see(job)
    assert len(coordinator.lines) == 1 and heir.lines == []


def test_nothing_is_written_where_that_is_switched_off() -> None:
    coordinator, job = Coordinator(after=0), Job(2)
    job.join()
    for _ in range(2):
        fail_first(job, 2, BY_NODE)
    assert coordinator.see(job) == coordinator.hear(unhealthy("gpu-count")) == 0


def test_draining_is_asked_for_and_its_outcome_reported() -> None:
    drained: list[str] = []
    coordinator = Coordinator(drained=drained)
    coordinator.hear(unhealthy("gpu-count"))
    assert coordinator.heard.wait(10)
    assert drained == ["n1: ftslurm: GPU 3: gone"] and coordinator.lines[-1] == "n1 is drained"
    refused = Coordinator(drained=[], problem="this user may not")
    refused.hear(unhealthy("gpu-count"))
    assert refused.heard.wait(10)
    assert refused.lines[-1] == "n1 could not be drained: this user may not"


def test_a_guess_from_two_failures_drains_no_node() -> None:
    drained: list[str] = []
    coordinator, job = Coordinator(drained=drained), Job(2)
    job.join()
    for _ in range(2):
        fail_first(job, 2, "perhaps")
        coordinator.see(job)
    assert coordinator.exclusions.of("n2", coordinator.now_ns) is not None and drained == []


def test_what_ranks_wrote_of_their_hardware_drains_no_node() -> None:
    drained: list[str] = []
    coordinator = Coordinator(drained=drained)
    for run in ("job-5", "job-6"):
        coordinator.exclusions.add_strike("n2", run, "uncorrectable ECC error", coordinator.now_ns)
    job = Job(2)
    job.join()
    fail_first(job, 2, BY_NODE)
    assert coordinator.see(job) == 1
    assert coordinator.exclusions.of("n2", coordinator.now_ns) is not None and drained == []


class Directory(Exclusions):
    """One that hangs until it is let go, or fails."""

    def __init__(self, problem: OSError | None = None) -> None:
        super().__init__(MemoryFileSystem(), "/runs/excluded")
        self.go = threading.Event()
        self.problem = problem

    def exclude(self, node: str, reason: str, by: str, until_ns: int | None, now_ns: int) -> None:
        assert self.problem is not None or self.go.wait(10)
        if self.problem is not None:
            raise self.problem
        super().exclude(node, reason, by, until_ns, now_ns)


def test_a_directory_that_hangs_delays_no_other_part_and_the_next_exclusion_is_written_too() -> None:
    directory = Directory()
    aside = Excluder(ExclusionOptions(2, 60.0, None, False), directory, "r", lambda: 0, lambda line: None)
    job = Job(2)
    job.join()
    for _ in range(2):
        fail_first(job, 2, "perhaps")
    aside.on_health(unhealthy("gpu-count"))
    aside.on_state(job.state)
    assert not aside.finish(0.01)
    directory.go.set()
    assert aside.finish(10)
    assert directory.of("n1", 0) is not None and directory.of("n2", 0) is not None


def test_a_directory_that_cannot_be_written_is_named() -> None:
    messages: list[str] = []
    directory = Directory(OSError(13, "Permission denied"))
    aside = Excluder(
        ExclusionOptions(2, 60.0, None, False), directory, "r", lambda: 0, messages.append, start=lambda work: work()
    )
    aside.on_health(unhealthy("gpu-count"))
    assert messages == ["exclusions cannot be recorded in /runs/excluded: [Errno 13] Permission denied"]
