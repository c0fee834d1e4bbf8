"""What only the comparison of nodes shows."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from ftslurm.health.check import Absent, Context
from ftslurm.health.peers import COMPARED, compare, compare_facts, facts_of
from ftslurm.health.verdict import Finding, Json, NodeFinding, Verdict, describe
from ftslurm.records.health import FAIL, OK, UNKNOWN, WARN

GIB = 1 << 30

Values = dict[str, Any]


def gpus(count: int, **more: Any) -> Json:
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory": 80 * GIB, "width": 16, "links": [1] * 18, **more}
    return {"gpus": [dict(gpu) for _ in range(count)]}


def ports(devices: int = 8, rates: tuple[float, ...] = (400.0,) * 8, firmware: str = "28.39") -> Json:
    return {"devices": devices, "rates": list(rates), "firmware": {"MT_0000000838": firmware}}


def versions(**changed: Any) -> Json:
    same = {
        "kernel": "5.15.0-91",
        "system": "Ubuntu 22.04.3 LTS",
        "cpu": "Xeon 8480C",
        "modules": {"mlx5_core": "24.01"},
    }
    return {**same, **changed}


def nodes(check: str, usual: Json | None, **odd: Json | None) -> dict[str, dict[str, Json | None]]:
    """Return the facts of eight nodes: those that are named, and the usual ones."""
    names = [f"n{n}" for n in range(1, 9)]
    return {name: {check: odd.get(name, usual)} for name in names}


def described(found: tuple[NodeFinding, ...]) -> list[tuple[tuple[str, ...], str, str]]:
    return [(one.nodes, one.check, describe(one.finding)) for one in found]


def places(shared: str) -> Json:
    kinds = {"/scratch/run": shared, "/tmp": "xfs"}
    return {"places": [{"path": path, "mount": {"type": kind, "source": ""}} for path, kind in kinds.items()]}


def names(**addresses: list[str]) -> Json:
    return {"own": ["n1"], "addresses": addresses}


FAULTS: list[tuple[str, str, Json | None, Json | None, str]] = [
    ("gpu-missing", "gpu-count", gpus(8), gpus(7), "7 of 8 nodes have 8 GPUs, this one 7 GPUs"),
    ("no-gpu-at-all", "gpu-count", gpus(8), None, "7 of 8 nodes have 8 GPUs, this one no GPUs"),
    (
        "other-gpu",
        "gpu-count",
        gpus(8),
        gpus(8, name="NVIDIA A100-SXM4-80GB"),
        "7 of 8 nodes have NVIDIA H100 80GB HBM3, this one NVIDIA A100-SXM4-80GB",
    ),
    (
        "less-gpu-memory",
        "gpu-count",
        gpus(2),
        gpus(2, memory=40 * GIB),
        "7 of 8 nodes have 80 GiB on each GPU, this one 40 GiB on each GPU",
    ),
    (
        "amd-gpu-missing",
        "amd-count",
        {"buses": ["a", "b"]},
        {"buses": ["a"]},
        "7 of 8 nodes have 2 AMD GPUs, this one 1 AMD GPU",
    ),
    (
        "other-driver",
        "gpu-driver",
        {"driver": "570.86.15"},
        {"driver": "550.54.14"},
        "7 of 8 nodes have NVIDIA driver 570.86.15, this one NVIDIA driver 550.54.14",
    ),
    (
        "narrow-gpus",
        "gpu-pcie",
        gpus(2),
        {"gpus": [{"width": 16}, {"width": 8}]},
        "7 of 8 nodes have 2 x 16 PCIe lanes, this one 1 x 8 and 1 x 16 PCIe lanes",
    ),
    (
        "fewer-nvlinks",
        "gpu-nvlink",
        gpus(8),
        gpus(8, links=[1] * 17),
        "7 of 8 nodes have 144 NVLinks, this one 136 NVLinks",
    ),
    ("nic-missing", "nic-ports", ports(), ports(devices=7), "7 of 8 nodes have 8 NICs, this one 7 NICs"),
    (
        "port-down",
        "nic-ports",
        ports(),
        ports(rates=(400.0,) * 7),
        "7 of 8 nodes have 8 x 400 Gb/s on ports that are up, this one 7 x 400 Gb/s on ports that are up",
    ),
    (
        "port-slow",
        "nic-ports",
        ports(),
        ports(rates=(400.0,) * 7 + (200.0,)),
        "7 of 8 nodes have 8 x 400 Gb/s on ports that are up, this one 7 x 400 and 1 x 200 Gb/s on ports that are up",
    ),
    (
        "no-port-up",
        "nic-ports",
        ports(),
        ports(rates=()),
        "7 of 8 nodes have 8 x 400 Gb/s on ports that are up, this one no Gb/s on ports that are up",
    ),
    (
        "old-firmware",
        "nic-ports",
        ports(),
        ports(firmware="28.33"),
        "7 of 8 nodes have firmware MT_0000000838 28.39, this one firmware MT_0000000838 28.33",
    ),
    (
        "nics-slow-on-pcie",
        "nic-pcie",
        {"nics": {"a": {"gts": 32.0, "width": 16}}},
        {"nics": {"a": {"gts": 16.0, "width": 16}}},
        "7 of 8 nodes have 1 x 32 GT/s x16 on the NICs' PCIe, this one 1 x 16 GT/s x16 on the NICs' PCIe",
    ),
    (
        "nic-far",
        "nic-nearest",
        {"up": ["PIX", "PIX"]},
        {"up": ["PIX", None]},
        "7 of 8 nodes have 2 x PIX from GPU to NIC, this one 1 x PIX and 1 x none from GPU to NIC",
    ),
    (
        "slow-interface",
        "network-interface",
        {"mbps": 25000, "mtu": 9000},
        {"mbps": 1000, "mtu": 9000},
        "7 of 8 nodes have an interface of 25 Gb/s, this one an interface of 1 Gb/s",
    ),
    (
        "other-mtu",
        "network-interface",
        {"mbps": 25000, "mtu": 9000},
        {"mbps": 25000, "mtu": 1500},
        "7 of 8 nodes have an MTU of 9000, this one an MTU of 1500",
    ),
    (
        "less-memory",
        "host-memory",
        {"total": 2048 * GIB},
        {"total": 1984 * GIB},
        "7 of 8 nodes have 2 TiB of memory, this one 1.94 TiB of memory",
    ),
    ("fewer-cpus", "host-processes", {"cpus": 112}, {"cpus": 111}, "7 of 8 nodes have 112 CPUs, this one 111 CPUs"),
    (
        "slow-clock-source",
        "host-clock",
        {"source": "tsc", "now_s": 1.7e9},
        {"source": "hpet", "now_s": 1.7e9},
        "7 of 8 nodes have clock source tsc, this one clock source hpet",
    ),
    (
        "clock-behind",
        "host-clock",
        {"source": "tsc", "now_s": 1.7e9},
        {"source": "tsc", "now_s": 1.7e9 - 10800},
        "clock: it is 3 h behind those of 7 of 8 nodes",
    ),
    (
        "clock-ahead",
        "host-clock",
        {"source": "tsc", "now_s": 1.7e9},
        {"source": "tsc", "now_s": 1.7e9 + 100},
        "clock: it is 1 min 40 s ahead of those of 7 of 8 nodes",
    ),
    (
        "other-governor",
        "host-frequency",
        {"policies": [{"scaling_governor": "performance"}]},
        {"policies": [{"scaling_governor": "powersave"}]},
        "7 of 8 nodes have CPU governor performance, this one CPU governor powersave",
    ),
    (
        "other-limits",
        "host-limits",
        {"soft": {"files": 1048576, "locked": None, "processes": 1}},
        {"soft": {"files": 1024, "locked": 65536, "processes": 2}},
        "7 of 8 nodes have limits files 1048576, locked unlimited, this one limits files 1024, locked 65536",
    ),
    (
        "other-kernel",
        "host-versions",
        versions(),
        versions(kernel="5.15.0-25"),
        "7 of 8 nodes have kernel 5.15.0-91, this one kernel 5.15.0-25",
    ),
    (
        "other-system",
        "host-versions",
        versions(),
        versions(system="Ubuntu 24.04 LTS"),
        "7 of 8 nodes have Ubuntu 22.04.3 LTS, this one Ubuntu 24.04 LTS",
    ),
    (
        "other-processor",
        "host-versions",
        versions(),
        versions(cpu="Xeon 8462Y"),
        "7 of 8 nodes have Xeon 8480C, this one Xeon 8462Y",
    ),
    (
        "other-ofed",
        "host-versions",
        versions(),
        versions(modules={"mlx5_core": "23.10"}),
        "7 of 8 nodes have drivers mlx5_core 24.01, this one drivers mlx5_core 23.10",
    ),
    (
        "shared-filesystem-not-mounted",
        "storage-paths",
        places("lustre"),
        places("ext4"),
        "7 of 8 nodes have /scratch/run on lustre, this one /scratch/run on ext4",
    ),
    (
        "name-means-something-else",
        "network-names",
        names(n2=["10.0.0.2"]),
        names(n2=["10.0.0.99"]),
        "n2 resolves to 10.0.0.99 here, to 10.0.0.2 on 7 of 8 nodes",
    ),
    (
        "name-means-nothing",
        "network-names",
        names(n2=["10.0.0.2"]),
        names(n2=[]),
        "n2 resolves to nothing here, to 10.0.0.2 on 7 of 8 nodes",
    ),
]


@pytest.mark.parametrize(
    ("check", "usual", "odd", "expected"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_outliers_are_found_with_the_right_text(
    check: str, usual: Json | None, odd: Json | None, expected: str
) -> None:
    facts = nodes(check, usual, n3=odd)
    assert described(compare_facts(facts)) == [(("n3",), check, expected)]
    assert all(one.finding.status == WARN for one in compare_facts(facts))
    assert compare_facts(nodes(check, usual)) == ()
    assert compare_facts({"n3": facts["n3"]}) == ()


def test_of_two_nodes_that_differ_both_are_named_and_none_is_blamed() -> None:
    facts = {"n1": {"nic-ports": ports()}, "n2": {"nic-ports": ports(devices=7)}}
    assert described(compare_facts(facts)) == [
        (("n1",), "nic-ports", "this node has 8 NICs, n2 7 NICs"),
        (("n2",), "nic-ports", "this node has 7 NICs, n1 8 NICs"),
    ]


def test_of_two_clocks_that_differ_both_are_named() -> None:
    facts = {"n1": {"host-clock": {"now_s": 0.0}}, "n2": {"host-clock": {"now_s": 300.0}}}
    assert described(compare_facts(facts)) == [
        (("n1",), "host-clock", "clock: it and n2's differ by 5 min"),
        (("n2",), "host-clock", "clock: it and n1's differ by 5 min"),
    ]
    facts["n2"]["host-clock"]["now_s"] = 30.0
    assert compare_facts(facts) == ()


def test_of_two_nodes_that_resolve_a_name_differently_both_are_named() -> None:
    facts = {"n1": {"network-names": names(n3=["10.0.0.3"])}, "n2": {"network-names": names(n3=["10.0.0.4"])}}
    assert described(compare_facts(facts)) == [
        (("n1",), "network-names", "n3 resolves to 10.0.0.3 here, to 10.0.0.4 on n2"),
        (("n2",), "network-names", "n3 resolves to 10.0.0.4 here, to 10.0.0.3 on n1"),
    ]


def test_without_a_majority_all_are_named() -> None:
    odd = {f"n{n}": versions(kernel="6.8") for n in range(5, 9)}
    assert described(compare_facts(nodes("host-versions", versions(), **odd))) == [
        (("n1", "n2", "n3", "n4"), "host-versions", "this node has kernel 5.15.0-91, 4 others kernel 6.8"),
        (("n5", "n6", "n7", "n8"), "host-versions", "this node has kernel 6.8, 4 others kernel 5.15.0-91"),
    ]


def test_many_kinds_are_counted() -> None:
    facts: Any = {f"n{n}": {"host-versions": versions(kernel=f"6.{n}")} for n in range(6)}
    first = described(compare_facts(facts))[0]
    assert first[2] == "this node has kernel 6.0, n1 kernel 6.1, n2 kernel 6.2, n3 kernel 6.3, and 2 more kinds"


def test_nodes_that_are_odd_in_the_same_way_are_one_finding() -> None:
    (one,) = compare_facts(nodes("nic-ports", ports(), n2=ports(devices=7), n7=ports(devices=7)))
    assert one.nodes == ("n2", "n7")
    assert one.finding.text == "6 of 8 nodes have 8 NICs, this one 7 NICs"


@pytest.mark.parametrize(
    ("check", "usual", "odd"),
    [
        ("host-memory", {"total": 2048 * GIB}, {"total": 2047 * GIB}),
        ("host-memory", {"total": 1024 * GIB}, {"total": 2048 * GIB}),
        ("host-processes", {"cpus": 64}, {"cpus": 128}),
        ("gpu-count", gpus(8), gpus(8, memory=79.9 * GIB)),
        ("gpu-pcie", gpus(8), gpus(8, width=None)),
        ("host-clock", {"now_s": 1.7e9}, {"now_s": 1.7e9 + 59}),
        ("network-names", names(n2=["10.0.0.2"]), names(n2=["10.0.0.2", "fe80::2"])),
        ("network-names", names(n1=["10.0.0.1"]), names(n1=["127.0.1.1"])),
        ("nic-ports", ports(), {"of": "another version"}),
        ("nic-ports", ports(), {"devices": 8, "rates": [400.0] * 8, "firmware": {}}),
    ],
)
def test_irrelevant_differences_are_ignored(check: str, usual: Json, odd: Json) -> None:
    assert compare_facts(nodes(check, usual, n3=odd)) == ()


def test_a_node_that_could_not_be_checked_is_not_compared() -> None:
    facts = nodes("gpu-count", gpus(8))
    del facts["n3"]["gpu-count"]
    assert compare_facts(facts) == ()


def test_facts_of_verdicts_distinguish_absent_from_unknown() -> None:
    trouble = (Finding(UNKNOWN, "", "could not be checked", ""),)
    verdicts = [
        Verdict("gpu-count", OK, "no NVIDIA driver here", ()),
        Verdict("nic-ports", UNKNOWN, "could not be checked", trouble),
        Verdict("host-memory", FAIL, "full", (), facts={"total": GIB}),
    ]
    assert facts_of(verdicts) == {"gpu-count": None, "host-memory": {"total": GIB}}
    others = [Verdict("gpu-count", OK, "8 GPUs", (), facts=gpus(8))]
    found = compare({"n1": verdicts, "n2": others, "n3": others})
    assert described(found) == [(("n1",), "gpu-count", "2 of 3 nodes have 8 GPUs, this one no GPUs")]


def check_of(name: str) -> Any:
    return import_module(f"ftslurm.health.checks.{name.replace('-', '_')}").CHECK


@pytest.mark.parametrize("name", sorted({compared.check for compared in COMPARED}))
def test_what_is_compared_is_in_the_facts_of_a_check(name: str) -> None:
    assert check_of(name).name == name
    if not name.startswith("host-"):
        return
    try:
        facts = check_of(name).fetch(Context("n1"))
    except Absent:
        return
    for compared in COMPARED:
        if compared.check == name:
            compared.value(facts)


def test_a_thousand_nodes_are_compared_at_once() -> None:
    facts: Any = {
        f"n{n}": {
            "nic-ports": ports(),
            "host-memory": {"total": 2048 * GIB + n},
            "host-clock": {"now_s": 1.7e9 + n / 100},
        }
        for n in range(1000)
    }
    facts["n500"]["nic-ports"] = ports(devices=7)
    assert described(compare_facts(facts)) == [
        (("n500",), "nic-ports", "999 of 1000 nodes have 8 NICs, this one 7 NICs")
    ]
