"""Which CPUs the ranks of `--numa-binding` get, from a machine's sysfs and the CPUs that the job has."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from health_trees import Tree

from ftslurm.numa.choice import CORE_COMPLEX, EXCLUSIVE, MODES, NODE, SOCKET, choose
from ftslurm.numa.topology import numa_nodes, parse_cpus, read_topology
from ftslurm.text import ranges

UNKNOWN = "the NUMA node of the GPU is unknown"


class Machine(Tree):
    """A machine's sysfs: two threads per core, the second ones numbered behind all first ones, as usual.

    Args:
        sockets: nodes of each socket, each the number of cores in each of its caches.
    """

    def __init__(self, root: Path, sockets: list[list[list[int]]]) -> None:
        super().__init__(root)
        cores = sum(count for socket in sockets for node in socket for count in node)
        self.cpus = frozenset(range(2 * cores))
        self.nodes: list[frozenset[int]] = []
        self.socket_of_node: list[int] = []
        self.cache: dict[int, frozenset[int]] = {}
        first = 0
        for package, nodes in enumerate(sockets):
            for node in nodes:
                begin = first
                for count in node:
                    sharing = self._threads(range(first, first + count), cores)
                    for core in range(first, first + count):
                        self._core(core, cores, package, sharing)
                    first += count
                self.socket_of_node.append(package)
                self.nodes.append(self._threads(range(begin, first), cores))
                self.file(f"sys/devices/system/node/node{len(self.nodes) - 1}/cpulist", _list(self.nodes[-1]))

    @staticmethod
    def _threads(some: Iterable[int], cores: int) -> frozenset[int]:
        return frozenset(cpu for core in some for cpu in (core, core + cores))

    def _core(self, core: int, cores: int, package: int, sharing: frozenset[int]) -> None:
        both = frozenset((core, core + cores))
        for cpu in both:
            self.cache[cpu] = sharing
            below = f"sys/devices/system/cpu/cpu{cpu}"
            self.files(f"{below}/topology", physical_package_id=package, thread_siblings_list=_list(both))
            caches = ((1, both), (2, both), (3, sharing))
            for index, (level, shared) in enumerate(caches):
                self.files(f"{below}/cache/index{index}", level=level, shared_cpu_list=_list(shared))

    def bound(self, mode: str, gpus: list[int], allowed: Iterable[int] | None = None) -> list[frozenset[int] | str]:
        """Return what the ranks of GPUs on these NUMA nodes get."""
        for number, node in enumerate(gpus):
            self.files(f"sys/bus/pci/devices/0000:{number:02x}:00.0", numa_node=node)
        places = numa_nodes([f"0000:{number:02x}:00.0" for number in range(len(gpus))], self.root)
        mask = self.cpus if allowed is None else frozenset(allowed)
        return choose(mode, places, read_topology(mode, mask, self.root), mask)


def _list(cpus: Iterable[int]) -> str:
    return ranges(cpus).replace(" ", "")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Two sockets with two NUMA nodes each, with two caches of two cores: CPUs 0-15, their second threads 16-31."""
    return Machine(tmp_path, [[[2, 2], [2, 2]], [[2, 2], [2, 2]]])


def cpus(text: str) -> frozenset[int]:
    return parse_cpus(text)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (NODE, ["0-3,16-19", "0-3,16-19", "12-15,28-31", "8-11,24-27"]),
        (SOCKET, ["0-7,16-23", "0-7,16-23", "8-15,24-31", "8-15,24-31"]),
        (EXCLUSIVE, ["0-1,16-17", "2-3,18-19", "12-15,28-31", "8-11,24-27"]),
        (CORE_COMPLEX, ["0-1,16-17", "2-3,18-19", "12-13,28-29", "8-9,24-25"]),
    ],
)
def test_each_mode_gives_a_rank_the_cpus_that_torchrun_would(machine: Machine, mode: str, expected: list[str]) -> None:
    assert machine.bound(mode, [0, 0, 3, 2]) == [cpus(text) for text in expected]


def test_the_first_gpus_of_a_numa_node_get_the_cores_that_are_left_over(machine: Machine) -> None:
    given = machine.bound(EXCLUSIVE, [0, 1, 0, 0])
    assert given == [cpus("0-1,16-17"), cpus("4-7,20-23"), cpus("2,18"), cpus("3,19")]


def test_more_gpus_than_caches_share_these_in_turn_and_the_cache_with_the_most_cpus_comes_first(
    machine: Machine,
) -> None:
    allowed = cpus("1,2-3,18-19")
    assert machine.bound(CORE_COMPLEX, [0, 0, 0], allowed) == [cpus("2-3,18-19"), cpus("1"), cpus("2-3,18-19")]


