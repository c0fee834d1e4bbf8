"""What `ftslurm status` says: whole texts as they are printed, and what each situation is told as."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from ftslurm.agent.options import parse_run
from ftslurm.health.node_health import Health, HealthFinding
from ftslurm.health.verdict import worst
from ftslurm.monitor.timeouts import Learned, Longest, Spans, Timeouts
from ftslurm.rendezvous.node_record import NodeRecord, RankVitals, Vitals
from ftslurm.rendezvous.state import (
    Closed,
    Failure,
    Hang,
    Lease,
    LostNode,
    Master,
    Participant,
    RoundHistory,
    State,
)
from ftslurm.status.snapshot import ReceivedRecord, RunTiming, Snapshot
from ftslurm.status.summary import summarise
from ftslurm.status.text import render

S = 10**9
# 2026-03-01 12:00:00 UTC by this machine's clock; the file server's is wrong by a day, which must not matter.
NOW = 1_772_366_400 * S
SLOTS = 8
PACE = ((20, 400),)  # 400 steps of about a second
SLOW = ((24, 300),)


def name(i: int) -> str:
    return f"node{i:03d}"


def vitals(i: int, step: int | None = 1200, round_: int = 3, **changes: Any) -> Vitals:
    ranks = tuple(RankVitals(i * SLOTS + k, step, PACE if step else ()) for k in range(SLOTS))
    return replace(Vitals(round_, Longest(), ranks, 0), **changes)


def word(i: int, status: str = "running", round_: int = 3, **changes: Any) -> NodeRecord:
    usual = NodeRecord(
        name(i), f"i{i}", 99, "123.1", i, SLOTS, name(i), 1, "10.0.0.1", 2940, status, round_, None, None, None, 7, NOW
    )  # fmt: skip
    return replace(usual, **{"vitals": vitals(i) if status == "running" else None, **changes})


def heard(said: NodeRecord, ago_s: float = 1.0) -> ReceivedRecord:
    return ReceivedRecord(said, NOW - int(ago_s * S))


def failure(round_: int = 2, rank: int = 5, node: int = 0) -> Failure:
    return Failure(round_, name(node), rank, rank % SLOTS, NOW, "exception", 1, None, "ValueError: boom", 900)


def state(nodes: int = 4, **changes: Any) -> State:
    parts = tuple(Participant(name(i), f"i{i}", SLOTS, i * SLOTS, i) for i in range(nodes))
    names = tuple(name(i) for i in range(nodes))
    why = "rank 5 on node000 failed at step 900: ValueError: boom"
    usual = State(
        run_id="/shared/ftslurm-runs/lm", attempt="123.1", attempts=("123.0", "123.1"), expected=names,
        min_nodes=nodes, max_nodes=nodes, max_restarts=3, restarts_used=2, coordinator=Lease(name(0), "i0", 2),
        phase="running", round=3, participants=parts, world_size=nodes * SLOTS, master=Master("10.0.0.1", 2940),
        lost=(),
        history=(
            RoundHistory(1, "123.0", names, 32, NOW - 9000 * S, NOW - 5040 * S, "stopped", "SIGTERM", None),
            RoundHistory(2, "123.1", names, 32, NOW - 4000 * S, NOW - 2000 * S, "failed", why, failure()),
            RoundHistory(3, "123.1", names, 32, NOW - 1990 * S, None, "running", None, None),
        ),
        closed=None, admitted=names,
    )  # fmt: skip
    return replace(usual, **changes)


def snapshot(nodes: tuple[ReceivedRecord, ...] | None = None, told: State | None = None, **changes: Any) -> Snapshot:
    told = told if told is not None else state()
    nodes = tuple(heard(word(i)) for i in range(4)) if nodes is None else nodes
    newest = max((each.written_ns for each in nodes), default=NOW)
    usual = Snapshot(
        "/shared/ftslurm-runs/lm", NOW, 20_000_000, newest, RunTiming(timeouts=Timeouts()), told, 7, 7, nodes, ()
    )
    return replace(usual, **changes)


def text(shot: Snapshot, **options: Any) -> str:
    told = summarise(shot)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    shown = render(told, zone=time.gmtime, **options)
    assert all(len(line) <= 80 for line in shown.splitlines())
    return shown


def test_what_is_not_known_of_an_attempt_is_taken_to_be_the_options_default() -> None:
    options = parse_run(["train.py"], {})
    assert (RunTiming().heartbeat_s, RunTiming().node_timeout_s) == (options.heartbeat_s, options.node_timeout_s)


def test_a_running_run_is_told_in_the_first_line_and_then_by_its_rounds_nodes_and_ranks() -> None:
    learned = Learned(Spans(heartbeat_s=250.0), 3)
    asked = RunTiming(timeouts=Timeouts(sections={"step": 60.0}))
    shot = snapshot(told=state(learned=learned), timing=asked)

    assert (
        text(shot)
        == """\
