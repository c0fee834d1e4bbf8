"""Where CPUs and GPUs are: the GPUs that a program can use here, by CUDA's driver, and their places, by sysfs.

Linux: sysfs-devices-node, sysfs-devices-system-cpu and sysfs-bus-pci in Documentation/ABI.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from ftslurm.health import sysfs
from ftslurm.health.pci import DEVICES
from ftslurm.numa.choice import CORE_COMPLEX, EXCLUSIVE, SOCKET, Topology

_NODES, _CPUS = "/sys/devices/system/node", "/sys/devices/system/cpu"
LIBRARY = "libcuda.so.1"
_LONGEST = 64


class NoGpus(Exception):
    """CUDA finds no GPU; the text is the reason."""


def gpu_addresses() -> list[str]:
    """Return the GPUs' PCI addresses in CUDA's order, as "0000:1a:00.0"; of a MIG device its GPU's.

    CUDA's driver is asked, not NVML: what CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and MIG mean for a rank is its
    answer. It makes no context, so no memory of a GPU is taken. A driver that is broken may never return.

    Raises:
        NoGpus: there is none.
    """
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        raise NoGpus(f"no CUDA driver here ({LIBRARY})") from None
    count = ctypes.c_int()
    _check(driver, driver.cuInit(0))
    _check(driver, driver.cuDeviceGetCount(ctypes.byref(count)))
    if not count.value:
        raise NoGpus("CUDA finds no GPU")
    return [_gpu_address(driver, number) for number in range(count.value)]


def _gpu_address(driver: ctypes.CDLL, number: int) -> str:
    device, text = ctypes.c_int(), ctypes.create_string_buffer(_LONGEST)
    _check(driver, driver.cuDeviceGet(ctypes.byref(device), number))
    _check(driver, driver.cuDeviceGetPCIBusId(text, _LONGEST, device))
    return text.value.decode("ascii").lower()


def _check(driver: ctypes.CDLL, result: int) -> None:
    if result:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(result, ctypes.byref(name))
        raise NoGpus(f"CUDA finds no GPU ({name.value.decode() if name.value else result})")


def read_topology(mode: str, allowed: frozenset[int], root: str = "") -> Topology:
    """Read where the CPUs are, with the groups that `mode` needs.

    Args:
        mode: one of `ftslurm.numa.choice.MODES`.
        allowed: the CPUs that may be used.
        root: of the directory tree.
    """
    nodes = {}
    for name in sysfs.names(root + _NODES):
        if name.startswith("node") and name[4:].isdecimal():
            nodes[int(name[4:])] = parse_cpus(sysfs.text(root + _NODES, name, "cpulist"))
    # A GPU's memory may be a node, too.
    nodes = {node: cpus for node, cpus in nodes.items() if cpus}
    cpus = allowed.union(*nodes.values()) if mode == SOCKET else allowed
    groups = {cpu: _group_of(mode, f"{root}{_CPUS}/cpu{cpu}") for cpu in cpus}
    return Topology(nodes, {cpu: group for cpu, group in groups.items() if group is not None})


def numa_nodes(addresses: Iterable[str], root: str = "") -> list[int]:
    """Return the NUMA node of each PCI device; -1: unknown."""
    found = (sysfs.number(root + DEVICES, address, "numa_node") for address in addresses)
    return [-1 if node is None else node for node in found]


def parse_cpus(text: str | None) -> frozenset[int]:
    """Return the CPUs of a list as the kernel writes it, "0-3,8"; none without a text."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        first, dash, last = part.partition("-")
        if first.strip():
            cpus.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(cpus)


def _group_of(mode: str, cpu: str) -> int | None:
    """Return the socket, or the first CPU of the core or cache, of a CPU's directory; None: unknown, or not needed."""
    if mode == SOCKET:
        return sysfs.number(cpu, "topology", "physical_package_id")
    if mode == EXCLUSIVE:
        return min(parse_cpus(sysfs.text(cpu, "topology", "thread_siblings_list")), default=None)
    return _largest_cache(f"{cpu}/cache") if mode == CORE_COMPLEX else None


def _largest_cache(directory: str) -> int | None:
    caches = []
    for name in sysfs.names(directory):
        level = sysfs.number(directory, name, "level")
        if level is not None:
            caches.append((level, parse_cpus(sysfs.text(directory, name, "shared_cpu_list"))))
    return min(max(caches, key=lambda cache: cache[0])[1], default=None) if caches else None
