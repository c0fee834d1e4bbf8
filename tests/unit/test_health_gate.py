"""Histories of looks, failures and rounds: when a node is looked at, and whether it is fit."""

from __future__ import annotations

from ftslurm.agent.health_gate import AGAIN_S, FRESH_S, HOLD_S, XID, HealthGate
from ftslurm.agent.option_groups import ACT, OFF, REPORT, HealthOptions
from ftslurm.health.check import BACKGROUND, CONFIRM, QUICK, THOROUGH
from ftslurm.health.result import RunResult
from ftslurm.health.verdict import Finding, Judgement, verdict
from ftslurm.records.health import FAIL, OK, WARN, HealthFinding
from ftslurm.records.state import Failure

LOST = Finding(FAIL, "GPU 3", "it does not answer", "Reset it.")
HOT = Finding(WARN, "GPU 1", "91 C", "Look at its fans.")


def looked(*findings: Finding, check: str = "gpu-count", more: str = "storage-paths") -> RunResult:
    return RunResult((verdict(check, Judgement("8 GPUs", findings)), verdict(more, Judgement("fine"))), (), 0.1)


def failure(blame: str | None, message: str = "CUDA error: uncorrectable ECC error encountered") -> Failure:
    return Failure(2, "n1", 5, 1, 77, "exception", 1, None, message, 10, blame=blame)


def health_gate(mode: str = ACT, every_s: float = 300.0, spread_s: float = 0.0) -> HealthGate:
    return HealthGate(HealthOptions(mode, every_s, (), None, ()), spread_s)


def fit(mode: str = ACT, every_s: float = 300.0) -> HealthGate:
    """A node that was looked at at second 0 and found well."""
    gate = health_gate(mode, every_s)
    gate.begin()
    if gate.wanted:
        gate.on_result(gate.take_wanted(), looked(), 0.0, 10**9)
    return gate


def test_the_first_run_gates_the_first_round() -> None:
    gate = health_gate(ACT, 300)
    gate.begin()
    assert (gate.wanted, gate.health_pending, gate.unhealthy) == (QUICK, True, None)
    assert gate.take_wanted() == QUICK and gate.wanted is None
    assert gate.on_result(QUICK, looked(), 1.0, 5) == []
    assert (gate.health_pending, gate.unhealthy) == (False, None)
    assert gate.health is not None and (gate.health.status, gate.health.checked_ns) == ("ok", 5)


def test_a_failing_check_makes_the_node_unhealthy_and_it_is_checked_again() -> None:
    gate = fit()
    new = gate.on_result(QUICK, looked(LOST, HOT), 100.0, 5)
    assert [one.text for one in new] == ["it does not answer", "91 C"]
    assert gate.unhealthy == "GPU 3: it does not answer"
    assert gate.deadline == 100.0 + AGAIN_S
    gate.on_time(100.0 + AGAIN_S)
    assert gate.wanted == THOROUGH
    assert gate.on_result(gate.take_wanted(), looked(HOT), 131.0, 9) == []
    assert gate.unhealthy is None
    assert [(one.text, one.since_ns) for one in gate.health.findings] == [("91 C", 5)]  # type: ignore[union-attr]


def test_a_failing_check_is_made_once_more_at_once_and_that_confirms_it() -> None:
    gate = fit()
    gate.on_result(QUICK, looked(LOST), 1.0, 5)
    assert (gate.unconfirmed, gate.health_pending) == (("gpu-count",), False)
    assert gate.take_wanted() == CONFIRM
    gate.on_result(CONFIRM, RunResult((looked(LOST).verdicts[0],), (), 0.1), 2.0, 6)
    assert [(one.confirmed, one.since_ns) for one in gate.health.findings] == [(True, 5)]  # type: ignore[union-attr]
    assert (gate.unhealthy, gate.unconfirmed, gate.wanted) == ("GPU 3: it does not answer", (), None)
    gate.on_result(THOROUGH, looked(LOST), 40.0, 7)
    assert gate.wanted is None, "confirmed is confirmed"


def test_a_failing_check_that_succeeds_alone_leaves_the_node_healthy() -> None:
    gate = fit()
    gate.on_result(QUICK, looked(LOST), 1.0, 5)
    assert gate.take_wanted() == CONFIRM
    gate.on_result(CONFIRM, RunResult((looked().verdicts[0],), (), 0.1), 2.0, 6)
    assert (gate.unhealthy, gate.unconfirmed, gate.wanted) == (None, (), None)


