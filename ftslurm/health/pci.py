"""Locations of PCI devices, and their distances, by the kernel's device tree.

The classes are those of `nvidia-smi topo -m`; their derivation from two sysfs paths is NCCL's
(pciDistance() in its former topo.h).
"""

from __future__ import annotations

import os
import re
from pathlib import PurePath

from ftslurm.dataclasses import dataclass
from ftslurm.health import sysfs

DEVICES = "/sys/bus/pci/devices"

PIX, PXB, PHB, NODE, SYS = "PIX", "PXB", "PHB", "NODE", "SYS"
RELATIONS = {
    PIX: "through one PCIe switch at most",
    PXB: "through several PCIe switches",
    PHB: "through the processor's PCIe host bridge",
    NODE: "through host bridges of one NUMA node",
    SYS: "across NUMA nodes",
}
"""From the nearest to the farthest."""

NEARNESS = {name: nearness for nearness, name in enumerate(RELATIONS)}

_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_NVIDIA, _AMD, _INTEL = 0x10DE, 0x1002, 0x8086
_VGA, _3D, _DISPLAY, _ACCELERATOR = 0x0300, 0x0302, 0x0380, 0x1200
_GPUS = {_NVIDIA: {_VGA, _3D}, _AMD: {_3D, _DISPLAY, _ACCELERATOR}, _INTEL: {_DISPLAY, _ACCELERATOR}}
"""PCI classes of a vendor's compute devices. VGA of AMD and Intel is the display of a processor, or of a workstation;
a server's own display (ASPEED, Matrox) is of neither vendor."""


@dataclass(frozen=True)
class Slot:
    """A PCI device's location.

    Attributes:
        address: "0000:1a:00.0".
        path: from the host bridge to the device: ("pci0000:17", "0000:17:01.0", "0000:1a:00.0").
        numa: its NUMA node; -1: unknown.
    """

    address: str
    path: tuple[str, ...]
    numa: int


def slot_of(device: str) -> Slot | None:
    """Return the location of the PCI device of a sysfs directory; None: it belongs to none."""
    parts = PurePath(os.path.realpath(device)).parts
    top = next((at for at, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), None)
    if top is None:
        return None
    # Entries below the device itself (its auxiliary devices, its interfaces) are no PCI addresses.
    last = max((at for at, part in enumerate(parts) if _ADDRESS.fullmatch(part)), default=None)
    if last is None:
        return None
    numa = sysfs.number(*parts[: last + 1], "numa_node")
    return Slot(parts[last], tuple(parts[top : last + 1]), -1 if numa is None else numa)


def gpus(root: str) -> list[Slot]:
    """Return the locations of the GPUs, in the order of their addresses, as numbered by NVML and ROCm too."""
    found = []
    for address in sysfs.names(root + DEVICES):
        device = f"{root}{DEVICES}/{address}"
        class_, vendor = sysfs.number(device, "class"), sysfs.number(device, "vendor")
        if class_ is None or class_ >> 8 not in _GPUS.get(vendor or 0, ()) or is_virtual(device):
            continue
        slot = slot_of(device)
        if slot is not None:
            found.append(slot)
    return found


def is_virtual(device: str) -> bool:
    """Return whether it is a virtual function of a device that is here too."""
    return os.path.lexists(os.path.join(device, "physfn"))


def relation(one: Slot, other: Slot) -> str:
    """Return the distance of two devices: PIX, PXB, PHB, NODE or SYS."""
    common = 0
    for ours, theirs in zip(one.path, other.path):  # noqa: B905 - up to the shorter one's end
        if ours != theirs:
            break
        common += 1
    if common == 0:
        return NODE if one.numa == other.numa else SYS
    if common == 1:
        return PHB
    # One switch: from the device to its downstream port, and to the switch's upstream port.
    return PIX if max(len(one.path), len(other.path)) - common <= 2 else PXB
