"""Which growth of a port's error counters is normal, and how the rest is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftslurm.health.check import Absent, Context
from ftslurm.health.checks import nic_errors
from ftslurm.health.verdict import Json, Judgement, describe
from ftslurm.records.health import FAIL, WARN
from tests.unit.health_trees import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def counted(boot: str = "boot-1", time_s: float = 0.0, **counters: int) -> Json:
    values = {("hw_counters/" if name in HW else "counters/") + name: value for name, value in counters.items()}
    return {"boot": boot, "time_s": time_s, "ports": {"0000:1a:00.0/1": {"name": "mlx5_0 port 1", "counters": values}}}


HW = ("rx_icrc_encapsulated", "local_ack_timeout_err", "roce_slow_restart")
QUIET: dict[str, Any] = {name.partition("/")[2]: 7 for name in nic_errors.COUNTERS}


def grown(after_s: float, busy: bool = False, **counters: int) -> Judgement:
    before = counted(**QUIET)
    now: dict[str, Any] = {name: value + counters.get(name, 0) for name, value in QUIET.items()}
    return nic_errors.judge(counted(time_s=after_s, **now), before, Context("n1", busy=busy))


def test_counters_are_read_from_all_ports(tree: Tree) -> None:
    tree.boot()
    nic = tree.nic("mlx5_0").port(
        counters={"symbol_error": 12, "VL15_dropped": 3}, hw_counters={"roce_slow_restart": 4}
    )
    nic.port(2, counters={"symbol_error": "N/A (no PMA)"})
    facts = nic_errors.fetch(Context("n1", root=tree.root))
    assert facts["boot"] == "boot-1" and facts["time_s"] > 0
    assert facts["ports"] == {
        "0000:10:00.0/1": {
            "name": "mlx5_0 port 1",
            "counters": {"counters/link_downed": 0, "counters/symbol_error": 12, "hw_counters/roce_slow_restart": 4},
        },
        "0000:10:00.0/2": {"name": "mlx5_0 port 2", "counters": {"counters/link_downed": 0}},
    }


def test_a_node_without_counters_is_healthy(tree: Tree) -> None:
    with pytest.raises(Absent, match="no InfiniBand or RoCE port that counts errors here"):
        nic_errors.fetch(Context("n1", root=tree.root))


def test_at_the_first_run_no_error_is_old_or_new() -> None:
    judgement = nic_errors.judge(counted(link_downed=40), None, Context("n1"))
    assert judgement == Judgement("1 port; growth is known from the next check on")


def test_after_a_restart_of_the_node_counters_begin_anew() -> None:
    now = counted("boot-2", 1000.0, link_downed=4)
    assert nic_errors.judge(now, counted(link_downed=0), Context("n1")).findings == ()


def test_counters_that_were_reset_have_not_grown() -> None:
    before = counted(link_downed=0, symbol_error=5000)
    assert nic_errors.judge(counted(time_s=60.0, link_downed=9, symbol_error=0), before, Context("n1")).findings == ()


def test_a_port_that_was_not_there_before_has_not_grown() -> None:
    before = {**counted(), "ports": {}}
    assert nic_errors.judge(counted(time_s=60.0, link_downed=9), before, Context("n1")).findings == ()


@pytest.mark.parametrize(
    ("after_s", "counters"),
    [
        (60.0, {}),
        (60.0, {"symbol_error": 120}),
        (36000.0, {"symbol_error": 1200}),
        (60.0, {"link_error_recovery": 5}),
        (60.0, {"port_rcv_errors": 600}),
        (60.0, {"port_xmit_discards": 6000}),
        (60.0, {"local_ack_timeout_err": 100000, "roce_slow_restart": 100000}),
    ],
)
def test_growth_that_is_normal_is_healthy(after_s: float, counters: dict[str, Any]) -> None:
    assert grown(after_s, **counters).findings == ()


def test_the_summary_has_since_when() -> None:
    assert grown(60.0).summary == "1 port, no errors beyond the normal in 1 min"
    assert grown(7300.0, link_downed=1).summary == "1 port, errors grow on some in 2 h 1 min"


FAULTS: list[tuple[str, Judgement, str, str]] = [
    (
        "link-lost-once",
        grown(60.0, link_downed=1),
        WARN,
        "mlx5_0 port 1: 1 loss of the link in 1 min (link_downed)",
    ),
    (
        "link-flaps",
        grown(60.0, link_downed=3),
        FAIL,
        "mlx5_0 port 1: 3 losses of the link in 1 min (link_downed); up to 2 an hour are normal",
    ),
    (
        "link-lost-now-and-then",
        grown(36000.0, link_downed=3),
        WARN,
        "mlx5_0 port 1: 3 losses of the link in 10 h (link_downed)",
    ),
    (
        "link-recoveries",
        grown(600.0, link_error_recovery=51),
        WARN,
        "mlx5_0 port 1: 51 recoveries of the link in 10 min (link_error_recovery); up to 5 a minute are normal",
    ),
    (
        "symbol-errors",
        grown(60.0, symbol_error=121),
        WARN,
        "mlx5_0 port 1: 121 symbol errors in 1 min (symbol_error); up to 120 an hour are normal",
    ),
    (
        "broken-packets",
        grown(60.0, port_rcv_errors=601),
        WARN,
        "mlx5_0 port 1: 601 broken packets in 1 min (port_rcv_errors); up to 10 a second are normal",
    ),
    (
        "bursts",
        grown(60.0, local_link_integrity_errors=1),
        WARN,
        "mlx5_0 port 1: 1 burst of bit errors in 1 min (local_link_integrity_errors)",
    ),
    (
        "overruns",
        grown(60.0, excessive_buffer_overrun_errors=2),
        WARN,
        "mlx5_0 port 1: 2 buffer overruns in 1 min (excessive_buffer_overrun_errors)",
    ),
    (
        "discards",
        grown(60.0, port_xmit_discards=6001),
        WARN,
        "mlx5_0 port 1: 6001 discarded packets in 1 min (port_xmit_discards); up to 100 a second are normal",
    ),
    (
        "roce-corruption",
        grown(60.0, rx_icrc_encapsulated=1),
        WARN,
        "mlx5_0 port 1: 1 corrupt RoCE packet in 1 min (rx_icrc_encapsulated)",
    ),
    (
        "late-answers-while-ranks-run",
        grown(60.0, True, local_ack_timeout_err=61),
        WARN,
        "mlx5_0 port 1: 61 late answers in 1 min (local_ack_timeout_err); up to 1 a second are normal",
    ),
    (
        "slow-restarts-while-ranks-run",
        grown(60.0, True, roce_slow_restart=601),
        WARN,
        "mlx5_0 port 1: 601 slow restarts in 1 min (roce_slow_restart); up to 10 a second are normal",
    ),
]


@pytest.mark.parametrize(
    ("judgement", "status", "expected"), [fault[1:] for fault in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_growth_of_errors_is_found_with_the_right_text(judgement: Judgement, status: str, expected: str) -> None:
    assert [(finding.status, describe(finding)) for finding in judgement.findings] == [(status, expected)]