def test_a_second_run_that_fails_confirms_nothing() -> None:
    gate = fit()
    gate.on_result(QUICK, looked(LOST), 1.0, 5)
    gate.on_result(gate.take_wanted(), None, 2.0, 6)
    assert (gate.unhealthy, gate.unconfirmed, gate.wanted) == ("GPU 3: it does not answer", ("gpu-count",), None)
    gate.on_time(2.0 + AGAIN_S)
    assert gate.take_wanted() == THOROUGH
    gate.on_result(THOROUGH, looked(LOST), 40.0, 7)
    assert gate.wanted == CONFIRM


def test_while_ranks_run_checks_are_not_confirmed() -> None:
    gate = fit()
    gate.on_round(1.0)
    gate.on_result(BACKGROUND, looked(LOST), 300.0, 5)
    assert (gate.wanted, gate.unconfirmed) == (None, ("gpu-count",))
    gate.on_swept(None, 400.0, 6)
    assert gate.take_wanted() == THOROUGH
    gate.on_result(THOROUGH, looked(LOST), 401.0, 7)
    assert gate.wanted == CONFIRM


def test_events_are_not_checked_for_again() -> None:
    gate = fit()
    gate.on_event(HealthFinding(XID, FAIL, "GPU 2", "Xid 79: fallen off the bus", "Reset.", 44), 5.0, 9)
    gate.on_result(THOROUGH, looked(), 6.0, 10)
    assert (gate.unconfirmed, gate.wanted) == ((), None)


def test_several_failing_checks_are_counted() -> None:
    gate = fit()
    gate.on_result(QUICK, looked(LOST, Finding(FAIL, "", "no memory", "")), 1.0, 5)
    assert gate.unhealthy == "GPU 3: it does not answer (and 1 more)"


def test_a_warning_makes_no_node_unhealthy() -> None:
    gate = fit()
    gate.on_result(QUICK, looked(HOT), 1.0, 5)
    assert gate.unhealthy is None


def test_a_restart_soon_after_a_run_waits_for_no_other() -> None:
    gate = fit()
    gate.on_round(1.0)
    gate.on_swept(None, FRESH_S - 1, 5)
    assert (gate.wanted, gate.health_pending) == (None, False)


def test_a_later_restart_is_gated_by_a_quick_run() -> None:
    gate = fit()
    gate.on_round(1.0)
    gate.on_swept(None, FRESH_S + 1, 5)
    assert (gate.wanted, gate.health_pending) == (QUICK, True)


def test_a_failure_that_may_be_the_nodes_gates_by_the_thorough_set() -> None:
    gate = fit()
    gate.on_round(1.0)
    gate.on_swept(failure("perhaps"), 2.0, 5)
    assert (gate.wanted, gate.health_pending, gate.unhealthy) == (THOROUGH, True, None)


def test_a_programs_own_failure_does_not() -> None:
    gate = fit()
    gate.on_round(1.0)
    gate.on_swept(failure(None), 2.0, 5)
    assert (gate.wanted, gate.health_pending) == (None, False)


def test_an_event_of_the_hardware_keeps_the_node_out_although_it_is_healthy_when_idle() -> None:
    gate = fit()
    gate.on_round(1.0)
    gate.on_swept(failure("node"), 2.0, 5)
    assert gate.unhealthy == "rank 5: CUDA error: uncorrectable ECC error encountered"
    gate.on_result(gate.take_wanted(), looked(), 3.0, 6)
    assert gate.unhealthy is not None
    assert gate.health.findings[0].since_ns == 77  # type: ignore[union-attr]
    gate.on_result(THOROUGH, looked(), 2.0 + HOLD_S, 7)
    assert gate.unhealthy is None


def test_runs_while_ranks_run_are_periodic_and_gate_nothing() -> None:
    gate = health_gate(ACT, 300.0, spread_s=20.0)
    gate.begin()
    gate.on_result(gate.take_wanted(), looked(), 0.0, 1)
    gate.on_round(10.0)
    assert gate.deadline == 330.0
    gate.on_time(329.0)
    assert gate.wanted is None
    gate.on_time(330.0)
    assert (gate.take_wanted(), gate.health_pending) == (BACKGROUND, False)
    gate.on_result(BACKGROUND, looked(LOST), 331.0, 5)
    assert gate.unhealthy is not None
    assert gate.deadline == 631.0
    gate.on_swept(None, 400.0, 6)
    assert (gate.wanted, gate.health_pending) == (THOROUGH, True)


