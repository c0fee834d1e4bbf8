"""Histories of looks, failures and rounds: when a node is looked at, and whether it is fit."""

from __future__ import annotations

from ftslurm.agent.health_gate import ACT, AGAIN_S, FRESH_S, HOLD_S, OFF, WATCH, XID, HealthGate
from ftslurm.health.check import BACKGROUND, CONFIRM, QUICK, THOROUGH
from ftslurm.health.node_health import HealthFinding
from ftslurm.health.result import RunResult
from ftslurm.health.verdict import FAIL, OK, WARN, Finding, Judgement, verdict
from ftslurm.rendezvous.state import Failure

LOST = Finding(FAIL, "GPU 3", "it does not answer", "Reset it.")
HOT = Finding(WARN, "GPU 1", "91 C", "Look at its fans.")


def looked(*findings: Finding, check: str = "gpu-count", more: str = "storage-paths") -> RunResult:
    return RunResult((verdict(check, Judgement("8 GPUs", findings)), verdict(more, Judgement("fine"))), (), 0.1)


def failure(blame: str | None, message: str = "CUDA error: uncorrectable ECC error encountered") -> Failure:
    return Failure(2, "n1", 5, 1, 77, "exception", 1, None, message, 10, blame=blame)


def fit(mode: str = ACT, every_s: float = 300.0) -> HealthGate:
    """A node that was looked at at second 0 and found well."""
    fitness = HealthGate(mode, every_s)
    fitness.begin()
    if fitness.wanted:
        fitness.on_result(fitness.begun(), looked(), 0.0, 10**9)
    return fitness


def test_the_first_look_gates_the_first_round() -> None:
    fitness = HealthGate(ACT, 300)
    fitness.begin()
    assert (fitness.wanted, fitness.looking, fitness.unhealthy) == (QUICK, True, None)
    assert fitness.begun() == QUICK and fitness.wanted is None
    assert fitness.on_result(QUICK, looked(), 1.0, 5) == []
    assert (fitness.looking, fitness.unhealthy) == (False, None)
    assert fitness.health is not None and (fitness.health.status, fitness.health.checked_ns) == ("ok", 5)


def test_a_failing_check_makes_the_node_unhealthy_and_it_is_looked_at_again() -> None:
    fitness = fit()
    new = fitness.on_result(QUICK, looked(LOST, HOT), 100.0, 5)
    assert [one.text for one in new] == ["it does not answer", "91 C"]
    assert fitness.unhealthy == "GPU 3: it does not answer"
    assert fitness.deadline == 100.0 + AGAIN_S
    fitness.on_time(100.0 + AGAIN_S)
    assert fitness.wanted == THOROUGH
    assert fitness.on_result(fitness.begun(), looked(HOT), 131.0, 9) == []
    assert fitness.unhealthy is None
    assert [(one.text, one.since_ns) for one in fitness.health.findings] == [("91 C", 5)]  # type: ignore[union-attr]


def test_a_failing_check_is_made_once_more_at_once_and_that_confirms_it() -> None:
    fitness = fit()
    fitness.on_result(QUICK, looked(LOST), 1.0, 5)
    assert (fitness.pending, fitness.looking) == (("gpu-count",), False)
    assert fitness.begun() == CONFIRM
    fitness.on_result(CONFIRM, RunResult((looked(LOST).verdicts[0],), (), 0.1), 2.0, 6)
    assert [(one.confirmed, one.since_ns) for one in fitness.health.findings] == [(True, 5)]  # type: ignore[union-attr]
    assert (fitness.unhealthy, fitness.pending, fitness.wanted) == ("GPU 3: it does not answer", (), None)
    fitness.on_result(THOROUGH, looked(LOST), 40.0, 7)
    assert fitness.wanted is None, "confirmed is confirmed"


def test_a_failing_check_that_is_well_alone_and_unhurried_leaves_the_node_fit() -> None:
    fitness = fit()
    fitness.on_result(QUICK, looked(LOST), 1.0, 5)
    assert fitness.begun() == CONFIRM
    fitness.on_result(CONFIRM, RunResult((looked().verdicts[0],), (), 0.1), 2.0, 6)
    assert (fitness.unhealthy, fitness.pending, fitness.wanted) == (None, (), None)


