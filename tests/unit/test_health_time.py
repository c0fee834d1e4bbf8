"""Whose time a time-out counts: the device's, and not the node's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.health.check import QUICK, Check, Context, never
from ftslurm.health.checks import (
    amd_count,
    amd_ras,
    network_interface,
    network_reach,
    nic_errors,
    nic_nearest,
    nic_pcie,
    nic_ports,
    own_commands,
    storage_lustre,
)
from ftslurm.health.device_time import Reading, Scheduling, scheduling, stalled_for, stalled_s, waited_s
from ftslurm.health.run import run
from ftslurm.health.verdict import Json, Judgement
from ftslurm.records.health import FAIL, OK, UNKNOWN


def reading(at_s: float, state: str = "S", ran_s: float = 0.1, queued_s: float | None = 0.0) -> Reading:
    return Reading(at_s, Scheduling(state, ran_s, queued_s))


BEGAN = reading(100.0)


@pytest.mark.parametrize(
    ("now", "waited"),
    [
        pytest.param(reading(110.0), 10.0, id="it sleeps in a driver"),
        pytest.param(reading(110.0, "D"), 10.0, id="it sleeps and cannot be killed"),
        pytest.param(reading(110.0, queued_s=9.5), 0.5, id="it waited for a CPU, and sleeps only now"),
        pytest.param(reading(110.0, "R"), 0.0, id="it waits for a CPU, of which the kernel has no figure yet"),
        pytest.param(reading(110.0, "R", ran_s=9.1), 9.0, id="it spins in a driver"),
        pytest.param(reading(110.0, "T"), 0.0, id="it is stopped"),
        pytest.param(reading(110.0, queued_s=None), 10.0, id="this kernel has no figure"),
        pytest.param(Reading(110.0, None), 10.0, id="it is gone"),
    ],
)
def test_what_a_process_waited_for_a_cpu_is_not_the_devices_time(now: Reading, waited: float) -> None:
    assert waited_s(BEGAN, now) == pytest.approx(waited)


def test_this_kernel_has_how_long_a_process_waited_for_a_cpu() -> None:
    found = scheduling(os.getpid())
    assert found is not None
    assert found.state == "R" and found.ran_s > 0
    assert scheduling(2**22 + 1) is None


def test_a_command_of_any_name_has_its_state(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) R (b)) D 1 7 7\n")
    assert scheduling(7, str(tmp_path)) == Scheduling("D", 0.0, None)
    (tmp_path / "7" / "schedstat").write_text("1500000000 250000000 12\n")
    assert scheduling(7, str(tmp_path)) == Scheduling("D", 1.5, 0.25)


def test_a_node_that_stalls_for_memory_or_storage_is_slow_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "proc/pressure").mkdir(parents=True)
    for kind, total in (("memory", 2_000_000), ("io", 5_000_000)):
        some, full = (f"{how} avg10=1.00 avg60=0.00 total={us}\n" for how, us in (("some", 9), ("full", total)))
        (tmp_path / "proc/pressure" / kind).write_text(some + full)
    before = stalled_s(str(tmp_path))
    assert before == {"memory": 2.0, "io": 5.0}
    assert stalled_for(before, before, 10.0) is None
    assert stalled_for(before, {"memory": 3.9, "io": 5.0}, 10.0) is None
    assert stalled_for(before, {"memory": 4.0, "io": 5.0}, 10.0) == "the node stalled for memory 20% of the time"
    assert stalled_for(before, {"memory": 2.0, "io": 9.0}, 10.0) == "the node stalled for storage 40% of the time"
    assert stalled_s(str(tmp_path / "none")) == {} and stalled_for({}, {}, 10.0) is None


def facts(context: Context) -> Json:
    return {1: "one"}  # type: ignore[dict-item]


def fails(context: Context) -> Json:
    raise OSError(5, "no such luck")


def check(name: str, fetch: object = facts) -> Check:
    judge = lambda facts, before, context: Judgement(facts["1"])  # noqa: E731
    return Check(name, "", frozenset((QUICK,)), 1.0, fetch, judge, may_hang=never)  # type: ignore[arg-type]


def no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise AssertionError("a process was started")

    monkeypatch.setattr(os, "fork", fork)


def test_what_cannot_hang_needs_no_process_and_is_judged_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    no_fork(monkeypatch)
    looked = run([check("a"), check("b", fails)], Context("n1"), {})
    assert [(one.status, one.summary) for one in looked.verdicts] == [
        (OK, "one"),
        (UNKNOWN, "could not be checked: [Errno 5] no such luck"),
    ]
    assert looked.present == ("a",)


def test_a_check_whose_device_is_absent_needs_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_fork(monkeypatch)
    nics = (nic_ports, nic_errors, nic_pcie, nic_nearest)
    modules = (amd_count, amd_ras, *nics, storage_lustre, network_interface, network_reach, own_commands)
    looked = run([module.CHECK for module in modules], Context("n1", root=str(tmp_path), address="127.0.0.1"), {})
    assert {one.status for one in looked.verdicts} == {OK}


def test_ports_that_are_gone_are_missed_though_no_driver_is_left_to_ask(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_fork(monkeypatch)
    port = {"device": "mlx5_0", "number": 1, "state": "ACTIVE", "physical": "LinkUp", "gbps": 400.0, "lanes": 4}
    rest = {"layer": "InfiniBand", "board": "", "firmware": "", "pci": "0000:1b:00.0", "interface": "", "carried": None}
    before: Json = {"nic-ports": {"ports": [{**port, **rest, "switched_off": False}]}}
    (verdict,) = run([nic_ports.CHECK], Context("n1", root=str(tmp_path)), before).verdicts
    assert verdict.status == FAIL
