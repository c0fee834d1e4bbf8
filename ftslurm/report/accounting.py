"""Time accounting of a run: training that was kept, and the cost of failures (pure).

The time from the first round to the run's end is divided into parts that do not overlap. In this order, a round has

- *startup*: from the round's formation to its first step; all of it until the failure, or the end, if a run whose
  other rounds report steps (`ftslurm.progress`) made none here;
- *productive*: time of steps that no later round repeated. Between the first and the last reported step, time is
    divided evenly among the steps. If the round succeeded, the time after its last step (a last checkpoint) is
    productive too;
  - *lost*: steps that a later round repeated, and the time between the last reported step and the failure;
  - *detection*: from the failure until all nodes had signalled their ranks to stop. A failure's time is the worker's
    end by the kernel, or when its exception was caught; of a hang, the rank's last progress; of a lost node, its last
    heartbeat;
  - *stopping*: from there until the round had ended on all nodes: the ranks' work after SIGTERM, and the grace period;
  - *other*: the rest, such as saving a checkpoint after the stop request;

and between two rounds there is

- *restart*: from a round's end to the next round's first step, or, if that is unknown, to the start of its workers;
- *queue*: if the job was requeued, from the round's end to the next round's formation. Then only the next
  round's startup counts as restart.

Productive and lost time of rounds without reported steps is unknown, not zero. Where the script reports none, the times
of its optimizer's steps count; which of them a later round repeated is known by the count that an optimizer keeps, or
not at all (`begun_again`): then productive and lost time of that round is unknown, too.

Two nodes' clocks are never compared: each time is relative to the round's start on its own node, and nodes are
assumed to have started together. The silence of a lost node is measured by the coordinator alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ftslurm.dataclasses import dataclass
from ftslurm.report.facts import RoundNode, Snapshot
from ftslurm.report.round_facts import begun_again
from ftslurm.report.round_verdict import RoundVerdict
from ftslurm.text import duration, plural

PARTS = ("startup_s", "productive_s", "lost_s", "detection_s", "stopping_s", "other_s", "restart_s", "queue_s")
"""Parts of a round's time and of the time until the next one; the parts of the sums add up to ``elapsed_s``."""

_HOUR_NS = 3600 * 10**9

Dict = dict[str, Any]


@dataclass(frozen=True)
class _Round:
    """Times of a round's events, in nanoseconds since its start; None where unknown."""

    verdict: RoundVerdict
    nodes: Mapping[str, RoundNode]
    took: int | None
    first: int | None
    last: int | None
    failed: int | None
    stopped: int | None


@dataclass
class _Parts:
    """The parts of a round's time, in nanoseconds; None where unknown."""

    startup: int | None = None
    productive: int | None = None
    lost: int | None = None
    detection: int | None = None
    stopping: int | None = None
    other: int | None = None
    restart: int | None = None
    queue: int | None = None


def account(snapshot: Snapshot, rounds: Sequence[RoundVerdict]) -> tuple[list[Dict | None], Dict]:
    """Return the ``accounting`` of each round and that of the run; see `docs/report-schema.md` for the keys.

    Args:
        snapshot: the run directory.
        rounds: the verdicts, oldest first.
    """
    numbers = {files.number for files in snapshot.rounds}
    # The files of the oldest rounds of a long run were not read.
    skipped = snapshot.skipped_rounds and next((i for i, r in enumerate(rounds) if r.number in numbers), len(rounds))
    moments = [_moments(snapshot, verdict) for verdict in rounds[skipped:]]
    steps_reported = any(r.first is not None for r in moments)
    parts = [_inside(r, moments[i + 1 :], steps_reported) for i, r in enumerate(moments)]
    gaps = [_between(parts[i], r, moments[i + 1], parts[i + 1]) for i, r in enumerate(moments[:-1])]
    entries = [_entry(r, part) for r, part in zip(moments, parts, strict=True)]
    return [None] * skipped + entries, _sums(snapshot, moments, parts, gaps, entries)