def test_a_second_look_that_came_to_nothing_confirms_nothing() -> None:
    fitness = fit()
    fitness.on_result(QUICK, looked(LOST), 1.0, 5)
    fitness.on_result(fitness.begun(), None, 2.0, 6)
    assert (fitness.unhealthy, fitness.pending, fitness.wanted) == ("GPU 3: it does not answer", ("gpu-count",), None)
    fitness.on_time(2.0 + AGAIN_S)
    assert fitness.begun() == THOROUGH
    fitness.on_result(THOROUGH, looked(LOST), 40.0, 7)
    assert fitness.wanted == CONFIRM


def test_while_ranks_run_nobody_looks_twice_for_they_would_not_be_alone() -> None:
    fitness = fit()
    fitness.on_round(1.0)
    fitness.on_result(BACKGROUND, looked(LOST), 300.0, 5)
    assert (fitness.wanted, fitness.pending) == (None, ("gpu-count",))
    fitness.on_swept(None, 400.0, 6)
    assert fitness.begun() == THOROUGH
    fitness.on_result(THOROUGH, looked(LOST), 401.0, 7)
    assert fitness.wanted == CONFIRM


def test_what_happened_is_not_looked_for_again() -> None:
    fitness = fit()
    fitness.on_event(HealthFinding(XID, FAIL, "GPU 2", "Xid 79: fallen off the bus", "Reset.", 44), 5.0, 9)
    fitness.on_result(THOROUGH, looked(), 6.0, 10)
    assert (fitness.pending, fitness.wanted) == ((), None)


def test_several_failing_checks_are_counted() -> None:
    fitness = fit()
    fitness.on_result(QUICK, looked(LOST, Finding(FAIL, "", "no memory", "")), 1.0, 5)
    assert fitness.unhealthy == "GPU 3: it does not answer (and 1 more)"


def test_a_warning_makes_nobody_unhealthy() -> None:
    fitness = fit()
    fitness.on_result(QUICK, looked(HOT), 1.0, 5)
    assert fitness.unhealthy is None


def test_a_restart_soon_after_a_look_waits_for_no_other() -> None:
    fitness = fit()
    fitness.on_round(1.0)
    fitness.on_swept(None, FRESH_S - 1, 5)
    assert (fitness.wanted, fitness.looking) == (None, False)


def test_a_later_restart_is_gated_by_a_quick_look() -> None:
    fitness = fit()
    fitness.on_round(1.0)
    fitness.on_swept(None, FRESH_S + 1, 5)
    assert (fitness.wanted, fitness.looking) == (QUICK, True)


def test_a_failure_that_may_be_the_nodes_gates_by_the_thorough_set() -> None:
    fitness = fit()
    fitness.on_round(1.0)
    fitness.on_swept(failure("perhaps"), 2.0, 5)
    assert (fitness.wanted, fitness.looking, fitness.unhealthy) == (THOROUGH, True, None)


def test_a_programs_own_failure_does_not() -> None:
    fitness = fit()
    fitness.on_round(1.0)
    fitness.on_swept(failure(None), 2.0, 5)
    assert (fitness.wanted, fitness.looking) == (None, False)


def test_what_the_hardware_said_of_itself_keeps_the_node_out_though_it_looks_well_when_idle() -> None:
    fitness = fit()
    fitness.on_round(1.0)
    fitness.on_swept(failure("node"), 2.0, 5)
    assert fitness.unhealthy == "rank 5: CUDA error: uncorrectable ECC error encountered"
    fitness.on_result(fitness.begun(), looked(), 3.0, 6)
    assert fitness.unhealthy is not None
    assert fitness.health.findings[0].since_ns == 77  # type: ignore[union-attr]
    fitness.on_result(THOROUGH, looked(), 2.0 + HOLD_S, 7)
    assert fitness.unhealthy is None


def test_looks_while_ranks_run_come_now_and_then_and_gate_nothing() -> None:
    fitness = HealthGate(ACT, 300.0, spread_s=20.0)
    fitness.begin()
    fitness.on_result(fitness.begun(), looked(), 0.0, 1)
    fitness.on_round(10.0)
    assert fitness.deadline == 330.0
    fitness.on_time(329.0)
    assert fitness.wanted is None
    fitness.on_time(330.0)
    assert (fitness.begun(), fitness.looking) == (BACKGROUND, False)
    fitness.on_result(BACKGROUND, looked(LOST), 331.0, 5)
    assert fitness.unhealthy is not None
    assert fitness.deadline == 631.0
    fitness.on_swept(None, 400.0, 6)
    assert (fitness.wanted, fitness.looking) == (THOROUGH, True)


