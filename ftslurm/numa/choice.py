"""The CPUs of each rank by `--numa-binding`, as torchrun chooses them (torch.numa.binding, torch 2.13; pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.text import plural

NODE, SOCKET, EXCLUSIVE, CORE_COMPLEX = "node", "socket", "exclusive", "core-complex"
MODES = (NODE, SOCKET, EXCLUSIVE, CORE_COMPLEX)
_SHARED = {EXCLUSIVE: "core", CORE_COMPLEX: "cache"}


@dataclass(frozen=True)
class Topology:
    """Where the CPUs of a machine are.

    Attributes:
        nodes: the CPUs of each NUMA node that has some.
        groups: the group of each CPU as far as it is known, by any number: its socket, its core or its largest cache,
            whichever the mode asks for.
    """

    nodes: Mapping[int, frozenset[int]]
    groups: Mapping[int, int]


def choose(
    mode: str, numa_nodes: Sequence[int], topology: Topology, allowed: frozenset[int]
) -> list[frozenset[int] | str]:
    """Return the CPUs for the rank of each GPU, or why there are none.

    Args:
        mode: one of `MODES`.
        numa_nodes: the NUMA node of each GPU, in CUDA's order; -1: the kernel does not know it.
        topology: with the groups of that mode.
        allowed: the CPUs that Slurm has given; no other one is chosen.
    """
    # Firmware without NUMA says -1.
    only = next(iter(topology.nodes)) if len(topology.nodes) == 1 else -1
    places = [only if place < 0 else place for place in numa_nodes]
    return [_of_gpu(mode, gpu, places, topology, allowed) for gpu in range(len(places))]


def _of_gpu(
    mode: str, gpu: int, places: Sequence[int], topology: Topology, allowed: frozenset[int]
) -> frozenset[int] | str:
    place, groups = places[gpu], topology.groups
    if place < 0:
        return "the NUMA node of the GPU is unknown"
    near = topology.nodes.get(place, frozenset())
    if mode == SOCKET:
        sockets = {groups[cpu] for cpu in near if cpu in groups}
        near = near | {cpu for cpu, socket in groups.items() if socket in sockets}
    near = near & allowed
    if not near:
        return f"the GPU is on NUMA node {place}, and no CPU of it may be used here"
    if mode in (NODE, SOCKET):
        return near
    if not near <= groups.keys():
        return f"the kernel does not say which CPUs share a {_SHARED[mode]}"
    parts: dict[int, set[int]] = {}
    for cpu in near:
        parts.setdefault(groups[cpu], set()).add(cpu)
    # Also GPUs without a rank count, as in torchrun.
    sharing = [other for other, its_place in enumerate(places) if its_place == place]
    index = sharing.index(gpu)
    if mode == CORE_COMPLEX:
        largest_first = sorted(parts, key=lambda number: (-len(parts[number]), number))
        return frozenset(parts[largest_first[index % len(parts)]])
    each, more = divmod(len(parts), len(sharing))
    if each == 0:
        return f"NUMA node {place} has {plural(len(parts), 'core')} for {plural(len(sharing), 'GPU')}"
    # The first ones take what is left over.
    start = index * each + min(index, more)
    cores = sorted(parts)[start : start + each + (index < more)]
    return frozenset(cpu for core in cores for cpu in parts[core])
