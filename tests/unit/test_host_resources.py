"""What an agent sees around its workers: cgroup trees of both versions, kills and room over time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.agent.host_resources import WINDOW_S, ResourceSampler, find_counter
from ftslurm.records.error import OomKills
from ftslurm.testing.clock import VirtualClock

V2_PATH = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
V1_PATH = "slurm/uid_1000/job_7/step_0/task_0"
MIB = 1 << 20


class Tree:
    """A /proc and a /sys of our own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("proc/sys/kernel/core_pattern", "core.%p\n")
        self.vmstat(0)
        self.space = SimpleNamespace(f_bavail=100, f_frsize=MIB, f_blocks=200, f_favail=5, f_files=10)

    def put(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def vmstat(self, kills: int) -> None:
        self.put("proc/vmstat", f"nr_free_pages 12\noom_kill {kills}\npgfault 3\n")

    def v2(self, kills: int, path: str = V2_PATH, hits: int = 0, mount: str = "sys/fs/cgroup", ooms: int = 0) -> None:
        self.put("proc/self/cgroup", f"0::/{V2_PATH}\n")
        self.put(f"{mount}/cgroup.controllers", "cpu memory\n")
        self.put(f"{mount}/{path}/memory.events", f"low 0\nhigh 0\nmax {hits}\noom {ooms}\noom_kill {kills}\n")

    def available(self, mib: int, total: int = 64 << 10) -> None:
        kib = (f"{name}:{size * 1024:>12} kB" for name, size in (("MemTotal", total), ("MemAvailable", mib)))
        self.put("proc/meminfo", "\n".join([*kib, "Hugepagesize: 2048 kB", ""]))

    def v1(self, kills: int | None, hits: int = 0) -> None:
        self.put("proc/self/cgroup", f"9:pids:/x\n4:cpu,memory:/{V1_PATH}\n0::/\n")
        count = "" if kills is None else f"oom_kill {kills}\n"
        self.put(f"sys/fs/cgroup/memory/{V1_PATH}/memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\n{count}")
        self.put(f"sys/fs/cgroup/memory/{V1_PATH}/memory.failcnt", f"{hits}\n")
        self.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
        self.put("sys/fs/cgroup/memory/slurm/uid_1000/job_7/memory.limit_in_bytes", f"{64 * MIB}\n")

    def look(self, clock: VirtualClock, **more: Any) -> ResourceSampler:
        return ResourceSampler(
            "/tmp/ftslurm-1",
            root=str(self.root),
            monotonic=clock.now,
            statvfs=lambda path: self.space,
            core_limit=0,
            **more,
        )


def oom_of(around: ResourceSampler) -> OomKills:
    oom = around.at_a_failure().oom
    assert oom is not None
    return oom


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_a_kill_in_the_workers_own_cgroup_is_counted_with_limit_and_peak(tree: Tree, clock: VirtualClock) -> None:
    tree.v2(3, hits=10)
    tree.put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max", f"{64 * MIB}\n")
    tree.put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.max", "max\n")
    for path in ("step_0/user", "step_0/user/task_0"):
        tree.put(f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/{path}/memory.max", "max\n")
    tree.put(f"sys/fs/cgroup/{V2_PATH}/memory.peak", f"{60 * MIB}\n")
    around = tree.look(clock)
    around.begin()
    clock.advance(2)
    tree.v2(4, hits=130, ooms=1)
    assert around.at_a_failure().oom == OomKills(
        recent=1,
        at_limit=True,
        in_round=1,
        window_s=2.0,
        source="memory.events of task_0",
        limit=64 * MIB,
        peak=60 * MIB,
        limit_hits=120,
    )


def test_version_1_counts_in_memory_oom_control_and_its_largest_number_is_no_limit(
    tree: Tree, clock: VirtualClock
) -> None:
    tree.v1(0)
    around = tree.look(clock)
    tree.v1(1, hits=7)
    oom = oom_of(around)
    assert (oom.recent, oom.source, oom.limit_hits) == (1, "memory.oom_control of task_0", 7)
    assert (oom.limit, oom.peak) == (None, None)
    tree.put(f"sys/fs/cgroup/memory/{V1_PATH}/memory.limit_in_bytes", "9223372036854771712\n")
    for part in ("slurm", "slurm/uid_1000", "slurm/uid_1000/job_7/step_0"):
        tree.put(f"sys/fs/cgroup/memory/{part}/memory.limit_in_bytes", "9223372036854771712\n")
    assert oom_of(around).limit == 64 * MIB


def test_a_kill_at_the_limit_of_the_job_above_is_distinguished_from_one_for_want_of_the_hosts_memory(
    tree: Tree, clock: VirtualClock
) -> None:
    parts = V2_PATH.split("/")

    def levels(job: int) -> None:
        for length in range(1, len(parts)):
            met = job if parts[length - 1] == "job_7" else 0
            tree.put(f"sys/fs/cgroup/{'/'.join(parts[:length])}/memory.events.local", f"max {met}\noom {met}\n")

    levels(0)
    tree.v2(0)
    around = tree.look(clock)
    around.begin()
    tree.v2(1)
    assert oom_of(around).at_limit is False
    around.begin()
    tree.v2(2)
    levels(1)
    assert oom_of(around).at_limit is True
    clock.advance(WINDOW_S)
    around.sample()
    clock.advance(WINDOW_S)
    tree.v2(3)
    assert oom_of(around).at_limit is False, "that was long ago"


def test_in_version_1_a_limit_that_was_met_explains_a_kill_unless_the_host_had_no_memory_left(
    tree: Tree, clock: VirtualClock
) -> None:
    tree.available(50 << 10)
    tree.v1(0)
    around = tree.look(clock)
    tree.v1(1, hits=7)
    assert oom_of(around).at_limit is True
    around.begin()
    tree.available(500)
    around.sample()
    tree.available(40 << 10)
    tree.v1(2, hits=9)
    found = around.at_a_failure()
    assert found.oom is not None
    assert found.oom.at_limit is False
    assert (found.memory_total, found.least_available) == (64 << 30, 500 * MIB)


def test_where_the_task_has_no_counter_the_nearest_cgroup_above_it_counts(tree: Tree) -> None:
    tree.v2(0, path="system.slice/slurmstepd.scope/job_7/step_0")
    unread: list[str] = []
    counter = find_counter(str(tree.root), unread)
    assert counter is not None
    assert (counter.level, counter.version, unread) == ("step_0", 2, [])


def test_a_hybrid_tree_has_version_2_under_unified_and_memory_where_its_controller_is(tree: Tree) -> None:
    tree.v2(0, mount="sys/fs/cgroup/unified")
    counter = find_counter(str(tree.root), [])
    assert counter is not None
    assert (counter.version, "unified" in counter.directory) == (2, True)
    tree.v1(0)
    counter = find_counter(str(tree.root), [])
    assert counter is not None
    assert counter.version == 1


def test_in_a_container_the_mounted_root_is_the_own_cgroup(tree: Tree) -> None:
    tree.v2(0, path="")
    counter = find_counter(str(tree.root), [])
    assert counter is not None
    assert counter.level == "the root cgroup"


@pytest.mark.parametrize("case", ["no cgroup", "no counter", "old kernel", "garbage"])
def test_a_counter_that_cannot_be_read_is_named_and_never_taken_for_zero(
    tree: Tree, clock: VirtualClock, case: str
) -> None:
    if case == "no counter":
        tree.put("proc/self/cgroup", "0::/x\n")
        tree.put("sys/fs/cgroup/cgroup.controllers", "cpu\n")
    elif case == "old kernel":
        tree.v1(None)
    elif case == "garbage":
        tree.put("proc/self/cgroup", "\x00\nmemory\n:::\n4:memory\n")
    found = tree.look(clock).at_a_failure()
    assert found.oom is None
    assert "memory cgroup" in found.unread[0]


def test_a_kill_long_before_the_end_is_of_the_round_but_not_recent(tree: Tree, clock: VirtualClock) -> None:
    tree.v2(0)
    around = tree.look(clock)
    around.begin()
    clock.advance(3)
    tree.v2(2)
    for _ in range(10):
        around.sample()
        clock.advance(3)
    oom = oom_of(around)
    assert (oom.recent, oom.in_round) == (0, 2)
    assert WINDOW_S <= oom.window_s < WINDOW_S + 3


def test_a_kill_between_two_samples_counts_even_when_its_victim_took_seconds_to_end(
    tree: Tree, clock: VirtualClock
) -> None:
    tree.v2(0)
    around = tree.look(clock)
    around.begin()
    for _ in range(5):
        clock.advance(3)
        around.sample()
    tree.v2(1)
    around.sample()
    clock.advance(3)
    assert oom_of(around).recent == 1


def test_a_new_round_counts_anew(tree: Tree, clock: VirtualClock) -> None:
    tree.v2(0)
    around = tree.look(clock)
    around.begin()
    tree.v2(1)
    assert around.begin()["oom_kills"] == 1
    assert oom_of(around).in_round == 0


def test_the_least_room_of_the_last_seconds_is_kept_for_it_is_free_again_after_the_end(
    tree: Tree, clock: VirtualClock
) -> None:
    tree.v2(0)
    around = tree.look(clock)
    around.begin()
    tree.space.f_bavail = 0
    clock.advance(3)
    around.sample()
    tree.space.f_bavail = 90
    clock.advance(3)
    shm, tmp = around.at_a_failure().spaces
    assert (shm.path, shm.free, shm.total, shm.least_free) == ("/dev/shm", 90 * MIB, 200 * MIB, 0)
    assert (tmp.path, tmp.free_inodes, tmp.total_inodes) == ("/tmp", 5, 10)


def test_kills_elsewhere_on_the_node_are_counted_separately(tree: Tree, clock: VirtualClock) -> None:
    tree.v2(0)
    around = tree.look(clock)
    around.begin()
    tree.vmstat(3)
    found = around.at_a_failure()
    assert found.oom is not None
    assert (found.node_oom_kills, found.oom.recent) == (3, 0)
    assert (found.core_limit, found.core_pattern) == (0, "core.%p")


def test_a_filesystem_that_is_not_there_is_named(tree: Tree, clock: VirtualClock) -> None:
    def gone(path: str) -> Any:
        raise FileNotFoundError(2, "No such file or directory")

    tree.v2(0)
    around = ResourceSampler("/tmp/x", root=str(tree.root), monotonic=clock.now, statvfs=gone)
    found = around.at_a_failure()
    assert found.spaces == ()
    assert found.unread == ("/dev/shm: No such file or directory", "/tmp: No such file or directory")
