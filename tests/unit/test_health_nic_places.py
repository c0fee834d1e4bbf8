"""Where NICs are: next to which GPU, and how well connected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftslurm.health.check import Absent, Context
from ftslurm.health.checks import nic_nearest, nic_pcie
from ftslurm.health.pci import NODE, PHB, PIX, PXB, SYS, Slot, relation, slot_of
from ftslurm.health.verdict import Json, Judgement, describe
from ftslurm.records.health import WARN
from tests.unit.health_trees import Nic, Tree

USED = 1 << 40
DOWN: dict[str, Any] = {"state": "1: DOWN", "physical": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}

Fault = tuple[str, Callable[[Tree], "Json | None"], str, str]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def switched(tree: Tree, count: int = 8) -> list[Nic]:
    """Build a machine with a PCIe switch for each GPU and its NIC, four on each socket."""
    found = []
    for n in range(count):
        numa, switch = n // 4, (f"pci0000:{n}0", f"0000:{n}0:01.0", f"0000:{n}1:00.0")
        tree.gpu(*switch, f"0000:{n}2:00.0", f"0000:{n}3:00.0", numa=numa)
        found.append(tree.nic(f"mlx5_{n}", *switch, f"0000:{n}2:01.0", f"0000:{n}4:00.0", numa=numa))
    return found


def nearest(tree: Tree, before: Json | None = None) -> Judgement:
    context = Context("n1", root=tree.root)
    return nic_nearest.judge(nic_nearest.fetch(context), before, context)


def test_each_gpu_has_a_nic_at_its_switch(tree: Tree) -> None:
    for nic in switched(tree):
        nic.port()
    assert nearest(tree) == Judgement("8 GPUs; the nearest NIC that is up: PIX of 8")
    facts = nic_nearest.fetch(Context("n1", root=tree.root))
    assert [gpu["pci"] for gpu in facts["gpus"]] == [f"0000:{n}3:00.0" for n in range(8)]
    assert facts["up"] == ["PIX"] * 8


def test_without_gpus_or_without_nics_there_is_nothing_to_be_near(tree: Tree) -> None:
    with pytest.raises(Absent, match="no GPU on PCI here"):
        nearest(tree)
    tree.gpu("pci0000:17", "0000:17:01.0", "0000:18:00.0")
    with pytest.raises(Absent, match="no InfiniBand or RoCE device here"):
        nearest(tree)


def test_a_servers_own_screen_and_a_virtual_function_are_no_gpus(tree: Tree) -> None:
    tree.gpu("pci0000:00", "0000:00:1c.0", "0000:03:00.0", vendor="0x1a03", class_="0x030000")
    tree.gpu("pci0000:17", "0000:17:01.0", "0000:18:00.4")
    tree.link("sys/devices/pci0000:17/0000:17:01.0/0000:18:00.4/physfn", tree.path)
    tree.gpu("pci0000:17", "0000:17:02.0", "0000:19:00.0", vendor="0x1002", class_="0x120000")
    tree.nic("mlx5_0").port()
    assert nearest(tree) == Judgement("1 GPU; the nearest NIC that is up: PHB of 1")


def test_an_unused_card_next_to_a_gpu_is_ignored(tree: Tree) -> None:
    tree.gpu("pci0000:17", "0000:17:01.0", "0000:18:00.0", "0000:19:00.0", "0000:1a:00.0")
    tree.nic("mlx5_0", "pci0000:17", "0000:17:01.0", "0000:18:00.0", "0000:19:01.0", "0000:1b:00.0").port(**DOWN)
    tree.nic("mlx5_1", "pci0000:97", "0000:97:01.0", "0000:98:00.0").port()
    assert nearest(tree).findings == ()


def nearest_down(tree: Tree) -> Json | None:
    for n, nic in enumerate(switched(tree)):
        nic.port(**DOWN) if n == 3 else nic.port()
    return None


def nearest_down_on_the_last_of_a_socket(tree: Tree) -> Json | None:
    for n, nic in enumerate(switched(tree, 1)):
        nic.port(**DOWN, words=USED)
        assert n == 0
    return None


def nearest_went_down(tree: Tree) -> Json:
    (nic,) = switched(tree, 1)
    nic.port()
    tree.nic("mlx5_1", "pci0000:97", "0000:97:01.0", "0000:98:00.0", numa=1).port()
    before = nic_nearest.fetch(Context("n1", root=tree.root))
    nic.port(**DOWN)
    return before


NEAREST_FAULTS: list[Fault] = [
    (
        "nearest-nic-down-others-up",
        nearest_down,
        WARN,
        "GPU 3 (0000:33:00.0): its NIC mlx5_3 port 1 (DOWN), PIX, is not up; the nearest that is up, mlx5_0 port 1, is"
        " NODE",
    ),
    (
        "nearest-nic-down-none-up",
        nearest_down_on_the_last_of_a_socket,
        WARN,
        "GPU 0 (0000:03:00.0): its NIC mlx5_0 port 1 (DOWN), PIX, is not up; none is up",
    ),
    (
        "nearest-nic-went-down",
        nearest_went_down,
        WARN,
        "GPU 0 (0000:03:00.0): its NIC mlx5_0 port 1 (DOWN), PIX, is not up; the nearest that is up, mlx5_1 port 1, is"
        " SYS",
    ),
]


@pytest.mark.parametrize(
    ("build", "status", "expected"), [fault[1:] for fault in NEAREST_FAULTS], ids=[f[0] for f in NEAREST_FAULTS]
)
def test_a_gpu_without_its_nic_is_found_with_the_right_text(
    build: Callable[[Tree], Json | None], status: str, expected: str, tree: Tree
) -> None:
    before = build(tree)
    (finding,) = nearest(tree, before).findings
    assert (finding.status, describe(finding)) == (status, expected)


@pytest.mark.parametrize(
    ("path", "numa", "how"),
    [
        (("pci0000:17", "0000:17:01.0", "0000:18:00.0", "0000:19:00.0", "0000:1a:00.1"), 0, PIX),
        (("pci0000:17", "0000:17:01.0", "0000:18:00.0", "0000:19:01.0", "0000:1b:00.0"), 0, PIX),
        (("pci0000:17", "0000:17:01.0", "0000:18:00.0", "0000:19:02.0", "0000:1c:00.0", "0000:1d:00.0"), 0, PXB),
        (("pci0000:17", "0000:17:01.0", "0000:20:00.0"), 0, PXB),
        (("pci0000:17", "0000:17:02.0", "0000:20:00.0"), 0, PHB),
        (("pci0000:97", "0000:97:02.0", "0000:98:00.0"), 0, NODE),
        (("pci0000:97", "0000:97:02.0", "0000:98:00.0"), 1, SYS),
    ],
)
def test_how_far_two_devices_are_from_each_other(path: tuple[str, ...], numa: int, how: str) -> None:
    gpu = Slot("0000:1a:00.0", ("pci0000:17", "0000:17:01.0", "0000:18:00.0", "0000:19:00.0", "0000:1a:00.0"), 0)
    assert relation(gpu, Slot(path[-1], path, numa)) == relation(Slot(path[-1], path, numa), gpu) == how


def test_what_hangs_below_a_device_is_at_its_place(tree: Tree) -> None:
    nic = tree.nic("mlx5_0")
    slot = slot_of(f"{tree.root}/{nic.above}/ports")
    assert slot == Slot("0000:10:00.0", ("pci0000:17", "0000:17:01.0", "0000:10:00.0"), 0)
    assert slot_of(f"{tree.root}/sys/class") is None


def pcie(tree: Tree) -> Judgement:
    context = Context("n1", root=tree.root)
    return nic_pcie.judge(nic_pcie.fetch(context), None, context)


GEN5 = ("32.0 GT/s PCIe", 16, "32.0 GT/s PCIe", 16)


def linked(tree: Tree, *links: tuple[str, int, str, int]) -> None:
    for n, link in enumerate(links):
        tree.nic(f"mlx5_{n}", link=link).port()


def test_a_full_pcie_link_is_healthy(tree: Tree) -> None:
    linked(tree, GEN5, GEN5)
    assert pcie(tree) == Judgement("2 NICs at 32 GT/s x16")


def test_a_slot_that_can_do_no_more_is_healthy(tree: Tree) -> None:
    linked(tree, ("16.0 GT/s PCIe", 8, "32.0 GT/s PCIe", 16))
    tree.files("sys/devices/pci0000:17/0000:17:01.0", max_link_speed="16.0 GT/s PCIe", max_link_width=8)
    assert pcie(tree) == Judgement("1 NIC at 16 GT/s x8")


def test_equal_links_are_the_design_of_the_machine(tree: Tree) -> None:
    linked(tree, *[("16.0 GT/s PCIe", 8, "16.0 GT/s PCIe", 16)] * 4)
    assert pcie(tree).findings == ()


def test_a_virtual_machine_without_link_data_is_healthy(tree: Tree) -> None:
    linked(tree, ("Unknown", 0, "Unknown", 255))
    with pytest.raises(Absent, match="no InfiniBand or RoCE device with a PCIe link here"):
        pcie(tree)


PCIE_FAULTS: list[tuple[str, list[tuple[str, int, str, int]], str]] = [
    (
        "half-the-lanes",
        [GEN5, GEN5, ("32.0 GT/s PCIe", 8, "32.0 GT/s PCIe", 16)],
        "mlx5_2 (0000:12:00.0): its PCIe link is 32 GT/s x8, both ends can do 32 GT/s x16",
    ),
    (
        "slow-link",
        [("2.5 GT/s PCIe", 16, "16.0 GT/s PCIe", 16)],
        "mlx5_0 (0000:10:00.0): its PCIe link is 2.5 GT/s x16, both ends can do 16 GT/s x16",
    ),
]


@pytest.mark.parametrize(
    ("links", "expected"), [fault[1:] for fault in PCIE_FAULTS], ids=[fault[0] for fault in PCIE_FAULTS]
)
def test_a_reduced_pcie_link_is_found_with_the_right_text(
    links: list[tuple[str, int, str, int]], expected: str, tree: Tree
) -> None:
    linked(tree, *links)
    (finding,) = pcie(tree).findings
    assert (finding.status, describe(finding)) == (WARN, expected)