def test_an_event_of_the_driver_is_told_once_and_held() -> None:
    fitness = fit()
    fitness.on_round(1.0)
    fallen = HealthFinding(XID, FAIL, "GPU 2", "Xid 79: fallen off the bus", "Reset.", 44)
    assert fitness.on_event(fallen, 5.0, 9) and not fitness.on_event(fallen, 6.0, 10)
    assert fitness.unhealthy == "GPU 2: Xid 79: fallen off the bus"
    fitness.on_swept(None, 7.0, 11)
    assert fitness.begun() == THOROUGH
    fitness.on_result(THOROUGH, looked(), 8.0, 12)
    assert fitness.unhealthy is not None
    fitness.on_result(THOROUGH, looked(), 6.0 + HOLD_S, 13)
    assert fitness.unhealthy is None


def test_the_same_event_of_another_gpu_is_news_and_one_that_comes_again_is_held_anew() -> None:
    fitness = fit()
    fallen = HealthFinding(XID, FAIL, "GPU 2", "Xid 79: fallen off the bus", "Reset.", 44)
    other = HealthFinding(XID, FAIL, "GPU 5", "Xid 79: fallen off the bus", "Reset.", 45)
    assert fitness.on_event(fallen, 5.0, 9) and fitness.on_event(other, 6.0, 9)
    assert not fitness.on_event(other, 100.0, 10)
    fitness.on_result(THOROUGH, looked(), 7.0 + HOLD_S, 12)
    assert fitness.unhealthy == "GPU 5: Xid 79: fallen off the bus"


def test_what_happened_is_over_in_time_even_where_no_look_succeeds() -> None:
    fitness = fit()
    fitness.on_event(HealthFinding(XID, FAIL, "GPU 2", "Xid 79: fallen off the bus", "Reset.", 44), 5.0, 9)
    fitness.on_result(THOROUGH, None, 6.0, 10)
    assert fitness.unhealthy is not None
    fitness.on_result(THOROUGH, None, 5.0 + HOLD_S, 11)
    assert fitness.unhealthy is None


def test_a_look_that_came_to_nothing_spares_no_restart_the_next_one() -> None:
    fitness = HealthGate(ACT, 300)
    fitness.begin()
    fitness.on_result(fitness.begun(), None, 1.0, 5)
    fitness.on_round(2.0)
    fitness.on_swept(None, 3.0, 6)
    assert (fitness.wanted, fitness.looking) == (QUICK, True)


def test_a_smaller_set_keeps_what_only_the_larger_one_sees() -> None:
    fitness = fit()
    fitness.on_result(THOROUGH, looked(LOST, check="network-reach"), 1.0, 5)
    fitness.on_result(QUICK, looked(), 2.0, 6)
    assert fitness.unhealthy == "GPU 3: it does not answer"


def test_a_look_that_came_to_nothing_holds_up_nobody() -> None:
    fitness = HealthGate(ACT, 300)
    fitness.begin()
    fitness.on_result(fitness.begun(), None, 1.0, 5)
    assert (fitness.looking, fitness.unhealthy, fitness.health) == (False, None, None)
    assert fitness.deadline == 301.0


def test_who_only_watches_never_holds_a_node_back() -> None:
    fitness = HealthGate(WATCH, 300)
    fitness.begin()
    assert (fitness.wanted, fitness.looking) == (QUICK, False)
    fitness.on_result(fitness.begun(), looked(LOST), 1.0, 5)
    assert fitness.unhealthy is None and fitness.health is not None and fitness.health.status == FAIL


def test_switched_off_it_does_nothing() -> None:
    fitness = fit(OFF)
    fitness.on_round(1.0)
    fitness.on_swept(failure("node"), 2.0, 5)
    assert not fitness.on_event(HealthFinding(XID, FAIL, "", "x", "", 1), 3.0, 6)
    fitness.on_time(9999.0)
    assert (fitness.wanted, fitness.looking, fitness.unhealthy, fitness.deadline) == (None, False, None, None)


def test_without_looks_in_between_a_spare_is_left_in_peace() -> None:
    assert fit(every_s=0.0).deadline is None


def test_what_a_program_did_to_its_gpu_is_told_once_and_is_nothing_against_the_node() -> None:
    fitness = fit()
    fitness.on_round(1.0)
    fault = HealthFinding(XID, OK, "GPU 2", "Xid 31: MMU fault of the program", "", 44)
    assert fitness.on_event(fault, 5.0, 9) and not fitness.on_event(fault, 6.0, 10)
    assert fitness.unhealthy is None
    assert fitness.health is not None and (fitness.health.status, fitness.health.findings) == (OK, ())