run lm: round 3 runs on 4 nodes, 32 ranks, step 1200, 2 of 3 restarts used
  attempt 2 (123.1), formed 33m 10s ago, coordinator node000, term 2
  time-outs: section step 60 s (asked for); heartbeat 250 s (learned from 3
    rounds)
  round  ended     took     why
  2      11:26:40  33m 20s  rank 5 on node000 failed at step 900: ValueError:...
  1      10:36:00  1h 06m   SIGTERM
  node     ranks  step  silent >=  status
  node000  0-7    1200  0.0s       running
  node001  8-15   1200  0.0s       running
  node002  16-23  1200  0.0s       running
  node003  24-31  1200  0.0s       running
  pace: 940 ms a step; no rank stands out (nor can one in synchronous training)
  more: ftslurm report /shared/ftslurm-runs/lm
"""
    )


def test_a_thousand_nodes_are_a_few_lines_and_with_all_a_line_each() -> None:
    nodes = [heard(word(i)) for i in range(1000)]
    nodes[7] = heard(word(7), 47.0)
    nodes[8] = heard(word(8, vitals=vitals(8, stuck=2)))
    nodes.append(heard(word(1000, "ready", 0)))
    shot = snapshot(tuple(nodes), state(1000))

    shown = text(shot).splitlines()
    assert shown[0] == "run lm: round 3 runs on 1000 nodes, 8000 ranks, step 1200, 2 of 3 restarts used"
    at = next(i for i, line in enumerate(shown) if line.startswith("  nodes"))
    assert shown[at : at + 5] == [
        "  nodes                   ranks         step  silent >=  status",
        "  998: node[000-006,0...  0-55,72-7999  1200  0.0s       running",
        "  node007                 56-63         1200  46s        SILENT, running",
        "  node008                 64-71         1200  0.0s       running, stuck 2x",
        "  node1000                                    0.0s       spare",
    ]
    assert len(shown) < 20
    assert len(text(shot, everything=True).splitlines()) > 1000


def test_silence_is_measured_by_the_file_servers_clock_alone() -> None:
    a_day = 86400 * S
    fresh, old = (
        ReceivedRecord(word(0), NOW - a_day),
        ReceivedRecord(word(1, time_ns=NOW + a_day), NOW - a_day - 40 * S),
    )
    rows = summarise(snapshot((fresh, old), server_ns=NOW - a_day))["nodes"]

    assert [(row["silent_s"], row["silent"]) for row in rows[:2]] == [(0.0, False), (pytest.approx(39.98), True)]


def test_the_time_that_reading_took_is_no_silence() -> None:
    rows = summarise(snapshot((heard(word(0), 20.0), heard(word(1), 1.0)), took_ns=25 * S))["nodes"]

    assert rows[0]["silent_s"] == 0.0


def test_a_run_of_which_nobody_writes_any_more_is_called_silent_whatever_its_state_says() -> None:
    shown = text(snapshot(tuple(heard(word(i), 7200.0) for i in range(4))))

    assert shown.startswith(
        "run lm is SILENT for about 2h 00m: no agent writes any more; it was in round 3,\n  step 1200\n"
    )


def test_a_short_silence_of_all_is_told_by_both_clocks_and_called_nothing() -> None:
    shown = text(snapshot(tuple(heard(word(i), 40.0) for i in range(4))))

    assert "round 3 runs" in shown
    assert "the newest word is about 40s old, by this machine's clock" in shown


def test_a_clock_that_is_behind_is_said_so() -> None:
    assert "clock is 60s or more behind the file server's" not in text(snapshot())
    assert "clock is 1m 00s or more behind" in text(snapshot(server_ns=NOW + 60 * S + 20_000_000))


def test_a_hang_is_told_with_who_has_shown_its_ranks() -> None:
    hang = Hang(3, name(1), 9, 1, NOW, "no heartbeat for 30.0 s (time-out 30.0 s)", 1199)
    nodes = (
        heard(word(0, stacks_collected=3)),
        heard(word(1, hang=hang, stacks_collected=3)),
        heard(word(2)),
        heard(word(3)),
    )
    shown = text(snapshot(nodes, state(hang=hang)))

    assert shown.startswith(
        "run lm: round 3 HANGS: rank 9 on node001: no heartbeat for 30.0 s (time-out 30.0\n  s)\n"
        "  attempt 2 (123.1), formed 33m 10s ago, coordinator node000, term 2\n"
        "  2 of 4 nodes have shown where their ranks are, its last step is 1199\n"
        "  awaited: node[002-003]\n"
    )
    assert "running, rank 9 hangs" in shown


def test_a_hang_that_the_coordinator_has_not_seen_yet_is_told_all_the_same() -> None:
    hang = Hang(3, name(1), 9, 1, NOW, "no heartbeat for 30.0 s", None)
    told = summarise(snapshot((heard(word(0)), heard(word(1, hang=hang)))))

    assert (told["status"], told["hang"]["known"]) == ("hanging", False)


def test_the_hang_of_an_earlier_round_is_over() -> None:
    hang = Hang(2, name(1), 9, 1, NOW, "no heartbeat for 30.0 s", None)

    assert summarise(snapshot((heard(word(0)), heard(word(1, hang=hang)))))["status"] == "running"


def test_a_failure_in_the_running_round_is_told_before_the_round_has_ended() -> None:
    shown = text(snapshot((heard(word(0, "failed", failure=failure(3))), heard(word(1)))))

    assert shown.startswith("run lm: round 3 is ending: rank 5 on node000 failed: ValueError: boom\n")


def test_a_forming_round_says_whom_it_waits_for() -> None:
    told = state(phase="forming", expected=tuple(name(i) for i in range(6)))
    nodes = (heard(word(0, "ready")), heard(word(1, "ready")), heard(word(2)), heard(word(4, "ready", 0)))
    shown = text(snapshot(nodes, told))

    assert shown.startswith("run lm: round 4 forms: 3 nodes ready, at least 4 needed, 2 of 3 restarts used\n")
    assert "  still ending the last round: node002\n  never heard of: node005\n" in shown
    assert "node003  24-31" in shown and "no word" in shown


def test_a_closed_run_says_how_it_ended_and_where_to_read_why() -> None:
    closed = Closed("failed", "rank 5 on node000 failed; all 3 restarts are used up", 1, NOW - 60 * S)
    shown = text(snapshot(told=state(phase="closed", closed=closed, restarts_used=3)))

    assert (
        shown
        == """\
