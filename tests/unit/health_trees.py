"""Builds trees that look like a node's /sys and /proc, for checks that read below a root."""

from __future__ import annotations

import os
from pathlib import Path

HOST_BRIDGE = "pci0000:17"
"""Where devices sit when nothing else is given."""


class Tree:
    """A root with what is put into it."""

    def __init__(self, root: Path) -> None:
        self.path = root

    @property
    def root(self) -> str:
        return str(self.path)

    def file(self, path: str, text: object) -> Path:
        """Write one file, as the kernel does: with a new line at its end."""
        target = self.path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")
        return target

    def files(self, directory: str, **texts: object) -> None:
        for name, text in texts.items():
            self.file(f"{directory}/{name}", text)

    def link(self, path: str, to: Path) -> None:
        """Make a relative symbolic link, as those in /sys are."""
        at = self.path / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.relpath(to, at.parent))

    def boot(self, name: str = "boot-1") -> None:
        self.file("proc/sys/kernel/random/boot_id", name)

    def pci(self, *path: str, numa: int = 0, **files: object) -> Path:
        """Put a device at the end of such a path: ("pci0000:17", "0000:17:01.0", "0000:18:00.0")."""
        device = self.path / "sys/devices" / Path(*path)
        device.mkdir(parents=True, exist_ok=True)
        self.files(f"sys/devices/{'/'.join(path)}", numa_node=numa, **files)
        if not (self.path / "sys/bus/pci/devices" / path[-1]).is_symlink():
            self.link(f"sys/bus/pci/devices/{path[-1]}", device)
        return device

    def gpu(self, *path: str, vendor: str = "0x10de", class_: str = "0x030200", numa: int = 0) -> Path:
        return self.pci(*path, numa=numa, vendor=vendor, **{"class": class_})

    def nic(
        self,
        name: str,
        *path: str,
        numa: int = 0,
        board: str = "MT_0000000838",
        firmware: str = "28.39.1002",
        link: tuple[str, int, str, int] | None = None,
    ) -> Nic:
        """Put an InfiniBand device there, without ports.

        Args:
            link: speed and width now and at most.
        """
        path = path or (HOST_BRIDGE, "0000:17:01.0", f"0000:1{name[-1]}:00.0")
        device = self.pci(*path, numa=numa, vendor="0x15b3", **{"class": "0x020700"})
        if link is not None:
            now, width, most, most_width = link
            below = str(device.relative_to(self.path))
            self.files(below, current_link_speed=now, current_link_width=width)
            self.files(below, max_link_speed=most, max_link_width=most_width)
        above = device / "infiniband" / name
        above.mkdir(parents=True)
        self.link(f"sys/class/infiniband/{name}", above)
        self.link(f"{above.relative_to(self.path)}/device", device)
        self.files(str(above.relative_to(self.path)), board_id=board, fw_ver=firmware, hca_type="MT4129")
        return Nic(self, device, above)

    def interface(self, name: str, **files: object) -> None:
        self.files(f"sys/class/net/{name}", **files)

    def routes(self, *routes: tuple[str, str, str, str]) -> None:
        """Write the table of routes: interface, destination, gateway and mask, in dotted numbers."""
        lines = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
        for name, destination, gateway, mask in routes:
            net, via, bits = (_reversed(one) for one in (destination, gateway, mask))
            lines.append(f"{name}\t{net}\t{via}\t0001\t0\t0\t0\t{bits}\t0\t0\t0")
        self.file("proc/net/route", "\n".join(lines))


class Nic:
    """An InfiniBand device in a tree."""

    def __init__(self, tree: Tree, device: Path, above: Path) -> None:
        self.tree = tree
        self.device = str(device.relative_to(tree.path))
        self.above = str(above.relative_to(tree.path))

    def port(
        self,
        number: int = 1,
        state: str = "4: ACTIVE",
        physical: str = "5: LinkUp",
        rate: str = "400 Gb/sec (4X NDR)",
        layer: str = "InfiniBand",
        words: int = 0,
        counters: dict[str, object] | None = None,
        hw_counters: dict[str, object] | None = None,
    ) -> Nic:
        """Give it a port.

        Args:
            words: of 4 bytes, received and sent, each.
        """
        below = f"{self.above}/ports/{number}"
        self.tree.files(below, state=state, phys_state=physical, rate=rate, link_layer=layer)
        data = {"port_rcv_data": words, "port_xmit_data": words, "link_downed": 0, "symbol_error": 0}
        self.tree.files(f"{below}/counters", **{**data, **(counters or {})})
        if hw_counters is not None:
            self.tree.files(f"{below}/hw_counters", lifespan=10, **hw_counters)
        return self

    def interface(self, name: str, flags: str = "0x1003", dev_port: int = 0) -> Nic:
        self.tree.files(f"{self.device}/net/{name}", flags=flags, dev_port=dev_port)
        return self

    def virtual_of(self, address: str) -> Nic:
        """Make it a virtual function of another device."""
        self.tree.link(f"{self.device}/physfn", self.tree.path / "sys/bus/pci/devices" / address)
        return self


def _reversed(address: str) -> str:
    return bytes(int(part) for part in reversed(address.split("."))).hex().upper()
