"""What is found of names, addresses and interfaces: pure, over facts and over trees that look like a node's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftslurm.health import lookup, tcp_probe
from ftslurm.health.addresses import is_loopback, is_number, neighbours
from ftslurm.health.check import Absent, Context, Peer
from ftslurm.health.checks import host_versions, network_interface, network_names, network_reach
from ftslurm.health.tcp_probe import ProbeResult
from ftslurm.health.verdict import Finding, Json, Judgement, describe
from ftslurm.records.health import FAIL, WARN
from tests.unit.health_trees import Tree

PEERS = (Peer("n2", "10.0.0.2", 29500), Peer("n3", "10.0.0.3", 29500), Peer("n4", "10.0.0.4", 29500))
BY_NAME = tuple(Peer(f"n{n}", f"n{n}", 29500) for n in (2, 3, 4))
CONTEXT = Context("n1", address="10.0.0.1", peers=PEERS)
BY_NAME_CONTEXT = Context("n1", address="n1", peers=BY_NAME)
GOOD = {f"n{n}": [f"10.0.0.{n}"] for n in (1, 2, 3, 4)}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def statuses_and_texts(judgement: Judgement) -> list[tuple[str, str]]:
    return [(finding.status, describe(finding)) for finding in judgement.findings]


def names(addresses: dict[str, list[str]], **more: Any) -> Json:
    facts: Json = {
        "own": ["n1"],
        "published": None,
        "addresses": {**GOOD, **addresses},
        "unanswered": [],
        "problems": {},
        "slow": {},
        "here": ["10.0.0.1", "127.0.0.1", "127.0.1.1"],
    }
    return {**facts, **more}


def test_correct_names_are_healthy() -> None:
    judgement = network_names.judge(names({}), None, CONTEXT)
    assert judgement == Judgement("n1 is 10.0.0.1; 4 names looked up")
    assert network_names.judge(names({}, published="n1"), None, BY_NAME_CONTEXT).findings == ()


@pytest.mark.parametrize("peers", [(), (Peer("n2", "127.0.0.1", 1),), (Peer("n1", "10.0.0.1", 1),)])
def test_a_node_alone_needs_no_name_that_others_understand(peers: tuple[Peer, ...]) -> None:
    context = Context("n1", peers=peers)
    for addresses in ([], ["127.0.1.1"], ["10.9.9.9"]):
        assert network_names.judge(names({"n1": addresses}), None, context).findings == ()


def test_addresses_are_distinguished_from_names() -> None:
    assert is_number("10.0.0.1") and is_number("fe80::1") and not is_number("n1") and not is_number("1.2.3")
    assert is_loopback("127.0.1.1") and is_loopback("::1")
    assert not is_loopback("10.0.0.1") and not is_loopback("127.example.org")


FAULTS: list[tuple[str, Json, Context, str, str]] = [
    (
        "own-name-unknown",
        names({"n1": []}, problems={"n1": "Name or service not known"}),
        CONTEXT,
        WARN,
        "this node's own name n1 does not resolve (Name or service not known)",
    ),
    (
        "own-name-is-loopback",
        names({"n1": ["127.0.1.1"]}),
        CONTEXT,
        WARN,
        "this node's own name n1 is 127.0.1.1 here, where no other node reaches it",
    ),
    (
        "own-name-is-another-node",
        names({"n1": ["10.0.0.9"]}),
        CONTEXT,
        WARN,
        "this node's own name n1 is 10.0.0.9, which is no address of this node",
    ),
    (
        "own-name-is-another-node-and-others-are-given-it",
        names({"n1": ["10.0.0.9"]}, published="n1"),
        BY_NAME_CONTEXT,
        FAIL,
        "this node's own name n1 is 10.0.0.9, which is no address of this node",
    ),
    (
        "hosts-name-is-another-node",
        names({"n1-old": ["10.0.0.9"]}, own=["n1", "n1-old"]),
        CONTEXT,
        WARN,
        "this node's own name n1-old is 10.0.0.9, which is no address of this node",
    ),
    (
        "peer-unknown",
        names({"n3": []}, problems={"n3": "Name or service not known"}),
        CONTEXT,
        WARN,
        "n3: does not resolve here (Name or service not known)",
    ),
    (
        "no-peer-known",
        names({"n2": [], "n3": [], "n4": []}, problems={"n2": "Temporary failure in name resolution"}),
        BY_NAME_CONTEXT,
        FAIL,
        "none of 3 other nodes' names resolves here (Temporary failure in name resolution)",
    ),
    (
        "no-peer-known-but-not-needed",
        names({"n2": [], "n3": [], "n4": []}),
        CONTEXT,
        WARN,
        "n2, n3, n4: does not resolve here",
    ),
    (
        "peer-is-loopback-here",
        names({"n2": ["127.0.1.1"]}),
        CONTEXT,
        WARN,
        "n2: resolves to this node's own loopback (127.0.1.1)",
    ),
    ("slow-name-server", names({}, slow={"n2": 2.5, "n3": 1.5}), CONTEXT, WARN, "n2 took 2.5 s to look up"),
    (
        "silent-name-server",
        names({}, unanswered=["n5", "n6"], slow={"n5": 4.0, "n6": 4.0}),
        CONTEXT,
        WARN,
        "no answer for n5, n6 within 4 s",
    ),
]


@pytest.mark.parametrize(
    ("facts", "context", "status", "expected"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_wrong_names_are_found_with_the_right_text(facts: Json, context: Context, status: str, expected: str) -> None:
    assert statuses_and_texts(network_names.judge(facts, None, context)) == [(status, expected)]


def test_the_names_that_the_job_needs_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def system(name: str) -> list[str]:
        asked.append(name)
        if name == "n3":
            raise OSError(-2, "Name or service not known")
        return {"n2": ["10.0.0.2"], "n1": ["127.0.0.1"]}.get(name, ["127.0.0.1"])

    real = lookup.look_up
    monkeypatch.setattr(network_names, "look_up", lambda wanted, limit_s: real(wanted, limit_s, system))
    peers = (Peer("n2", "10.0.0.2"), Peer("n3", "n3-ib"), Peer("n1", "10.0.0.1"))
    facts = network_names.fetch(Context("n1", address="n1-ib", peers=peers))
    assert {"n1", "n1-ib", "n2", "n3", "n3-ib"} <= set(asked) and "10.0.0.2" not in asked
    assert facts["addresses"]["n2"] == ["10.0.0.2"] and facts["addresses"]["n3"] == []
    assert facts["problems"] == {"n3": "Name or service not known"}
    assert facts["here"] == ["127.0.0.1"] and facts["published"] == "n1-ib" and facts["own"][0] == "n1"


def test_a_query_that_hangs_delays_no_other() -> None:
    import threading

    gate = threading.Event()

    def resolver(name: str) -> list[str]:
        if name == "hangs":
            gate.wait(5.0)
        return ["10.0.0.1"]

    found = lookup.look_up(["hangs", *(f"n{n}" for n in range(40)), "n1"], 0.2, resolver)
    gate.set()
    assert found["hangs"].addresses is None and found["hangs"].problem == "no answer within 0.2 s"
    assert len(found) == 41 and all(one.addresses == ("10.0.0.1",) for n, one in found.items() if n != "hangs")


def test_each_node_tries_those_that_follow_it() -> None:
    peers = [Peer(f"n{n}", "") for n in (3, 1, 5, 2, 4)]
    assert [peer.node for peer in neighbours(peers, "n4", 3)] == ["n5", "n1", "n2"]
    assert [peer.node for peer in neighbours(peers, "n0", 9)] == ["n1", "n2", "n3", "n4", "n5"]
    assert neighbours([], "n1", 9) == []


def reached(**ways: ProbeResult) -> Json:
    return {
        "peers": [
            {"node": node, "at": f"{node}:29500", "there": way.there, "outcome": way.outcome, "text": way.text}
            for node, way in ways.items()
        ]
    }


YES, REFUSED = ProbeResult(tcp_probe.CONNECTED, "connected"), ProbeResult(tcp_probe.REFUSED, "connection refused")
SILENT = ProbeResult(tcp_probe.SILENT, "no answer within 3.5 s")
NO_ROUTE = ProbeResult(tcp_probe.NO_ROUTE, "no route to host")
UNKNOWN_NAME = ProbeResult(tcp_probe.UNRESOLVED, "its name does not resolve")


def test_a_node_that_refuses_is_reached() -> None:
    judgement = network_reach.judge(reached(n2=YES, n3=REFUSED), None, CONTEXT)
    assert judgement == Judgement("2 of 2 other nodes reached")


def test_a_node_alone_reaches_all() -> None:
    with pytest.raises(Absent, match="no other node to reach"):
        network_reach.fetch(Context("n1", peers=(Peer("n2", "10.0.0.2", 0), Peer("n1", "10.0.0.1", 29500))))


REACH_FAULTS: list[tuple[str, Json, str, str]] = [
    (
        "one-is-silent",
        reached(n2=YES, n3=SILENT),
        WARN,
        "n3: cannot be reached from here at n3:29500: no answer within 3.5 s",
    ),
    (
        "one-has-no-route",
        reached(n2=YES, n3=NO_ROUTE, n4=YES),
        WARN,
        "n3: cannot be reached from here at n3:29500: no route to host",
    ),
    (
        "one-has-no-address",
        reached(n2=YES, n3=UNKNOWN_NAME),
        WARN,
        "n3: cannot be reached from here at n3:29500: its name does not resolve",
    ),
    (
        "the-only-one-is-silent",
        reached(n2=SILENT),
        WARN,
        "n2: cannot be reached from here at n2:29500: no answer within 3.5 s",
    ),
    (
        "cut-off",
        reached(n2=SILENT, n3=SILENT, n4=NO_ROUTE),
        FAIL,
        "none of 3 other nodes can be reached (no answer within 3.5 s, no route to host)",
    ),
]


@pytest.mark.parametrize(
    ("facts", "status", "expected"), [fault[1:] for fault in REACH_FAULTS], ids=[fault[0] for fault in REACH_FAULTS]
)
def test_unreachable_nodes_are_reported_with_the_right_text(facts: Json, status: str, expected: str) -> None:
    assert statuses_and_texts(network_reach.judge(facts, None, CONTEXT)) == [(status, expected)]


def routed(tree: Tree) -> None:
    tree.boot()
    tree.routes(
        ("eth0", "0.0.0.0", "10.0.0.254", "0.0.0.0"),
        ("eth0", "10.0.0.0", "0.0.0.0", "255.255.255.0"),
        ("ib0", "10.1.0.0", "0.0.0.0", "255.255.0.0"),
        ("tun0", "10.0.0.0", "10.0.0.253", "255.0.0.0"),
    )
    up = {"operstate": "up", "flags": "0x1003", "speed": 25000, "mtu": 9000, "carrier_changes": 4}
    tree.interface("eth0", **up)
    tree.interface("ib0", **{**up, "speed": 400000, "mtu": 2044, "carrier_down_count": 7})


def interface(tree: Tree, address: str | None = "10.0.0.1", before: Json | None = None) -> Judgement:
    context = Context("n1", root=tree.root, address=address)
    return network_interface.judge(network_interface.fetch(context), before, context)


def test_the_interface_is_the_one_with_the_nodes_address(tree: Tree) -> None:
    routed(tree)
    assert interface(tree) == Judgement("eth0 is up at 25 Gb/s")
    assert interface(tree, "10.1.2.3") == Judgement("ib0 is up at 400 Gb/s")
    facts = network_interface.fetch(Context("n1", root=tree.root, address="10.1.2.3"))
    assert facts["losses"] == 7 and facts["mtu"] == 2044 and facts["address"] == "10.1.2.3"


@pytest.mark.parametrize("address", [None, "n1", "192.168.7.7"])
def test_without_an_address_it_is_the_one_with_the_default_route(address: str | None, tree: Tree) -> None:
    routed(tree)
    assert interface(tree, address) == Judgement("eth0 is up at 25 Gb/s")
    assert network_interface.fetch(Context("n1", root=tree.root, address=address))["address"] is None


def test_of_two_interfaces_in_one_network_one_that_is_up_is_no_fault(tree: Tree) -> None:
    routed(tree)
    tree.routes(("eth0", "10.0.0.0", "0.0.0.0", "255.255.255.0"), ("eth1", "10.0.0.0", "0.0.0.0", "255.255.255.0"))
    tree.interface("eth1", operstate="down")
    assert interface(tree) == Judgement("eth0 is up at 25 Gb/s")
    tree.interface("eth0", operstate="down")
    assert [finding.status for finding in interface(tree).findings] == [WARN]


def test_an_address_of_ipv6_is_found_too(tree: Tree) -> None:
    routed(tree)
    tree.file("proc/net/if_inet6", "fd000000000000000000000000000002 04 40 00 82     ib0")
    assert interface(tree, "fd00::2") == Judgement("ib0 is up at 400 Gb/s")
    with pytest.raises(Absent, match="no interface found that carries this node's address"):
        interface(tree, "fd00::3")


def test_without_devices_there_are_no_findings(tree: Tree) -> None:
    with pytest.raises(Absent, match="no interface found"):
        interface(tree)
    with pytest.raises(Absent, match="the loopback's"):
        interface(tree, "127.0.0.1")


@pytest.mark.parametrize("state", ["up", "unknown", "dormant"])
def test_drivers_that_know_no_state_or_speed_are_healthy(state: str, tree: Tree) -> None:
    routed(tree)
    tree.interface("eth0", operstate=state, speed=-1)
    assert interface(tree) == Judgement(f"eth0 is {state}")


def facts_before(tree: Tree) -> Json:
    routed(tree)
    return network_interface.fetch(Context("n1", root=tree.root, address="10.0.0.1"))


def down(tree: Tree) -> Json:
    before = facts_before(tree)
    tree.interface("eth0", operstate="down")
    return before


def below_down(tree: Tree) -> None:
    routed(tree)
    tree.interface("eth0", operstate="lowerlayerdown")


def set_down(tree: Tree) -> None:
    routed(tree)
    tree.interface("eth0", operstate="down", flags="0x1002")


def slower(tree: Tree) -> Json:
    before = facts_before(tree)
    tree.interface("eth0", speed=1000)
    return before


def slowest(tree: Tree) -> Json:
    before = facts_before(tree)
    tree.interface("eth0", speed=100)
    return before


def lost(changes: int) -> Callable[[Tree], Json]:
    def build(tree: Tree) -> Json:
        before = facts_before(tree)
        tree.interface("eth0", carrier_changes=4 + changes)
        return before

    return build


INTERFACE_FAULTS: list[tuple[str, Callable[[Tree], Json | None], str, str]] = [
    ("interface-down", down, FAIL, "eth0: carries this node's address 10.0.0.1, and is down"),
    ("bond-without-members", below_down, FAIL, "eth0: carries this node's address 10.0.0.1, and is lowerlayerdown"),
    ("interface-set-down", set_down, FAIL, "eth0: carries this node's address 10.0.0.1, and is set down"),
    (
        "interface-slower",
        slower,
        WARN,
        "eth0: its link has fallen to 1 Gb/s, was 25 Gb/s at the last check",
    ),
    (
        "interface-much-slower",
        slowest,
        WARN,
        "eth0: its link has fallen to 100 Mb/s, was 25 Gb/s at the last check",
    ),
    ("carrier-lost", lost(2), WARN, "eth0: has lost its link once since the last check"),
    ("carrier-flaps", lost(10), WARN, "eth0: has lost its link 5 times since the last check"),
]


@pytest.mark.parametrize(
    ("build", "status", "expected"), [fault[1:] for fault in INTERFACE_FAULTS], ids=[f[0] for f in INTERFACE_FAULTS]
)
def test_a_fault_of_the_interface_is_found_with_the_right_text(
    build: Callable[[Tree], Json | None], status: str, expected: str, tree: Tree
) -> None:
    before = build(tree)
    assert statuses_and_texts(interface(tree, "10.0.0.1", before)) == [(status, expected)]


def test_an_interface_that_may_not_be_the_jobs_is_no_reason_to_keep_a_node_out(tree: Tree) -> None:
    down(tree)
    assert statuses_and_texts(interface(tree, None)) == [(WARN, "eth0: leads to the other nodes, and is down")]


def test_after_a_restart_of_the_node_the_link_has_not_been_lost(tree: Tree) -> None:
    before = lost(10)(tree)
    tree.boot("boot-2")
    assert interface(tree, "10.0.0.1", before).findings == ()


def test_versions_are_read_and_not_judged(tree: Tree) -> None:
    tree.file("proc/sys/kernel/osrelease", "5.15.0-91-generic")
    tree.file("etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.3 LTS"')
    tree.file("proc/cpuinfo", "processor\t: 0\nmodel name\t: Xeon 8480C\n\nprocessor\t: 1\nmodel name\t: Xeon 8480C")
    tree.file("sys/module/mlx5_core/version", "24.01-0.3.3")
    context = Context("n1", root=tree.root)
    judgement = host_versions.judge(host_versions.fetch(context), None, context)
    assert judgement == Judgement("Ubuntu 22.04.3 LTS, Linux 5.15.0-91-generic, Xeon 8480C, mlx5_core 24.01-0.3.3")


def test_a_tree_without_versions_is_healthy(tree: Tree) -> None:
    context = Context("n1", root=tree.root)
    assert host_versions.judge(host_versions.fetch(context), None, context) == Judgement("unknown")


def test_findings_have_no_full_stop_and_advice_has_one() -> None:
    for _, facts, context, *_ in FAULTS:
        for finding in network_names.judge(facts, None, context).findings:
            assert isinstance(finding, Finding)
            assert not finding.text.endswith(".") and finding.advice.endswith(".")