run lm FAILED: rank 5 on node000 failed; all 3 restarts are used up
  exit code 1, ended 2026-03-01 11:59:00, 3 of 3 restarts used
  round  ended     took     why
  2      11:26:40  33m 20s  rank 5 on node000 failed at step 900: ValueError:...
  1      10:36:00  1h 06m   SIGTERM
  why and how: ftslurm report /shared/ftslurm-runs/lm
"""
    )


def test_spares_and_nodes_that_are_gone_are_told_apart() -> None:
    lost = (LostNode(name(5), "i5", 2, NOW, 31.5),)
    nodes = [heard(word(i)) for i in range(4)]
    nodes += [heard(word(4, "ready", 0)), heard(word(5, round_=2), 300.0), heard(word(6, "left", reason="bad GPU"))]
    nodes.append(heard(word(7, attempt="123.0"), 9000.0))
    rows = summarise(snapshot(tuple(nodes), state(lost=lost)))["nodes"]

    assert [(row["role"], row["status"], row["why"]) for row in rows[4:]] == [
        ("spare", "spare", None),
        ("gone", "lost", "in round 2, silent for 31.5 s then"),
        ("gone", "left", "bad GPU"),
        ("earlier", "of an earlier attempt", None),
    ]
    assert "node007" not in text(snapshot(tuple(nodes), state(lost=lost)))


def test_another_agent_on_a_participants_node_does_not_speak_for_its_ranks() -> None:
    rows = summarise(snapshot((heard(word(0, incarnation="new")),)))["nodes"]

    assert (rows[0]["status"], rows[0]["steps"]) == ("its agent was started anew", None)


def test_a_slow_rank_is_named_with_its_figures() -> None:
    ranks = tuple(RankVitals(k, 1200, SLOW if k == 3 else PACE) for k in range(SLOTS))
    nodes = (heard(word(0, vitals=vitals(0, ranks=ranks))), *(heard(word(i)) for i in range(1, 4)))
    shown = text(snapshot(nodes))

    assert "  slow: rank 3 on node000: 3.76 s a step, the others 940 ms (medians)\n" in shown
    assert "stands out" not in shown


def test_a_rank_is_behind_only_by_more_than_lies_between_the_nodes_words() -> None:
    def told(step: int, ago_s: float) -> list[tuple[int, int]]:
        nodes = (*(heard(word(i)) for i in range(3)), heard(word(3, vitals=vitals(3, step)), ago_s))
        return [(each["rank"], each["step"]) for each in summarise(snapshot(nodes))["behind"]]

    assert told(1196, 1.0) == []
    assert told(1190, 1.0) == [(rank, 1190) for rank in range(24, 32)]
    assert told(1190, 9.0) == []


def test_many_ranks_that_are_behind_are_counted() -> None:
    nodes = (*(heard(word(i)) for i in range(3)), heard(word(3, vitals=vitals(3, 7))))
    shown = text(snapshot(nodes))

    assert "  behind: rank 24 on node003: step 7, the others are at 1200\n" in shown
    assert "  and 3 more ranks behind (--all)\n" in shown


def test_ranks_that_report_no_steps_are_not_behind_but_counted() -> None:
    nodes = (heard(word(0)), *(heard(word(i, vitals=vitals(i, None))) for i in range(1, 4)))
    shown = text(snapshot(nodes))

    assert "pace: 940 ms a step; 8 of 32 ranks report steps" in shown
    assert "behind" not in shown


def test_an_off_time_out_and_defaults_are_told_as_such() -> None:
    asked = RunTiming(timeouts=Timeouts(heartbeat_s=float("inf"), hang_s=600.0))
    assert "  time-outs: heartbeat off, any sign of life 600 s (asked for)\n" in text(snapshot(timing=asked))
    assert "  time-outs: heartbeat 1800 s (default)\n" in text(snapshot())


def test_nothing_is_said_of_defaults_where_the_options_are_not_known() -> None:
    assert "time-outs" not in text(snapshot(timing=RunTiming()))


def test_no_text_from_a_file_can_act_on_a_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202eab\ncd\r"
    told = state(
        run_id=evil,
        attempt=evil,
        coordinator=Lease(evil, "i0", 2),
        learned=Learned(Spans(sections={evil[:9]: 60.0}), 1),
    )
    hang = Hang(3, evil, 1, 1, NOW, evil, 1)
    nodes = (
        heard(word(0, node=evil, reason=evil, hang=hang)),
        heard(word(1, failure=replace(failure(3), message=evil))),
    )
    for changed in (told, replace(told, hang=hang), replace(told, phase="forming", expected=(evil, "n2"))):
        shown = render(summarise(snapshot(nodes, changed, directory=f"/tmp/{evil}")), everything=True)
        assert shown.isprintable() or all(line.isprintable() for line in shown.split("\n"))


def test_numbers_that_nobody_can_have_measured_break_nothing() -> None:
    huge = 10**400
    ranks = (RankVitals(huge, huge, ((huge, huge), (3, huge), (-1, 5), (4, 30))), RankVitals(1, -huge, ((4, 30),)))
    parts = (Participant(name(0), "i0", huge, huge, huge), Participant(name(1), "i1", -1, -huge, 0))
    past = RoundHistory(huge, "a", (), huge, -huge, huge, "failed", None, None)
    lost = (LostNode(name(1), "i1", 1, huge, float("nan")),)
    told = state(participants=parts, history=(past,), lost=lost, world_size=huge, restarts_used=huge, round=3)
    nodes = (heard(word(0, time_ns=huge, vitals=vitals(0, ranks=ranks))), heard(word(1)))

    for everything in (False, True):
        assert text(snapshot(nodes, told), everything=everything)


def finding(status: str, subject: str, text: str, check: str = "gpu-ecc") -> HealthFinding:
    return HealthFinding(check, status, subject, text, "Have it replaced.", NOW - 60 * S)


def health(*found: HealthFinding) -> Health:
    return Health(worst(each.status for each in found), NOW - 5 * S, "background", found)


def test_findings_of_health_checks_are_told_the_worst_first_and_what_many_nodes_have_once() -> None:
    limits = finding("warn", "", "the limit of locked memory is 64 KiB", "host-limits")
    bad = finding("fail", "GPU 3", "2 uncorrected ECC errors")
    words = [word(i, health=health(limits)) for i in range(3)]
    words.append(word(3, health=health(bad, limits), unhealthy="GPU 3: 2 uncorrected ECC errors"))
    shown = text(snapshot(tuple(heard(each) for each in words)))
    assert "running, unhealthy: GPU 3: 2 uncorrected" in shown
    lines = " ".join(shown.split())
    assert "health: node003: fail: GPU 3: 2 uncorrected ECC errors health: node[000-003]: warn: the limit of" in lines
    rows = summarise(snapshot(tuple(heard(each) for each in words)))["nodes"]
    assert rows[3]["health"]["findings"][0]["since_ns"] == NOW - 60 * S
    assert (rows[3]["unhealthy"], rows[2]["unhealthy"]) == ("GPU 3: 2 uncorrected ECC errors", None)


def test_an_unhealthy_node_is_not_ready_and_one_that_was_set_aside_says_why() -> None:
    told = state(phase="forming", min_nodes=2, max_nodes=4)
    words = [word(0, "ready"), word(1, "ready", health_pending=True), word(2, "ready", unhealthy="GPU 1: it is gone")]
    words.append(word(3, "ready", excluded="twice in the first failure's place"))
    shot = snapshot(tuple(heard(each) for each in words), told=told)
    forming = summarise(shot)["forming"]
    assert (forming["ready"], forming["health_pending"], forming["unhealthy"]) == (2, ["node001"], ["node002"])
    shown = text(shot)
    assert "2 nodes ready, at least 2 needed" in shown
    assert "being looked at: node001" in shown
    assert "unhealthy: node002" in shown
    assert "unhealthy: GPU 1: it is gone" in shown
    assert "ready, excluded: twice in the first " in shown


def test_a_spare_that_is_unhealthy_says_so_and_nothing_in_its_words_can_act_on_the_terminal() -> None:
    words = [heard(word(i)) for i in range(4)]
    bad = "GPU 1: \x1b[2Jgone"
    words.append(heard(word(4, "ready", 0, unhealthy=bad, health=health(finding("fail", "GPU 1", "\x1b[2Jgone")))))
    shown = text(snapshot(tuple(words)))
    assert "\x1b" not in shown
    assert "unhealthy: GPU 1: gone" in shown