def test_only_cpus_that_the_job_has_are_given(machine: Machine) -> None:
    allowed = cpus("2,3,5,19")
    assert machine.bound(NODE, [0, 1], allowed) == [cpus("2,3,19"), cpus("5")]
    assert machine.bound(SOCKET, [0, 1], allowed) == [cpus("2,3,5,19")] * 2
    assert machine.bound(EXCLUSIVE, [0, 0], allowed) == [cpus("2"), cpus("3,19")]


@pytest.mark.parametrize("mode", MODES)
def test_a_gpu_that_is_far_from_all_cpus_of_the_job_leaves_its_rank_unbound_and_no_other(
    machine: Machine, mode: str
) -> None:
    near, far = machine.bound(mode, [0, 2], cpus("0-3"))
    assert near == cpus("0-1" if mode == CORE_COMPLEX else "0-3")
    assert far == "the GPU is on NUMA node 2, and no CPU of it may be used here"


def test_the_cpus_of_the_same_socket_are_near_enough_for_that_mode(machine: Machine) -> None:
    assert machine.bound(SOCKET, [0], cpus("4-9")) == [cpus("4-7")]


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_numa_node_binds_nothing_unless_there_is_only_one(tmp_path: Path, mode: str) -> None:
    two = Machine(tmp_path / "two", [[[2]], [[2]]])
    assert two.bound(mode, [-1, 1])[0] == UNKNOWN
    assert Machine(tmp_path / "one", [[[2]]]).bound(mode, [-1]) == [cpus("0-3")]
    with_memory = Machine(tmp_path / "memory", [[[2]]])
    with_memory.file("sys/devices/system/node/node1/cpulist", "")
    assert with_memory.bound(mode, [-1]) == [cpus("0-3")]
    # A container may hide all of it.
    assert Machine(tmp_path / "none", []).bound(mode, [-1, 0], cpus("0-3"))[0] == UNKNOWN


def test_a_device_without_its_file_in_sysfs_has_no_numa_node(tmp_path: Path) -> None:
    assert numa_nodes(["0000:1a:00.0"], str(tmp_path)) == [-1]


def test_a_numa_node_that_is_only_memory_counts_for_none(machine: Machine) -> None:
    machine.file("sys/devices/system/node/node7/cpulist", "")
    assert machine.bound(NODE, [7, 0]) == [
        "the GPU is on NUMA node 7, and no CPU of it may be used here",
        cpus("0-3,16-19"),
    ]


def test_fewer_cores_than_gpus_bind_none_of_them(machine: Machine) -> None:
    assert machine.bound(EXCLUSIVE, [0] * 5) == ["NUMA node 0 has 4 cores for 5 GPUs"] * 5


@pytest.mark.parametrize(("mode", "what"), [(EXCLUSIVE, "core"), (CORE_COMPLEX, "cache")])
def test_a_kernel_without_a_topology_binds_nothing(tmp_path: Path, mode: str, what: str) -> None:
    tree = Machine(tmp_path, [])
    tree.file("sys/devices/system/node/node0/cpulist", "0-3")
    tree.file("sys/devices/system/cpu/cpu0/cache/index0/level", "1")
    assert tree.bound(mode, [0], cpus("0-3")) == [f"the kernel does not say which CPUs share a {what}"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_machine_every_set_is_allowed_and_near_and_exclusive_ones_have_no_core_in_common(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    shape = [[[draw.randint(1, 3) for _ in range(draw.randint(1, 3))] for _ in range(draw.randint(1, 2))]] * 2
    machine = Machine(tmp_path, shape)
    gpus = [draw.randrange(len(machine.nodes)) for _ in range(draw.randint(1, 6))]
    allowed = frozenset(cpu for cpu in machine.cpus if draw.random() < draw.choice((0.3, 0.9)))
    cores = len(machine.cpus) // 2
    for mode in MODES:
        given = machine.bound(mode, gpus, allowed)
        for node, one in zip(gpus, given, strict=True):
            if isinstance(one, str):
                # Otherwise only where there is nothing, or too little, to give.
                assert mode == EXCLUSIVE or not machine.nodes[node] & allowed
                continue
            socket = frozenset().union(
                *(
                    other
                    for other, package in zip(machine.nodes, machine.socket_of_node, strict=True)
                    if package == machine.socket_of_node[node]
                )
            )
            near = socket if mode == SOCKET else machine.nodes[node]
            assert one and one <= near & allowed
            if mode in (NODE, SOCKET):
                assert one == near & allowed
            if mode == CORE_COMPLEX:
                assert one == machine.cache[min(one)] & allowed
        if mode == EXCLUSIVE:
            taken = [{cpu % cores for cpu in one} for one in given if not isinstance(one, str)]
            assert sum(map(len, taken)) == len(frozenset().union(*taken))
            for node in set(gpus):
                mine = [one for place, one in zip(gpus, given, strict=True) if place == node]
                if not any(isinstance(one, str) for one in mine):
                    assert frozenset().union(*mine) == machine.nodes[node] & allowed
