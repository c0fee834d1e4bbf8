"""Network interfaces of this node and their addresses (getifaddrs(3)), and the choice of one of them by the user."""

from __future__ import annotations

# What `socket` is made of, without its enums.
import _socket as socket
import ctypes
from collections.abc import Iterable

from ftslurm.dataclasses import dataclass
from ftslurm.text import names, safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 6
"""Number of interfaces or addresses that a message names."""


class NoSuchInterface(ValueError):
    """No interface of this node is the chosen one; one line with those that it has."""


@dataclass(frozen=True)
class Interface:
    """One numeric address of an interface, without a scope."""

    name: str
    address: str


def choose(wanted: str, interfaces: Iterable[Interface]) -> str:
    """Return the address of the chosen interface: IPv4 before IPv6, link-local ones not at all (pure).

    Args:
        wanted: a name, or a network as in 10.0.0.0/8.

    Raises:
        NoSuchInterface: there is none.
    """
    usable = [one for one in interfaces if not one.address.startswith(("fe80:", "169.254."))]
    found = [one for one in usable if (_is_in(one.address, wanted) if "/" in wanted else one.name == wanted)]
    if not found:
        by_address = "/" in wanted
        has = dict.fromkeys(safe(one.address if by_address else one.name) for one in usable)
        what = "no address in this network" if by_address else "no such interface with an address"
        raise NoSuchInterface(f"{what} on this node; it has {names(list(has), MOST) or 'none'}")
    return min(found, key=lambda one: ":" in one.address).address


def _is_in(address: str, network: str) -> bool:
    import ipaddress

    return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)


class _Address(ctypes.Structure):
    pass


# struct ifaddrs of Linux.
_Address._fields_ = [
    ("next", ctypes.POINTER(_Address)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("broadcast", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def interfaces() -> list[Interface]:
    """Return the addresses of this node's interfaces.

    Raises:
        OSError: the system does not list them.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Address)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), "the network interfaces cannot be listed")
    found = []
    try:
        one: Any = first
        while one:
            if (address := _text(one.contents.address)) is not None:
                found.append(Interface(one.contents.name.decode(errors="replace"), address))
            one = one.contents.next
    finally:
        libc.freeifaddrs(first)
    return found


def _text(address: int | None) -> str | None:
    """Return a `struct sockaddr` as text; None if it is no address of IP."""
    if not address:
        return None
    family = ctypes.c_ushort.from_address(address).value
    # Where the number is: struct sockaddr_in, struct sockaddr_in6.
    place, length = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}.get(family, (0, 0))
    return socket.inet_ntop(family, ctypes.string_at(address + place, length)) if length else None