def sentence(report: Mapping[str, Any]) -> str:
    """``92.1 % of 3 h 12 min was training; lost: 4 min of work (240 steps), 12 s detection, 48 s restarting``.

    Empty if nothing is known.
    """
    sums = report["accounting"]
    ratio, elapsed = sums["ratio"], sums["elapsed_s"]
    trained = "" if ratio is None else f"{percent(ratio)} of {duration(elapsed)} was training"
    steps = report["cost"]["steps_repeated"]
    of_work = f" of work ({plural(steps, 'step')})" if steps else " of work"
    labels = {"lost_s": of_work, "detection_s": " detection"}
    labels |= {"stopping_s": " stopping", "restart_s": " restarting", "queue_s": " between attempts"}
    lost = ", ".join(duration(sums[key]) + text for key, text in labels.items() if (sums[key] or 0) >= 0.05)
    if lost:
        lost = f"lost: {lost}" + (f"; {hours(sums)}" if sums["rank_hours_lost"] else "")
    return "; ".join(part for part in (trained, lost) if part)


def percent(share: float) -> str:
    """``92.1 %``; 100 and 0 only if exact."""
    text = f"{100 * share:.1f}"
    if text == "100.0" and share < 1:
        text = "99.9"
    if text == "0.0" and share > 0:
        text = "0.1"
    return f"{text} %"


def hours(sums: Mapping[str, Any]) -> str:
    """``3.2 GPU-hours``, ``14 rank-minutes``: time lost while ranks held their devices."""
    lost, unit = sums["rank_hours_lost"], sums["unit"]
    if lost is None:
        return "?"
    if lost < 1:
        return f"{60 * lost:.2g} {unit}-minutes"
    return f"{lost:,.0f} {unit}-hours" if lost >= 9.95 else f"{lost:.1f} {unit}-hours"


def _moments(snapshot: Snapshot, verdict: RoundVerdict) -> _Round:
    nodes = {n.node: n for n in verdict.files.nodes}
    first: int | None = None
    last: int | None = None
    for node in nodes.values():
        if node.started_ns is None:
            continue
        reported = [w.progress for w in node.workers if w.progress is not None]
        progress = reported or [w.optimizer_steps for w in node.workers if w.optimizer_steps is not None]
        spans = [
            (each.first_ns, each.last_ns) for each in progress if each.first_ns is not None and each.last_ns is not None
        ]
        if spans:
            begun, done = min(spans)[0] - node.started_ns, max(span[1] for span in spans) - node.started_ns
            first = begun if first is None else min(first, begun)
            last = done if last is None else max(last, done)
    took = _took(snapshot, verdict, nodes.values())
    if took is None:
        return _Round(verdict, nodes, None, first, last, None, None)
    failed = _clamp(_failed(snapshot, verdict, nodes, took), took)
    stops = [n.stop_ns - n.started_ns for n in nodes.values() if n.stop_ns is not None and n.started_ns is not None]
    stopped = _clamp(max(stops, default=None), took)
    return _Round(verdict, nodes, took, _clamp(first, took), _clamp(last, took), failed, stopped)


def _took(snapshot: Snapshot, verdict: RoundVerdict, nodes: Iterable[RoundNode]) -> int | None:
    spans = [n.ended_ns - n.started_ns for n in nodes if n.ended_ns is not None and n.started_ns is not None]
    if spans:
        return max(0, *spans)
    started, ended = verdict.started_ns, verdict.ended_ns
    if started is None:
        return None
    if ended is None and verdict.outcome == "running" and (snapshot.state is None or snapshot.state.closed is None):
        ended = snapshot.now_ns
    # A round without an observed end is closed by the next attempt, after the queue.
    unseen = verdict.outcome == "stopped" and verdict.first is None
    return None if ended is None or unseen else max(0, ended - started)


def _failed(snapshot: Snapshot, verdict: RoundVerdict, nodes: Mapping[str, RoundNode], took: int) -> int | None:
    failure = verdict.first
    if failure is None:
        return None
    if failure.kind == "node-lost":
        return _lost(snapshot, verdict, took)
    hang = failure.hang
    node = nodes.get((failure.node if hang is None else hang["node"]) or "")
    if failure.time_ns is None or node is None or node.started_ns is None:
        return None
    at_ns: int = failure.time_ns if hang is None or hang["since_ns"] is None else hang["since_ns"]
    return at_ns - node.started_ns


def _lost(snapshot: Snapshot, verdict: RoundVerdict, took: int) -> int | None:
    lost_nodes = [x for x in (snapshot.state.lost if snapshot.state else ()) if x.round == verdict.number]
    known = [(x.time_ns, x.silent_s) for x in lost_nodes if x.time_ns is not None and x.silent_s is not None]
    if not known:
        return None
    time_ns, silent_s = min(known)
    stopping = max(0, verdict.ended_ns - time_ns) if verdict.ended_ns is not None else 0
    return took - int(silent_s * 1e9) - stopping


