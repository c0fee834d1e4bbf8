"""Output of `ftslurm status`: whole texts as printed, and the status of each situation."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from simulation.training import Training, simulate

from ftslurm.agent.options import parse_run
from ftslurm.health.verdict import worst
from ftslurm.monitor.step_times import Histogram
from ftslurm.monitor.timeouts import Learned, Longest, Spans, Timeouts
from ftslurm.records.arrivals import ArrivalsRecord
from ftslurm.records.health import Health, HealthFinding
from ftslurm.records.node import NodeRecord, RankVitals, Vitals
from ftslurm.records.state import (
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
from ftslurm.records.stop import ANY_STEP, JobEnd, Stop
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


def record(i: int, status: str = "running", round_: int = 3, **changes: Any) -> NodeRecord:
    usual = NodeRecord(
        name(i), f"i{i}", 99, "123.1", i, SLOTS, name(i), 1, "10.0.0.1", 2940, status, round_, None, None, None, 7, NOW
    )  # fmt: skip
    return replace(usual, **{"vitals": vitals(i) if status == "running" else None, **changes})


def received(node_record: NodeRecord, ago_s: float = 1.0) -> ReceivedRecord:
    return ReceivedRecord(node_record, NOW - int(ago_s * S))


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


def snapshot(nodes: tuple[ReceivedRecord, ...] | None = None, current: State | None = None, **changes: Any) -> Snapshot:
    current = current if current is not None else state()
    nodes = tuple(received(record(i)) for i in range(4)) if nodes is None else nodes
    newest = max((each.written_ns for each in nodes), default=NOW)
    usual = Snapshot(
        "/shared/ftslurm-runs/lm", NOW, 20_000_000, newest, RunTiming(timeouts=Timeouts()), current, 7, 7, nodes
    )
    return replace(usual, **changes)


def text(shot: Snapshot, **options: Any) -> str:
    current = summarise(shot)
    assert json.loads(json.dumps(current, allow_nan=False)) == current
    output = render(current, zone=time.gmtime, **options)
    assert all(len(line) <= 80 for line in output.splitlines())
    return output


def test_unknown_timing_of_an_attempt_defaults_to_the_options_defaults() -> None:
    options = parse_run(["train.py"], {})
    assert (RunTiming().heartbeat_s, RunTiming().node_timeout_s) == (
        options.timing.heartbeat_s,
        options.timing.node_timeout_s,
    )


def test_a_running_run_is_summarised_in_the_first_line_followed_by_its_rounds_nodes_and_ranks() -> None:
    learned = Learned(Spans(heartbeat_s=250.0), 3)
    timing = RunTiming(timeouts=Timeouts(sections={"step": 60.0}))
    shot = snapshot(current=state(learned=learned), timing=timing)

    assert (
        text(shot)
        == """\
run lm: round 3 runs on 4 nodes, 32 ranks, step 1200, 2 of 3 restarts used
  attempt 2 (123.1), formed 33 min 10 s ago, coordinator node000, term 2
  time-outs: section step 1 min (set by option); heartbeat 4 min 10 s (learned
    from 3 rounds)
  round  ended     took         why
  2      11:26:40  33 min 20 s  rank 5 on node000 failed at step 900: ValueEr...
  1      10:36:00  1 h 6 min    SIGTERM
  node     ranks  step  status
  node000  0-7    1200  running
  node001  8-15   1200  running
  node002  16-23  1200  running
  node003  24-31  1200  running
  pace: 940 ms a step; no slow rank (arrivals at collectives not compared)
  more: ftslurm report /shared/ftslurm-runs/lm