def test_an_event_of_the_driver_is_reported_once_and_held() -> None:
    gate = fit()
    gate.on_round(1.0)
    fallen = HealthFinding(XID, FAIL, "GPU 2", "Xid 79: fallen off the bus", "Reset.", 44)
    assert gate.on_event(fallen, 5.0, 9) and not gate.on_event(fallen, 6.0, 10)
    assert gate.unhealthy == "GPU 2: Xid 79: fallen off the bus"
    gate.on_swept(None, 7.0, 11)
    assert gate.take_wanted() == THOROUGH
    gate.on_result(THOROUGH, looked(), 8.0, 12)
    assert gate.unhealthy is not None
    gate.on_result(THOROUGH, looked(), 6.0 + HOLD_S, 13)
    assert gate.unhealthy is None


def test_the_same_event_of_another_gpu_is_news_and_one_that_comes_again_is_held_anew() -> None:
    gate = fit()
    fallen = HealthFinding(XID, FAIL, "GPU 2", "Xid 79: fallen off the bus", "Reset.", 44)
    other = HealthFinding(XID, FAIL, "GPU 5", "Xid 79: fallen off the bus", "Reset.", 45)
    assert gate.on_event(fallen, 5.0, 9) and gate.on_event(other, 6.0, 9)
    assert not gate.on_event(other, 100.0, 10)
    gate.on_result(THOROUGH, looked(), 7.0 + HOLD_S, 12)
    assert gate.unhealthy == "GPU 5: Xid 79: fallen off the bus"


def test_held_events_expire_even_if_no_run_succeeds() -> None:
    gate = fit()
    gate.on_event(HealthFinding(XID, FAIL, "GPU 2", "Xid 79: fallen off the bus", "Reset.", 44), 5.0, 9)
    gate.on_result(THOROUGH, None, 6.0, 10)
    assert gate.unhealthy is not None
    gate.on_result(THOROUGH, None, 5.0 + HOLD_S, 11)
    assert gate.unhealthy is None


def test_a_failed_run_does_not_count_for_the_next_restart() -> None:
    gate = health_gate(ACT, 300)
    gate.begin()
    gate.on_result(gate.take_wanted(), None, 1.0, 5)
    gate.on_round(2.0)
    gate.on_swept(None, 3.0, 6)
    assert (gate.wanted, gate.health_pending) == (QUICK, True)


def test_a_smaller_set_keeps_what_only_the_larger_one_sees() -> None:
    gate = fit()
    gate.on_result(THOROUGH, looked(LOST, check="network-reach"), 1.0, 5)
    gate.on_result(QUICK, looked(), 2.0, 6)
    assert gate.unhealthy == "GPU 3: it does not answer"


def test_a_failed_run_delays_nothing() -> None:
    gate = health_gate(ACT, 300)
    gate.begin()
    gate.on_result(gate.take_wanted(), None, 1.0, 5)
    assert (gate.health_pending, gate.unhealthy, gate.health) == (False, None, None)
    assert gate.deadline == 301.0


def test_watch_mode_never_keeps_a_node_out() -> None:
    gate = health_gate(REPORT, 300)
    gate.begin()
    assert (gate.wanted, gate.health_pending) == (QUICK, False)
    gate.on_result(gate.take_wanted(), looked(LOST), 1.0, 5)
    assert gate.unhealthy is None and gate.health is not None and gate.health.status == FAIL


def test_switched_off_it_does_nothing() -> None:
    gate = fit(OFF)
    gate.on_round(1.0)
    gate.on_swept(failure("node"), 2.0, 5)
    assert not gate.on_event(HealthFinding(XID, FAIL, "", "x", "", 1), 3.0, 6)
    gate.on_time(9999.0)
    assert (gate.wanted, gate.health_pending, gate.unhealthy, gate.deadline) == (None, False, None, None)


def test_without_periodic_runs_a_spare_is_not_checked() -> None:
    assert fit(every_s=0.0).deadline is None


def test_an_error_of_a_program_on_its_gpu_is_reported_once_and_does_not_count() -> None:
    gate = fit()
    gate.on_round(1.0)
    fault = HealthFinding(XID, OK, "GPU 2", "Xid 31: MMU fault of the program", "", 44)
    assert gate.on_event(fault, 5.0, 9) and not gate.on_event(fault, 6.0, 10)
    assert gate.unhealthy is None
    assert gate.health is not None and (gate.health.status, gate.health.findings) == (OK, ())
