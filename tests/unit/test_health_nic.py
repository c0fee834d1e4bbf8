"""Which ports of NICs are broken, and which are down or slow by design, over trees that look like a node's /sys."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftslurm.health.check import Context
from ftslurm.health.checks import nic_ports
from ftslurm.health.verdict import Json, Judgement, describe, worst
from ftslurm.records.health import FAIL, OK, UNKNOWN, WARN
from tests.unit.health_trees import Nic, Tree

USED = 1 << 40
DOWN: dict[str, Any] = {"state": "1: DOWN", "physical": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}
ETHERNET: dict[str, Any] = {"layer": "Ethernet", "rate": "200 Gb/sec (4X HDR)"}
ETHERNET_DOWN: dict[str, Any] = {
    "state": "1: DOWN",
    "physical": "3: Disabled",
    "rate": "40 Gb/sec (4X QDR)",
    "layer": "Ethernet",
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def ports(tree: Tree) -> Json:
    return nic_ports.fetch(Context("n1", root=tree.root))


def look(tree: Tree, before: Json | None = None) -> Judgement:
    return nic_ports.judge(ports(tree), before, Context("n1"))


def nics(tree: Tree, count: int = 8) -> list[Nic]:
    return [tree.nic(f"mlx5_{n}") for n in range(count)]


def all_up(tree: Tree) -> list[Nic]:
    return [nic.port(words=USED) for nic in nics(tree)]


def test_a_node_without_infiniband_is_healthy(tree: Tree) -> None:
    judgement = look(tree)
    assert judgement == Judgement("no InfiniBand or RoCE device here")


def test_eight_ports_that_are_up_are_healthy(tree: Tree) -> None:
    all_up(tree)
    before = ports(tree)
    assert before["rates"] == [400.0] * 8 and before["devices"] == 8
    assert before["firmware"] == {"MT_0000000838": "28.39.1002"}
    assert look(tree) == look(tree, before) == Judgement("8 InfiniBand ports ACTIVE at 400 Gb/s")


def unused_card(tree: Tree) -> None:
    tree.nic("mlx5_0").port(**DOWN)


def second_ports(tree: Tree) -> None:
    for n in range(4):
        tree.nic(f"mlx5_{n}", "pci0000:17", "0000:17:01.0", f"0000:1{n}:00.0").port(words=USED)
        tree.nic(f"mlx5_{n + 4}", "pci0000:17", "0000:17:01.0", f"0000:1{n}:00.1").port(**DOWN)


def second_ports_of_old_cards(tree: Tree) -> None:
    for n in range(4):
        tree.nic(f"mlx4_{n}").port(1, words=USED).port(2, **DOWN)


def spare_ethernet_ports(tree: Tree) -> None:
    for nic in nics(tree):
        nic.port(words=USED)
    storage = tree.nic("mlx5_8", "pci0000:97", "0000:97:01.0", "0000:98:00.0", board="MT_0000000359")
    storage.port(**ETHERNET_DOWN).interface("eth4")


def another_board_is_slower(tree: Tree) -> None:
    all_up(tree)
    storage = tree.nic("mlx5_8", "pci0000:97", "0000:97:01.0", "0000:98:00.0", board="MT_0000000359")
    storage.port(rate="100 Gb/sec (2X HDR)", words=USED)


def two_of_a_kind_one_without_cable(tree: Tree) -> None:
    tree.nic("mlx5_0").port(words=USED)
    tree.nic("mlx5_1").port(**DOWN)


def half_of_a_kind_for_storage_and_slower(tree: Tree) -> None:
    for n, nic in enumerate(nics(tree)):
        nic.port(rate="200 Gb/sec (2X NDR)" if n > 3 else "400 Gb/sec (4X NDR)", words=USED)


def switched_off_and_never_used(tree: Tree) -> None:
    for n, nic in enumerate(nics(tree)):
        nic.port() if n else nic.port(state="1: DOWN", physical="3: Disabled")


def twenty_five_gigabits(tree: Tree) -> None:
    tree.nic("mlx5_0").port(layer="Ethernet", rate="25 Gb/sec (1X EDR)", words=USED).interface("eth0")


def amazons(tree: Tree) -> None:
    nic = tree.nic("rdmap1s0", "pci0000:17", "0000:17:01.0", "0000:1a:00.0", board="")
    nic.port(layer="Unspecified", rate="100 Gb/sec (4X EDR)", hw_counters={"rx_bytes": USED, "tx_bytes": USED})


def virtual_functions(tree: Tree) -> None:
    tree.nic("mlx5_0", "pci0000:17", "0000:17:01.0", "0000:1a:00.0").port(words=USED)
    for n in range(1, 5):
        nic = tree.nic(f"mlx5_{n}", "pci0000:17", "0000:17:01.0", f"0000:1a:00.{n}").port(**DOWN)
        nic.virtual_of("0000:1a:00.0")


def software(tree: Tree) -> None:
    tree.file("sys/devices/virtual/infiniband/rxe0/ports/1/state", "1: DOWN")
    tree.link("sys/class/infiniband/rxe0", tree.path / "sys/devices/virtual/infiniband/rxe0")


WELL: list[Callable[[Tree], None]] = [
    unused_card,
    second_ports,
    second_ports_of_old_cards,
    spare_ethernet_ports,
    another_board_is_slower,
    two_of_a_kind_one_without_cable,
    half_of_a_kind_for_storage_and_slower,
    switched_off_and_never_used,
    twenty_five_gigabits,
    amazons,
    virtual_functions,
    software,
]


@pytest.mark.parametrize("build", WELL, ids=lambda build: build.__name__)
def test_a_port_that_is_down_or_slow_by_design_is_healthy(build: Callable[[Tree], None], tree: Tree) -> None:
    build(tree)
    first = look(tree)
    assert first.findings == ()
    assert look(tree, ports(tree)).findings == ()


def test_the_summary_counts_by_speed(tree: Tree) -> None:
    second_ports(tree)
    assert look(tree).summary == "4 InfiniBand ports ACTIVE at 400 Gb/s, 4 not ACTIVE"


def test_virtual_functions_and_software_are_no_nics(tree: Tree) -> None:
    virtual_functions(tree)
    software(tree)
    assert [port["device"] for port in ports(tree)["ports"]] == ["mlx5_0"]


Fault = tuple[str, Callable[[Tree], "Json | None"], str, str]


def went_down(tree: Tree) -> Json:
    first, *_ = all_up(tree)
    before = ports(tree)
    first.port(**DOWN, words=USED)
    return before


def went_away(tree: Tree) -> Json:
    last = all_up(tree)[-1]
    before = ports(tree)
    (tree.path / "sys/class/infiniband/mlx5_7").unlink()
    assert last
    return before


def all_went_away(tree: Tree) -> Json:
    all_up(tree)
    before = ports(tree)
    for link in (tree.path / "sys/class/infiniband").iterdir():
        link.unlink()
    return before


def idle_went_away(tree: Tree) -> Json:
    tree.nic("mlx5_0").port(**DOWN)
    before = ports(tree)
    (tree.path / "sys/class/infiniband/mlx5_0").unlink()
    return before


def went_down_under_another_name(tree: Tree) -> Json:
    nic = tree.nic("mlx5_0", "pci0000:17", "0000:17:01.0", "0000:1a:00.0").port(words=USED)
    before = ports(tree)
    nic.port(**DOWN, words=USED)
    (tree.path / "sys/class/infiniband/mlx5_0").rename(tree.path / "sys/class/infiniband/mlx5_3")
    return before


def lost_its_subnet_manager(tree: Tree) -> Json:
    first, *_ = all_up(tree)
    before = ports(tree)
    first.port(state="2: INIT", words=USED)
    return before


def shows_no_state(tree: Tree) -> None:
    tree.file(f"{tree.nic('mlx5_0').above}/ports/1/link_layer", "InfiniBand")


def shows_no_state_any_more(tree: Tree) -> Json:
    nic = tree.nic("mlx5_0").port(words=USED)
    before = ports(tree)
    (tree.path / nic.above / "ports/1/state").unlink()
    return before


def lost_lanes(tree: Tree) -> Json:
    first, *_ = all_up(tree)
    before = ports(tree)
    first.port(rate="100 Gb/sec (1X NDR)", words=USED)
    return before


def lost_speed(tree: Tree) -> Json:
    nic = tree.nic("mlx5_0").port(**ETHERNET, words=USED).interface("eth0")
    before = ports(tree)
    nic.port(layer="Ethernet", rate="100 Gb/sec (4X EDR)", words=USED)
    return before


def ethernet_cable_out(tree: Tree) -> Json:
    nic = tree.nic("mlx5_0").port(**ETHERNET, words=USED).interface("eth0")
    before = ports(tree)
    nic.port(**ETHERNET_DOWN, words=USED)
    return before


def interface_set_down(tree: Tree) -> Json:
    nic = tree.nic("mlx5_0").port(**ETHERNET, words=USED).interface("eth0")
    before = ports(tree)
    nic.port(**ETHERNET_DOWN, words=USED).interface("eth0", flags="0x1002")
    return before


def changed_its_layer(tree: Tree) -> Json:
    nic = tree.nic("mlx5_0").port(words=USED)
    before = ports(tree)
    nic.port(layer="Ethernet", words=USED)
    return before


def at_first(build: Callable[[Tree], object]) -> Callable[[Tree], None]:
    def done(tree: Tree) -> None:
        build(tree)

    return done


def one_of_eight(**port: Any) -> Callable[[Tree], None]:
    def build(tree: Tree) -> None:
        for n, nic in enumerate(nics(tree)):
            nic.port(**port) if n == 3 else nic.port(words=USED)

    return build


FAULTS: list[Fault] = [
    (
        "port-went-down",
        went_down,
        FAIL,
        "mlx5_0 port 1: was ACTIVE at the last check, now DOWN, physically Polling (no signal from the other end)",
    ),
    (
        "port-went-down-and-its-nic-was-named-anew",
        went_down_under_another_name,
        FAIL,
        "mlx5_3 port 1: was ACTIVE at the last check, now DOWN, physically Polling (no signal from the other end)",
    ),
    (
        "nic-went-away",
        went_away,
        FAIL,
        "mlx5_7 port 1: was there at the last check (ACTIVE, PCI 0000:17:00.0), and is no more",
    ),
    (
        "all-nics-went-away",
        all_went_away,
        FAIL,
        "mlx5_0 port 1: was there at the last check (ACTIVE, PCI 0000:10:00.0), and is no more",
    ),
    (
        "idle-nic-went-away",
        idle_went_away,
        WARN,
        "mlx5_0 port 1: was there at the last check (DOWN, PCI 0000:10:00.0), and is no more",
    ),
    (
        "subnet-manager-gave-the-port-up",
        lost_its_subnet_manager,
        FAIL,
        "mlx5_0 port 1: was ACTIVE at the last check, now INIT, physically LinkUp",
    ),
    ("state-cannot-be-read", shows_no_state, UNKNOWN, "mlx5_0 port 1: its state cannot be read"),
    (
        "state-cannot-be-read-any-more",
        shows_no_state_any_more,
        FAIL,
        "mlx5_0 port 1: was ACTIVE at the last check, now its state cannot be read",
    ),
    (
        "lanes-lost",
        lost_lanes,
        FAIL,
        "mlx5_0 port 1: its link has fallen to 100 Gb/s (1X), was 400 Gb/s (4X) at the last check",
    ),
    (
        "roce-speed-lost",
        lost_speed,
        FAIL,
        "mlx5_0 port 1: its link has fallen to 100 Gb/s, was 200 Gb/s at the last check",
    ),
    ("roce-cable-out", ethernet_cable_out, FAIL, "mlx5_0 port 1: was ACTIVE at the last check, now DOWN"),
    (
        "roce-interface-set-down",
        interface_set_down,
        FAIL,
        "mlx5_0 port 1: was ACTIVE at the last check, now DOWN and its interface eth0 is set down",
    ),
    (
        "layer-changed",
        changed_its_layer,
        WARN,
        "mlx5_0 port 1: its link is Ethernet, was InfiniBand at the last check",
    ),
    (
        "down-at-the-first-look-but-used",
        one_of_eight(**DOWN, words=USED),
        FAIL,
        "mlx5_3 port 1: DOWN, physically Polling (no signal from the other end), but has carried 8.0 TiB since its"
        " driver was loaded",
    ),
    (
        "roce-down-at-the-first-look-but-used",
        at_first(lambda tree: tree.nic("mlx5_0").port(**ETHERNET_DOWN, words=USED).interface("eth0")),
        FAIL,
        "mlx5_0 port 1: DOWN, but has carried 8.0 TiB since its driver was loaded",
    ),
    (
        "switched-off-but-used",
        one_of_eight(state="1: DOWN", physical="3: Disabled", words=USED),
        WARN,
        "mlx5_3 port 1: DOWN, physically Disabled (switched off), but has carried 8.0 TiB since its driver was loaded",
    ),
    (
        "roce-interface-set-down-but-used",
        at_first(lambda tree: tree.nic("mlx5_0").port(**ETHERNET_DOWN, words=USED).interface("eth0", flags="0x1002")),
        WARN,
        "mlx5_0 port 1: DOWN and its interface eth0 is set down, but has carried 8.0 TiB since its driver was loaded",
    ),
    (
        "down-alone-among-its-kind",
        one_of_eight(**DOWN),
        WARN,
        "mlx5_3 port 1: DOWN, physically Polling (no signal from the other end), while the 7 others of its kind"
        " (MT_0000000838) are ACTIVE",
    ),
    (
        "no-subnet-manager",
        one_of_eight(state="2: INIT"),
        WARN,
        "mlx5_3 port 1: its link is up, but its state is INIT: no subnet manager has made it ACTIVE",
    ),
    (
        "armed-only",
        one_of_eight(state="3: ARMED"),
        WARN,
        "mlx5_3 port 1: its link is up, but its state is ARMED: no subnet manager has made it ACTIVE",
    ),
    (
        "link-keeps-training",
        one_of_eight(state="1: DOWN", physical="4: PortConfigurationTraining"),
        WARN,
        "mlx5_3 port 1: DOWN, physically PortConfigurationTraining: it cannot agree on a link with the other end",
    ),
    (
        "link-recovers",
        one_of_eight(state="5: ACTIVE_DEFER", physical="6: LinkErrorRecovery"),
        WARN,
        "mlx5_3 port 1: ACTIVE_DEFER, physically LinkErrorRecovery: it cannot agree on a link with the other end",
    ),
    (
        "slower-than-its-kind",
        one_of_eight(rate="200 Gb/sec (4X HDR)", words=USED),
        WARN,
        "mlx5_3 port 1: 200 Gb/s (4X), while the 7 others of its kind (MT_0000000838) have 400 Gb/s",
    ),
    (
        "one-lane",
        at_first(lambda tree: tree.nic("mlx5_0").port(rate="50 Gb/sec (1X HDR)", words=USED)),
        WARN,
        "mlx5_0 port 1: only 1 lane of its link works (50 Gb/s (1X))",
    ),
]


@pytest.mark.parametrize(("build", "status", "expected"), [fault[1:] for fault in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_fault_of_a_port_is_found_with_the_right_text(
    build: Callable[[Tree], Json | None], status: str, expected: str, tree: Tree
) -> None:
    before = build(tree)
    judgement = look(tree, before)
    assert describe(judgement.findings[0]) == expected
    assert worst(finding.status for finding in judgement.findings) == status
    if build is not all_went_away:
        assert len(judgement.findings) == 1


def test_a_port_that_broke_is_found_in_the_runs_after_too(tree: Tree) -> None:
    went_down(tree)
    judgement = look(tree, ports(tree))
    assert [finding.status for finding in judgement.findings] == [FAIL]


def test_a_kernel_that_counts_no_data_is_no_error(tree: Tree) -> None:
    tree.nic("mlx5_0").port(**DOWN, counters={"port_rcv_data": "N/A (no PMA)", "port_xmit_data": "N/A (no PMA)"})
    assert look(tree) == Judgement("1 not ACTIVE")


def test_judging_changes_no_facts(tree: Tree) -> None:
    before = went_down(tree)
    facts = ports(tree)
    kept = copy.deepcopy((facts, before))
    nic_ports.judge(facts, before, Context("n1"))
    assert (facts, before) == kept
    assert worst([]) == OK