"""
    )


@pytest.mark.exhaustive
def test_a_thousand_nodes_take_a_few_lines_and_with_all_one_line_each() -> None:
    nodes = [received(record(i)) for i in range(1000)]
    nodes[7] = received(record(7), 47.0)
    nodes[8] = received(record(8, vitals=vitals(8, stuck=2)))
    nodes.append(received(record(1000, "ready", 0)))
    shot = snapshot(tuple(nodes), state(1000))

    output = text(shot).splitlines()
    assert output[0] == "run lm: round 3 runs on 1000 nodes, 8000 ranks, step 1200, 2 of 3 restarts used"
    at = next(i for i, line in enumerate(output) if line.startswith("  nodes"))
    assert output[at : at + 5] == [
        "  nodes                   ranks         step  silent >=  status",
        "  998: node[000-006,0...  0-55,72-7999  1200             running",
        "  node007                 56-63         1200  46 s       SILENT, running",
        "  node008                 64-71         1200             running, stuck 2x",
        "  node1000                                               spare",
    ]
    assert len(output) < 20
    assert len(text(shot, everything=True).splitlines()) > 1000


@pytest.mark.exhaustive
def test_a_node_that_is_heard_by_datagrams_and_writes_rarely_is_not_shown_as_silent_and_its_step_as_of_its_time() -> (
    None
):
    nodes = [received(record(0)), received(record(1, vitals=vitals(1, 3)), 25.0)]
    output = text(snapshot((*nodes, received(record(2, "ready", 0), 14.0)), state(2)))

    table = output[output.index("  node     ranks") :].splitlines()
    assert table[:4] == [
        "  node     ranks  step          status",
        "  node000  0-7    1200          running",
        "  node001  8-15   3 (24 s ago)  running",
        "  node002                       spare",
    ]
    assert "behind" not in output

    # Of a thousand nodes, each in one of a few lines.
    many = [received(record(i), 1.0 + 23.0 * (i % 2)) for i in range(1000)]
    assert "1200 (up to 23 s ago)  running" in text(snapshot(tuple(many), state(1000)))


def test_while_a_round_forms_all_nodes_write_so_that_an_old_record_is_one_of_a_silent_node() -> None:
    nodes = [received(record(0, "ready")), received(record(1), 25.0)]
    for ended_s, shown in ((20, "silent"), (7, "silent"), (1, "awaited")):
        past = RoundHistory(3, "123.1", (name(0), name(1)), 16, NOW - 99 * S, NOW - ended_s * S, "failed", "", None)
        output = text(snapshot(tuple(nodes), state(2, phase="forming", history=(past,))))
        assert f"  {shown}: node001\n" in output
        assert "still ending" not in output


def test_silence_is_measured_by_the_file_servers_clock_alone() -> None:
    a_day = 86400 * S
    fresh, old = (
        ReceivedRecord(record(0), NOW - a_day),
        ReceivedRecord(record(1, time_ns=NOW + a_day), NOW - a_day - 50 * S),
    )
    rows = summarise(snapshot((fresh, old), server_ns=NOW - a_day))["nodes"]

    assert [(row["silent_s"], row["silent"]) for row in rows[:2]] == [(0.0, False), (pytest.approx(49.98), True)]


def test_the_duration_of_reading_does_not_count_as_silence() -> None:
    rows = summarise(snapshot((received(record(0), 20.0), received(record(1), 1.0)), took_ns=25 * S))["nodes"]

    assert rows[0]["silent_s"] == 0.0


def test_a_run_without_recent_writes_is_silent_regardless_of_its_state() -> None:
    output = text(snapshot(tuple(received(record(i), 7200.0) for i in range(4))))

    assert output.startswith(
        "run lm is SILENT for about 2 h: no agent has written since; it was in round 3,\n  step 1200\n"
    )


def test_a_short_silence_of_all_nodes_is_printed_but_the_run_is_not_called_silent() -> None:
    output = text(snapshot(tuple(received(record(i), 40.0) for i in range(4))))

    assert "round 3 runs" in output
    assert "the newest node record is about 40 s old, by this machine's clock" in output


def test_a_clock_that_is_behind_the_file_servers_is_reported() -> None:
    assert "clock is 1 min or more behind the file server's" not in text(snapshot())
    assert "clock is 1 min or more behind" in text(snapshot(server_ns=NOW + 60 * S + 20_000_000))


def test_a_hang_is_printed_with_the_nodes_that_have_collected_stacks() -> None:
    hang = Hang(3, name(1), 9, 1, NOW, "no heartbeat for 30 s (time-out 30 s)", 1199)
    nodes = (
        received(record(0, stacks_collected=3)),
        received(record(1, hang=hang, stacks_collected=3)),
        received(record(2)),
        received(record(3)),
    )
    output = text(snapshot(nodes, state(hang=hang)))

    assert output.startswith(
        "run lm: round 3 HANGS: rank 9 on node001: no heartbeat for 30 s (time-out 30 s)\n"
        "  attempt 2 (123.1), formed 33 min 10 s ago, coordinator node000, term 2\n"
        "  2 of 4 nodes have collected their ranks' stacks, its last step is 1199\n"
        "  awaited: node[002-003]\n"
    )
    assert "running, rank 9 hangs" in output


def test_a_hang_that_the_coordinator_has_not_handled_yet_is_reported() -> None:
    hang = Hang(3, name(1), 9, 1, NOW, "no heartbeat for 30 s", None)
    current = summarise(snapshot((received(record(0)), received(record(1, hang=hang)))))

    assert (current["status"], current["hang"]["acknowledged"]) == ("hanging", False)


def test_the_hang_of_an_earlier_round_is_over() -> None:
    hang = Hang(2, name(1), 9, 1, NOW, "no heartbeat for 30 s", None)

    assert summarise(snapshot((received(record(0)), received(record(1, hang=hang)))))["status"] == "running"


def test_a_failure_in_the_running_round_is_reported_before_the_round_has_ended() -> None:
    output = text(snapshot((received(record(0, "failed", failure=failure(3))), received(record(1)))))

    assert output.startswith("run lm: round 3 is ending: rank 5 on node000 failed: ValueError: boom\n")


def test_a_forming_round_lists_the_nodes_it_waits_for() -> None:
    current = state(phase="forming", expected=tuple(name(i) for i in range(6)))
    nodes = (
        received(record(0, "ready")),
        received(record(1, "ready")),
        received(record(2)),
        received(record(4, "ready", 0)),
    )
    output = text(snapshot(nodes, current))

    assert output.startswith("run lm: round 4 forms: 3 nodes ready, at least 4 needed, 2 of 3 restarts used\n")
    assert "  still ending the last round: node002\n  no node record of: node005\n" in output
    assert "node003  24-31" in output and "no record" in output


def test_a_closed_run_has_its_outcome_and_the_command_of_the_report() -> None:
    closed = Closed("failed", "rank 5 on node000 failed; all 3 restarts are used up", 1, NOW - 60 * S)
    output = text(snapshot(current=state(phase="closed", closed=closed, restarts_used=3)))

    assert (
        output
        == """\
