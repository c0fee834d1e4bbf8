"""What standby workers may take beside ranks: memory of the host or of its cgroup, and CPU time."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_host_resources import MIB, V1_PATH, V2_PATH, Tree

from ftslurm.agent.host_resources import available_memory
from ftslurm.agent.standby_effects import cpu_share, has_room


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.available(4000, total=8000)
    return tree


def test_without_a_limit_the_hosts_memory_counts(tree: Tree) -> None:
    assert available_memory(str(tree.root)) == (4000 * MIB, 8000 * MIB)
    tree.v2(0)
    tree.put(f"sys/fs/cgroup/{V2_PATH}/memory.max", "max\n")
    tree.put(f"sys/fs/cgroup/{V2_PATH}/memory.current", f"{MIB}\n")
    assert available_memory(str(tree.root)) == (4000 * MIB, 8000 * MIB)


def test_the_narrowest_cgroup_above_this_process_counts_and_its_cached_files_make_room(tree: Tree) -> None:
    tree.v2(0)
    above = V2_PATH.rpartition("/")[0]
    for path, limit in ((V2_PATH, 3000), (above, 2000)):
        tree.put(f"sys/fs/cgroup/{path}/memory.max", f"{limit * MIB}\n")
        tree.put(f"sys/fs/cgroup/{path}/memory.current", f"{1000 * MIB}\n")
        tree.put(f"sys/fs/cgroup/{path}/memory.stat", f"anon 5\ninactive_file {100 * MIB}\n")
    assert available_memory(str(tree.root)) == (1100 * MIB, 2000 * MIB)


def test_a_limit_of_version_1_counts(tree: Tree) -> None:
    tree.v1(0)
    directory = f"sys/fs/cgroup/memory/{V1_PATH}"
    tree.put(f"{directory}/memory.limit_in_bytes", f"{500 * MIB}\n")
    tree.put(f"{directory}/memory.usage_in_bytes", f"{100 * MIB}\n")
    assert available_memory(str(tree.root)) == (400 * MIB, 500 * MIB)


def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert available_memory(str(tmp_path)) is None


def test_standbys_in_all_slots_leave_a_tenth_of_the_memory() -> None:
    assert has_room(1024 * MIB + 800 * MIB, 8000 * MIB, 2)
    assert not has_room(1024 * MIB + 799 * MIB, 8000 * MIB, 2)


@pytest.mark.parametrize(
    ("cpus", "slots", "share"), [(2, 1, 0.25), (2, 2, 0.125), (64, 8, 1.0), (32, 8, 0.5), (256, 1, 1.0)]
)
def test_imports_beside_ranks_take_an_eighth_of_the_cpus_or_a_quarter_of_one(
    cpus: int, slots: int, share: float
) -> None:
    assert cpu_share(cpus, slots) == share
