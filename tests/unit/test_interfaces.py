"""`--interface`: the address of this node by the name or the network of an interface."""

from __future__ import annotations

import pytest

from ftslurm.health.check import Context
from ftslurm.health.checks import network_interface
from ftslurm.interfaces import Interface, NoSuchInterface, choose, interfaces

NODE = [
    Interface("lo", "127.0.0.1"),
    Interface("lo", "::1"),
    Interface("ib0", "fe80::1"),
    Interface("ib0", "fd00::7"),
    Interface("ib0", "10.1.2.3"),
    Interface("ib1", "fe80::2"),
    Interface("eth0", "10.9.0.1"),
    Interface("x\x1b[2J", "192.168.0.1"),
]


@pytest.mark.parametrize(
    ("wanted", "address"),
    [
        ("ib0", "10.1.2.3"),
        ("eth0", "10.9.0.1"),
        ("10.1.0.0/16", "10.1.2.3"),
        # The host part of what a user copies from `ip address` does not matter.
        ("10.9.0.77/24", "10.9.0.1"),
        ("fd00::/8", "fd00::7"),
    ],
)
def test_an_interface_is_chosen_by_its_name_or_by_its_network(wanted: str, address: str) -> None:
    assert choose(wanted, NODE) == address


@pytest.mark.parametrize("wanted", ["ib9", "ib1", "ib", "172.16.0.0/12", "fe80::/10"])
def test_one_that_is_missing_or_has_no_usable_address_is_one_safe_line_with_those_that_are_there(wanted: str) -> None:
    with pytest.raises(NoSuchInterface) as raised:
        choose(wanted, NODE)
    text = str(raised.value)
    assert text.isprintable()
    assert ("10.9.0.1" if "/" in wanted else "eth0") in text


def test_the_kernels_list_has_the_loopback() -> None:
    found = interfaces()
    assert Interface("lo", "127.0.0.1") in found
    assert choose("127.0.0.0/8", found) == choose("lo", found) == "127.0.0.1"


def test_a_node_without_the_interface_is_unhealthy_by_its_own_finding() -> None:
    context = Context("n1", interface="ib77")
    facts = network_interface.fetch(context)
    (finding,) = network_interface.judge(facts, None, context).findings
    assert (finding.status, finding.subject) == ("fail", "--interface ib77")
    assert "no such interface" in finding.text
    # The next check, when it is there again, has nothing to compare with.
    there = {"interface": "lo", "address": None, "state": "up", "up": True, "mbps": None}
    assert network_interface.judge(there, facts, context).findings == ()
