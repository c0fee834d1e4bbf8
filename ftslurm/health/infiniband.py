"""InfiniBand and RoCE ports in sysfs (the kernel's Documentation/ABI/stable/sysfs-class-infiniband)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from ftslurm.dataclasses import asdict, dataclass
from ftslurm.health import pci, sysfs
from ftslurm.health.check import Check, Context, Fetch, Judge
from ftslurm.health.verdict import Json

CLASS = "/sys/class/infiniband"
ACTIVE = "ACTIVE"
INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"

_RATE = re.compile(r"([\d.]+) Gb/sec(?: \((\d+)X)?")
_IFF_UP = 1
LIMIT_S = 10.0


def check(name: str, about: str, sets: Iterable[str], fetch: Fetch, judge: Judge) -> Check:
    """Return a check that calls the NICs' drivers; see `Check`."""
    text, advice = "a NIC's driver or firmware hangs", "Look at the node's kernel log for mlx5 or the NIC's driver."
    return Check(
        name, about, frozenset(sets), LIMIT_S, fetch, judge, late_text=text, late_advice=advice, may_hang=are_there
    )


def are_there(context: Context) -> bool:
    """Return whether any such device exists."""
    return bool(sysfs.names(context.root + CLASS))


@dataclass(frozen=True)
class Port:
    """One port of a NIC.

    Attributes:
        device: "mlx5_0".
        number: of the port, from 1.
        state: "ACTIVE", "DOWN", "INIT", "ARMED" or "ACTIVE_DEFER"; empty: unknown.
        physical: "LinkUp", "Polling", "Disabled", ...; empty: unknown.
        gbps: its rate, in 10^9 bits per second; meaningless without a link.
        lanes: its width.
        layer: "InfiniBand" or "Ethernet" (RoCE).
        board: the product (PSID), or its chip; ports of one board have the same capabilities.
        firmware: its version.
        pci: address of its PCI device.
        interface: the network interface on it; empty: none, or unknown.
        switched_off: the interface exists and is set down ("ip link set ... down").
        carried: bytes sent and received since its driver was loaded; None: unknown.
    """

    device: str
    number: int
    state: str
    physical: str
    gbps: float
    lanes: int
    layer: str
    board: str
    firmware: str
    pci: str
    interface: str
    switched_off: bool
    carried: int | None

    @property
    def key(self) -> str:
        """Its identity over several runs: names may change, PCI addresses stay."""
        return f"{self.pci}/{self.number}"

    @property
    def name(self) -> str:
        """Its display name."""
        return f"{self.device} port {self.number}"

    @property
    def active(self) -> bool:
        """It can carry the job's data."""
        return self.state == ACTIVE

    @property
    def sort(self) -> tuple[str, str, str, int]:
        """Key of ports that are expected to be used in the same way.

        The second port of a card, be it a port number or a PCI function, is often left without a cable.
        """
        return self.board, self.layer, self.pci.rpartition(".")[2], self.number

    def to_json(self) -> Json:
        """Return it as a JSON object."""
        return asdict(self)


def directories(root: str) -> Iterator[tuple[str, pci.Slot, int, str]]:
    """Yield device, its place, number and directory of all ports on PCI.

    Excluded are devices that are no NICs: software emulation (rxe, siw), and virtual functions whose physical one is
    here too: they share its link, and often belong to virtual machines that do not run.
    """
    for device in sysfs.names(root + CLASS):
        below = f"{root}{CLASS}/{device}"
        slot = pci.slot_of(below)
        if slot is None or pci.is_virtual(os.path.join(below, "device")):
            continue
        for number in sysfs.names(below, "ports"):
            if number.isdecimal():
                yield device, slot, int(number), f"{below}/ports/{number}"


def ports(root: str) -> list[Port]:
    """Return all ports on PCI."""
    return [_port(root, device, slot, number, below) for device, slot, number, below in directories(root)]


def _port(root: str, device: str, slot: pci.Slot, number: int, below: str) -> Port:
    above = f"{root}{CLASS}/{device}"
    rate = _RATE.match(sysfs.text(below, "rate") or "")
    interface = _interface(above, number)
    flags = sysfs.number(above, "device/net", interface, "flags") if interface else None
    return Port(
        device=device,
        number=number,
        state=_named(sysfs.text(below, "state")),
        physical=_named(sysfs.text(below, "phys_state")),
        gbps=float(rate[1]) if rate else 0.0,
        lanes=int(rate[2]) if rate and rate[2] else 0,
        layer=sysfs.text(below, "link_layer") or "",
        board=sysfs.text(above, "board_id") or sysfs.text(above, "hca_type") or "",
        firmware=sysfs.text(above, "fw_ver") or "",
        pci=slot.address,
        interface=interface,
        switched_off=flags is not None and not flags & _IFF_UP,
        carried=_carried(below),
    )


def _named(text: str | None) -> str:
    """Return the name in "4: ACTIVE"."""
    return (text or "").partition(":")[2].strip()


def _interface(device: str, number: int) -> str:
    for name in sysfs.names(device, "device/net"):
        if (sysfs.number(device, "device/net", name, "dev_port") or 0) == number - 1:
            return name
    return ""


def _carried(below: str) -> int | None:
    # Data is counted in units of 4 bytes; EFA has bytes of its own.
    words = [sysfs.number(below, "counters", name) for name in ("port_rcv_data", "port_xmit_data")]
    sizes = [4 * word for word in words if word is not None]
    sizes += [
        size for name in ("rx_bytes", "tx_bytes") if (size := sysfs.number(below, "hw_counters", name)) is not None
    ]
    return sum(sizes) if sizes else None
