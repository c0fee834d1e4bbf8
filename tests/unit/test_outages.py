"""The shared directory refuses calls for a while: no node is lost for it, and none is taken to be at fault."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from fold_histories import Job
from member_cluster import PACE, RUN, TIMING, Cluster

from ftslurm.observed_time import ObservedTime
from ftslurm.records.health import FAIL, Health, HealthFinding
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import FAILED, FORMING, LEFT, RUNNING
from ftslurm.rendezvous.abandonment import RunInUse
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.clock import VirtualClock
from ftslurm.testing.memoryfs import BEFORE, Operation

WRITES = ("create", "link", "rename", "unlink", "makedirs")


class Directory:
    """A hook that refuses calls while `refused` is set."""

    def __init__(self) -> None:
        self.refused: tuple[str, ...] = ()
        self.number = errno.ENOSPC

    def __call__(self, when: str, operation: Operation) -> None:
        if when == BEFORE and operation.name in self.refused:
            raise OSError(self.number, "refused", operation.path)


def three(directory: Directory) -> Cluster:
    cluster = Cluster()
    for name in ("n1", "n2", "n3"):
        cluster.add(name, low=2, expected=("n1", "n2", "n3"), hook=directory)
    cluster.running(1)
    return cluster


def suffer(cluster: Cluster, seconds: float, *names: str) -> None:
    for _ in range(round(seconds / 0.5)):
        cluster.clock.advance(0.5)
        for name in names or tuple(cluster.members):
            try:
                cluster.tick(name)
            except OSError:
                continue


@pytest.fixture
def directory() -> Directory:
    return Directory()


@pytest.mark.parametrize("refused", [WRITES, ("create",), (*WRITES, "read", "listdir", "refresh")])
@pytest.mark.parametrize("seconds", [1.0, 2.5, 6.0, 24.0])
def test_an_outage_of_the_directory_loses_no_node(
    directory: Directory, seconds: float, refused: tuple[str, ...]
) -> None:
    cluster = three(directory)
    for _ in range(3):
        directory.refused = refused
        suffer(cluster, seconds)
        directory.refused = ()
        # The others notice the end of it after their next retry.
        cluster.go(1.0, "n1")
        cluster.go(1.0, "n1", "n2")
        cluster.go(5.0)
    state = cluster.state()
    assert (state.phase, state.round, state.lost, state.coordinator.term) == (RUNNING, 1, (), 1)


def test_a_node_that_dies_in_an_outage_is_lost_after_it(directory: Directory) -> None:
    cluster = three(directory)
    directory.refused = WRITES
    suffer(cluster, 12.0)
    directory.refused = ()
    cluster.go(TIMING.node_timeout_s + 2.0, "n1", "n2")
    assert [gone.node for gone in cluster.state().lost] == ["n3"]


def test_a_node_that_dies_is_lost_although_the_directory_fails_now_and_then(directory: Directory) -> None:
    cluster = three(directory)
    for _ in range(30):
        directory.refused = ("create",)
        suffer(cluster, 0.5, "n1", "n2")
        directory.refused = ()
        cluster.go(3.0, "n1", "n2")
    assert [gone.node for gone in cluster.state().lost] == ["n3"]


def test_an_agent_that_cannot_publish_obeys_what_it_reads(directory: Directory) -> None:
    cluster = three(directory)
    cluster.publish("n1", status=FAILED, failure=None, reason="its script gave up")
    cluster.tick("n1")
    assert cluster.state().phase == FORMING
    directory.refused = WRITES
    cluster.clock.advance(PACE.heartbeat_s + 0.1)
    with pytest.raises(OSError, match="refused"):
        cluster.members["n2"].tick()
    state = cluster.members["n2"].view().state
    assert state is not None
    assert state.phase == FORMING


def test_another_job_takes_no_run_over_because_its_agents_could_not_write(directory: Directory) -> None:
    owner = three(directory)
    rival = Cluster()
    rival.fs, rival.clock = owner.fs, owner.clock
    rival.add("n1", attempt="13.0", expected=("n1",), hook=directory)
    rival.tick()
    directory.refused = WRITES
    suffer(rival, 24.0)
    directory.refused = ()
    # Its look comes first: nothing of the owner's has changed for 24 s.
    rival.tick()
    assert owner.state().attempt == "12.0"
    owner.go(1.0)
    rival.tick()
    owner.go(1.0)
    with pytest.raises(RunInUse):
        rival.tick()


def test_another_job_takes_no_run_over_because_a_node_record_cannot_be_read_now(directory: Directory) -> None:
    owner = three(directory)
    owner.publish("n2", status=LEFT, reason="stop requested")
    owner.tick("n2")
    rival = Cluster()
    rival.fs, rival.clock = owner.fs, owner.clock
    hidden = RunDirectory(RUN.root).node_file("n1"), RunDirectory(RUN.root).node_file("n3")

    def hook(when: str, operation: Operation) -> None:
        if when == BEFORE and operation.name == "read" and operation.path in hidden:
            raise FileNotFoundError(errno.ENOENT, "replaced just now", operation.path)

    rival.add("n2", attempt="13.0", expected=("n2",), hook=hook)
    rival.tick()
    assert owner.state().attempt == "12.0"


def test_time_before_a_failed_observation_counts_only_as_far_as_a_write_proved_it() -> None:
    clock = VirtualClock()
    attention = ObservedTime(clock.now, prompt_s=4)
    for wrote in (True, False, False):
        clock.advance(1.0)
        attention.note()
        attention.succeeded(wrote)
    clock.advance(1.0)
    attention.note()
    attention.failed()
    assert attention.note() == 1.0


def test_an_outage_lasts_from_the_first_failed_observation_to_the_next_good_one() -> None:
    clock = VirtualClock()
    attention = ObservedTime(clock.now, prompt_s=4)
    attention.note()
    attention.failed()
    clock.advance(3.0)
    attention.note()
    attention.failed()
    assert attention.outage_s == 3.0
    attention.succeeded(wrote=False)
    assert attention.outage_s == 0.0


# Health checks


def unhealthy(record: NodeRecord, *failed: tuple[str, str]) -> NodeRecord:
    found = tuple(HealthFinding(check, FAIL, subject, "the disk is full", "", 0) for check, subject in failed)
    return replace(record, unhealthy="the disk is full", health=Health(FAIL, 0, "quick", found))


FULL = ("storage-paths", "/shared (run directory)")


def forming(*failed: tuple[tuple[str, str], ...]) -> Job:
    job = Job(nodes=len(failed), low=2).join()
    for number, checks in enumerate(failed, 1):
        if checks:
            job.records[f"n{number}"] = unhealthy(job.records[f"n{number}"], *checks)
    return job


def test_a_storage_check_that_fails_on_all_nodes_keeps_none_out() -> None:
    assert forming((FULL,), (FULL,), (FULL,)).coordinate().phase == RUNNING


@pytest.mark.parametrize(
    "failed",
    [
        ((FULL,), (FULL,), ()),
        ((("gpu-driver", ""),), (("gpu-driver", ""),)),
        ((FULL,), (("storage-paths", "/scratch (log directory)"),)),
        ((FULL, ("gpu-ecc", "GPU 3")), (FULL, ("gpu-ecc", "GPU 3"))),
    ],
    ids=["not on all nodes", "other hardware", "not the same storage", "other hardware too"],
)
def test_what_else_fails_keeps_a_node_out(failed: tuple[tuple[tuple[str, str], ...], ...]) -> None:
    job = forming(*failed)
    job.state = replace(job.state, min_nodes=len(failed))
    assert job.coordinate().phase == FORMING


def test_a_node_on_its_own_cannot_distinguish_its_own_trouble_from_that_of_all() -> None:
    job = Job(nodes=1).join()
    job.records["n1"] = unhealthy(job.records["n1"], FULL)
    assert job.coordinate().phase == FORMING