def _inside(this: _Round, later: Sequence[_Round], steps_reported: bool) -> _Parts:
    parts = _Parts()
    if this.took is None:
        return parts
    end = this.took if this.failed is None else this.failed
    if this.failed is not None:
        stopped = this.took if this.stopped is None else max(this.failed, this.stopped)
        parts.detection, parts.stopping = stopped - this.failed, this.took - stopped
    if this.first is None or this.last is None:
        if steps_reported and this.nodes and this.verdict.outcome != "running":
            parts.startup, parts.productive, parts.lost = end, 0, 0
        return parts
    parts.startup = min(this.first, end)
    done = max(parts.startup, min(this.last, end))
    share = _repeated(this.verdict, later)
    if share is None:
        return parts
    repeated = int((done - parts.startup) * share)
    parts.productive, parts.lost = done - parts.startup - repeated, repeated
    if this.failed is not None:
        parts.lost += end - done
    elif this.verdict.outcome == "succeeded":
        parts.productive += end - done
    else:
        parts.other = end - done
    return parts


def _repeated(verdict: RoundVerdict, later: Sequence[_Round]) -> float | None:
    """The share of a round's steps that a later round repeated, 0 to 1; None: unknown."""
    first, last = verdict.first_step, verdict.last_step
    found = [begun_again(verdict, r.verdict) for r in later if r.first is not None or r.verdict.first_step is not None]
    if first is None and verdict.optimizer_steps is not None:
        first, last = verdict.optimizer_steps
        if None in found:
            return None
    again = min((step for step in found if step is not None), default=None)
    if first is None or last is None or again is None or again >= last:
        return 0.0
    return 1.0 if again <= first else (last - again) / (last - first)


def _between(parts: _Parts, this: _Round, after: _Round, after_parts: _Parts) -> int | None:
    """Fill in the time until the next round's progress, and return the gap without a round."""
    gap = _gap(this, after)
    startup = after_parts.startup
    if this.verdict.attempt != after.verdict.attempt:
        parts.queue, parts.restart = gap, startup
    elif gap is not None:
        parts.restart = gap + (startup or 0)
    return gap


def _gap(this: _Round, after: _Round) -> int | None:
    both = sorted(
        node.started_ns - this.nodes[name].ended_ns  # type: ignore[operator]
        for name, node in after.nodes.items()
        if node.started_ns is not None and name in this.nodes and this.nodes[name].ended_ns is not None
    )
    if both:
        return max(0, both[len(both) // 2])
    ended, started = this.verdict.ended_ns, after.verdict.started_ns
    return None if this.took is None or ended is None or started is None else max(0, started - ended)


def _entry(this: _Round, parts: _Parts) -> Dict:
    world = this.verdict.world_size
    wasted = _add((parts.lost, parts.detection, parts.stopping, parts.restart))
    return {
        "took_s": _seconds(this.took),
        **{key: _seconds(getattr(parts, key[:-2])) for key in PARTS},
        "rank_hours_lost": None if world is None or wasted is None else world * wasted / _HOUR_NS,
    }


def _sums(
    snapshot: Snapshot,
    rounds: Sequence[_Round],
    parts: Sequence[_Parts],
    gaps: Sequence[int | None],
    entries: Sequence[Dict],
) -> Dict:
    spans = [r.took for r in rounds] + list(gaps)
    elapsed = sum(s for s in spans if s is not None) if spans and None not in spans else None
    productive = [p.productive for p in parts]
    ratio = None
    if elapsed and None not in productive:
        ratio = sum(p for p in productive if p is not None) / elapsed
    sums: Dict = {key: _seconds(_add(getattr(p, key[:-2]) for p in parts)) for key in PARTS}
    # The startup of later rounds is part of restart.
    sums["startup_s"] = _seconds(parts[0].startup) if parts else None
    lost = [entry["rank_hours_lost"] for entry in entries]
    return {
        "rounds": len(rounds),
        "first_round": rounds[0].verdict.number if rounds else None,
        "elapsed_s": _seconds(elapsed),
        **sums,
        "ratio": ratio,
        "rank_hours_lost": sum(x for x in lost if x is not None) if any(x is not None for x in lost) else None,
        "unit": "GPU" if snapshot.attempts and all(a.nproc == "gpu" for a in snapshot.attempts) else "rank",
    }


def _add(values: Iterable[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _clamp(value: int | None, most: int) -> int | None:
    return None if value is None else max(0, min(value, most))


def _seconds(value: int | None) -> float | None:
    return None if value is None else value / 1e9