run lm FAILED: rank 5 on node000 failed; all 3 restarts are used up
  exit code 1, ended 2026-03-01 11:59:00, 3 of 3 restarts used
  round  ended     took         why
  2      11:26:40  33 min 20 s  rank 5 on node000 failed at step 900: ValueEr...
  1      10:36:00  1 h 6 min    SIGTERM
  why and how: ftslurm report /shared/ftslurm-runs/lm
"""
    )


def test_spares_and_nodes_that_are_gone_are_distinguished() -> None:
    lost = (LostNode(name(5), "i5", 2, NOW, 31.5),)
    nodes = [received(record(i)) for i in range(4)]
    nodes += [
        received(record(4, "ready", 0)),
        received(record(5, round_=2), 300.0),
        received(record(6, "left", reason="bad GPU")),
    ]
    nodes.append(received(record(7, attempt="123.0"), 9000.0))
    rows = summarise(snapshot(tuple(nodes), state(lost=lost)))["nodes"]

    assert [(row["role"], row["status"], row["why"]) for row in rows[4:]] == [
        ("spare", "spare", None),
        ("gone", "lost", "in round 2, silent for 32 s then"),
        ("gone", "left", "bad GPU"),
        ("earlier", "of an earlier attempt", None),
    ]
    assert "node007" not in text(snapshot(tuple(nodes), state(lost=lost)))


def test_the_record_of_another_agent_on_a_participants_node_is_not_used_for_its_ranks() -> None:
    rows = summarise(snapshot((received(record(0, incarnation="new")),)))["nodes"]

    assert (rows[0]["status"], rows[0]["steps"]) == ("its agent was restarted", None)


def test_a_slow_rank_is_named_with_its_figures() -> None:
    ranks = tuple(RankVitals(k, 1200, SLOW if k == 3 else PACE) for k in range(SLOTS))
    nodes = (received(record(0, vitals=vitals(0, ranks=ranks))), *(received(record(i)) for i in range(1, 4)))
    output = text(snapshot(nodes))

    assert "  slow: rank 3 on node000: 3.76 s a step, the others 940 ms (medians)\n" in output
    assert "no slow rank" not in output


def test_a_rank_that_keeps_the_others_waiting_is_named_with_what_is_known_of_its_node() -> None:
    arrivals = simulate(random.Random(1), Training([range(8)], slow={5: 0.1}), 46)
    found = HealthFinding("gpu-clocks", "warn", "GPU 1", "clocks throttled: 810 of 1980 MHz", "", NOW)
    nodes = tuple(
        received(record(i, health=Health("warn", NOW, "quick", (found,)) if i == 1 else None)) for i in range(4)
    )
    files = tuple(ArrivalsRecord(3, name(i), NOW, tuple(arrivals[4 * i : 4 * i + 4])) for i in range(2))
    shot = snapshot(nodes, arrivals=files)
    output = " ".join(text(shot).split())

    assert re.search(
        r"slow: rank 5 on node001 arrives (9\.\d*|10) ms late at collectives in 100% of 46 sampled", output
    )
    assert "; on its node: GPU 1: clocks throttled: 810 of 1980 MHz" in output
    assert "no slow rank" not in output
    even = simulate(random.Random(1), Training([range(8)]), 46)
    assert "; no slow rank" in text(snapshot(arrivals=(ArrivalsRecord(3, name(0), NOW, tuple(even)),)))


def test_a_rank_is_behind_only_by_more_time_than_lies_between_the_node_records() -> None:
    def current(step: int, ago_s: float) -> list[tuple[int, int]]:
        nodes = (*(received(record(i)) for i in range(3)), received(record(3, vitals=vitals(3, step)), ago_s))
        return [(each["rank"], each["step"]) for each in summarise(snapshot(nodes))["behind"]]

    assert current(1196, 1.0) == []
    assert current(1190, 1.0) == [(rank, 1190) for rank in range(24, 32)]
    assert current(1190, 9.0) == []
    # The steps since an old record are unknown, whatever the pace was.
    assert current(10, 20.0) == []


def test_no_rank_is_behind_by_the_pace_of_its_first_slow_steps() -> None:
    first = vitals(1, ranks=tuple(RankVitals(SLOTS + k, 3, SLOW) for k in range(SLOTS)))
    nodes = (received(record(0, vitals=vitals(0, 9))), received(record(1, vitals=first), 6.0))
    fast, slow = (Histogram.from_pairs(pace).median_s for pace in (PACE, SLOW))
    assert 6 * fast < 11 < 6 * slow
    assert summarise(snapshot(nodes, state(2)))["behind"] == []


def test_many_ranks_that_are_behind_are_counted() -> None:
    nodes = (*(received(record(i)) for i in range(3)), received(record(3, vitals=vitals(3, 7))))
    output = text(snapshot(nodes))

    assert "  behind: rank 24 on node003: step 7, the others are at 1200\n" in output
    assert "  and 3 more ranks behind (--all)\n" in output


def test_ranks_that_report_no_steps_are_not_behind_but_counted() -> None:
    nodes = (received(record(0)), *(received(record(i, vitals=vitals(i, None))) for i in range(1, 4)))
    output = text(snapshot(nodes))

    assert "pace: 940 ms a step; 8 of 32 ranks report steps" in output
    assert "behind" not in output


def test_steps_of_optimizers_are_shown_as_such_where_no_rank_reports_steps() -> None:
    def made(i: int) -> Vitals:
        return vitals(i, ranks=tuple(RankVitals(i * SLOTS + k, None, PACE, 500 + i) for k in range(SLOTS)))

    nodes = tuple(received(record(i, vitals=made(i))) for i in range(4))
    output = " ".join(text(snapshot(nodes)).split())
    assert "on 4 nodes, 32 ranks, optimizer step 503, 2 of 3 restarts used" in output
    assert "pace: 940 ms a step of the optimizer" in output
    steps = summarise(snapshot(nodes))["steps"]
    assert (steps["last"], steps["optimizer"]) == (None, {"first": 500, "last": 503, "ranks": 32})
    # One rank that reports steps: it is the script's number that counts.
    output = text(snapshot((received(record(0)), *nodes[1:])))
    assert ", step 1200," in output and "optimizer" not in output


def test_a_disabled_time_out_and_defaults_are_printed_as_such() -> None:
    timing = RunTiming(timeouts=Timeouts(heartbeat_s=float("inf"), hang_s=600.0))
    assert "  time-outs: heartbeat off, hang 10 min (set by option)\n" in text(snapshot(timing=timing))
    assert "  time-outs: heartbeat 30 min (default)\n" in text(snapshot())


def without_heartbeats(*silent: int) -> tuple[ReceivedRecord, ...]:
    longest = [Longest(silent=number) for number in silent]
    return tuple(received(record(i, vitals=vitals(i, longest=one))) for i, one in enumerate(longest))


def test_where_no_rank_has_sent_a_heartbeat_the_status_shows_that_hangs_are_not_detected() -> None:
    output = " ".join(text(snapshot(without_heartbeats(8, 8, 8, 8))).split())
    assert "a rank that hangs is not detected: no rank has sent a heartbeat (ftslurm.heartbeat()" in output
    assert "1800 s" not in output
    configured = RunTiming(timeouts=Timeouts(heartbeat_s=60.0))
    output = " ".join(text(snapshot(without_heartbeats(8, 8, 8, 8), timing=configured)).split())
    assert "time-outs: heartbeat 1 min (set by option); 32 ranks sent no heartbeat so far" in output
    assert "a rank that hangs is not detected" in output


def test_hangs_are_detected_with_one_heartbeat_or_a_time_out_for_all_ranks_or_it_is_not_known_yet() -> None:
    for_all = RunTiming(timeouts=Timeouts(hang_s=600.0))
    for shot, detects in (
        (snapshot(without_heartbeats(8, 7, 8, 8)), True),
        (snapshot(without_heartbeats(8, 8, 8, 8), timing=for_all), True),
        (snapshot(tuple(received(record(i, vitals=None)) for i in range(4))), None),
    ):
        assert summarise(shot)["timeouts"]["detects_hangs"] is detects
        assert "not detected" not in text(shot)


def test_default_time_outs_are_omitted_if_the_options_are_unknown() -> None:
    assert "time-outs" not in text(snapshot(timing=RunTiming()))


def test_no_text_from_a_file_is_a_terminal_control_sequence() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202eab\ncd\r"
    current = state(
        run_id=evil,
        attempt=evil,
        coordinator=Lease(evil, "i0", 2),
        learned=Learned(Spans(sections={evil[:9]: 60.0}), 1),
    )
    hang = Hang(3, evil, 1, 1, NOW, evil, 1)
    nodes = (
        received(record(0, node=evil, reason=evil, hang=hang)),
        received(record(1, failure=replace(failure(3), message=evil))),
    )
    for changed in (current, replace(current, hang=hang), replace(current, phase="forming", expected=(evil, "n2"))):
        output = render(summarise(snapshot(nodes, changed, directory=f"/tmp/{evil}")), everything=True)
        assert output.isprintable() or all(line.isprintable() for line in output.split("\n"))


def test_impossible_numbers_do_not_break_the_status() -> None:
    huge = 10**400
    ranks = (RankVitals(huge, huge, ((huge, huge), (3, huge), (-1, 5), (4, 30))), RankVitals(1, -huge, ((4, 30),)))
    parts = (Participant(name(0), "i0", huge, huge, huge), Participant(name(1), "i1", -1, -huge, 0))
    past = RoundHistory(huge, "a", (), huge, -huge, huge, "failed", None, None)
    lost = (LostNode(name(1), "i1", 1, huge, float("nan")),)
    current = state(participants=parts, history=(past,), lost=lost, world_size=huge, restarts_used=huge, round=3)
    nodes = (received(record(0, time_ns=huge, vitals=vitals(0, ranks=ranks))), received(record(1)))

    for everything in (False, True):
        assert text(snapshot(nodes, current), everything=everything)


def finding(status: str, subject: str, text: str, check: str = "gpu-ecc") -> HealthFinding:
    return HealthFinding(check, status, subject, text, "Have it replaced.", NOW - 60 * S)


def health(*found: HealthFinding) -> Health:
    return Health(worst(each.status for each in found), NOW - 5 * S, "background", found)


def test_findings_are_printed_the_worst_first_and_each_once_for_all_its_nodes() -> None:
    limits = finding("warn", "", "the limit of locked memory is 64 KiB", "host-limits")
    bad = finding("fail", "GPU 3", "2 uncorrected ECC errors")
    records = [record(i, health=health(limits)) for i in range(3)]
    records.append(record(3, health=health(bad, limits), unhealthy="GPU 3: 2 uncorrected ECC errors"))
    output = text(snapshot(tuple(received(each) for each in records)))
    assert "running, unhealthy: GPU 3: 2 uncorrected" in output
    lines = " ".join(output.split())
    assert "health: node003: fail: GPU 3: 2 uncorrected ECC errors health: node[000-003]: warn: the limit of" in lines
    rows = summarise(snapshot(tuple(received(each) for each in records)))["nodes"]
    assert rows[3]["health"]["findings"][0]["since_ns"] == NOW - 60 * S
    assert (rows[3]["unhealthy"], rows[2]["unhealthy"]) == ("GPU 3: 2 uncorrected ECC errors", None)


def test_an_unhealthy_node_is_not_ready_and_an_excluded_one_has_its_reason() -> None:
    current = state(phase="forming", min_nodes=2, max_nodes=4)
    records = [
        record(0, "ready"),
        record(1, "ready", health_pending=True),
        record(2, "ready", unhealthy="GPU 1: it is gone"),
    ]
    records.append(record(3, "ready", excluded="first to fail in 2 rounds"))
    shot = snapshot(tuple(received(each) for each in records), current=current)
    forming = summarise(shot)["forming"]
    assert (forming["ready"], forming["health_pending"], forming["unhealthy"]) == (2, ["node001"], ["node002"])
    output = text(shot)
    assert "2 nodes ready, at least 2 needed" in output
    assert "health pending: node001" in output
    assert "unhealthy: node002" in output
    assert "unhealthy: GPU 1: it is gone" in output
    assert "ready, excluded: first to fail in 2 " in output


def test_an_unhealthy_spare_is_printed_without_control_sequences_of_its_record() -> None:
    records = [received(record(i)) for i in range(4)]
    bad = "GPU 1: \x1b[2Jgone"
    records.append(
        received(record(4, "ready", 0, unhealthy=bad, health=health(finding("fail", "GPU 1", "\x1b[2Jgone"))))
    )
    output = text(snapshot(tuple(records)))
    assert "\x1b" not in output
    assert "unhealthy: GPU 1: gone" in output


def stop(**changes: Any) -> Stop:
    return replace(Stop("signal", "SIGTERM from outside", "node001", NOW - 4 * S, 3, "SIGTERM", 30.0), **changes)


@pytest.mark.parametrize(
    ("pending", "end", "line"),
    [
        (stop(), None, "stop requested 4 s ago by node001: SIGTERM from outside; 26 s left"),
        (stop(proposal=1, step=ANY_STEP, grace_s=None), None, "ago by node001: SIGTERM from outside"),
        (stop(proposal=1, step=1210), None, "all ranks leave at step 1210 (proposed); 26 s left"),
        (stop(proposal=1, step=1210, committed=True), None, "all ranks leave at step 1210; 26 s left"),
        (stop(node=None, grace_s=None), 50, "stop requested 4 s ago: SIGTERM from outside; 50 s left"),
        (stop(), 10, "SIGTERM from outside; 10 s left"),
    ],
)
def test_a_pending_stop_is_shown_with_its_step_and_the_time_left(pending: Stop, end: int | None, line: str) -> None:
    job_end = None if end is None else JobEnd(NOW + end * S, False, (), NOW)
    shown = text(snapshot(current=state(stop=pending, job_end=job_end)))
    assert line in " ".join(shown.split())


def test_the_grace_of_a_preemption_is_the_time_left() -> None:
    job_end = JobEnd(NOW + 80 * S, True, (), NOW)
    assert summarise(snapshot(current=state(stop=stop(), job_end=job_end)))["stop"]["left_s"] == 80.0


def test_a_run_without_a_pending_stop_has_none() -> None:
    assert summarise(snapshot())["stop"] is None


def test_an_orderly_stop_is_called_an_interruption() -> None:
    end = Closed("stopped", "interrupted: SIGTERM; saved at step 43 (3 s of 30 s grace)", 75, NOW)
    shown = text(snapshot(current=state(phase="closed", closed=end, stop=stop())))
    assert shown.startswith("run lm was interrupted: SIGTERM; saved at step 43 (3 s of 30 s grace)\n")
    assert "stop requested" not in shown
