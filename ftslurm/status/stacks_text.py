"""The text of ``ftslurm stacks``: ranks with the same place together, and the newest collective of each (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.collectives.calls import calls_of, operation_of
from ftslurm.collectives.judgement import judge
from ftslurm.collectives.phrases import remarks, sentence
from ftslurm.monitor.faulthandler_text import Frame
from ftslurm.monitor.stack_classifier import WAITS, WORKS, user_frames
from ftslurm.monitor.stacks_file import RankStacks, parse
from ftslurm.monitor.triage import Group, Triage, describe, triage
from ftslurm.records.flight import Collective, FlightRecord
from ftslurm.records.stacks import StacksAnswer
from ftslurm.records.state import State
from ftslurm.text import duration, one_line, plural, ranges


def render(name: str, state: State, answers: Sequence[StacksAnswer], frames: bool = False) -> str:
    """Return the text.

    Args:
        name: of the run.
        answers: of the nodes that have answered.
        frames: all frames, not only those of the user's code.
    """
    stacks, records = [], {}
    for answer in answers:
        for one in answer.ranks:
            found = parse(one.stacks.encode("utf-8", "replace"))
            stacks += [found] if found is not None else []
            if one.collectives is not None:
                records[one.rank] = one.collectives
    lines = [f"{name}: round {state.round}, {plural(len(stacks), 'rank')} on {plural(len(answers), 'node')}"]
    if not stacks:
        return f"{lines[0]}: no rank is alive there\n"
    together = triage(sorted(stacks, key=lambda one: one.rank))
    lines += _judged(together, stacks, records, state.world_size)
    for group in together.groups:
        lines += ["", *_group(group, stacks, records, frames)]
    return "\n".join(lines) + "\n"


def _judged(
    found: Triage, stacks: Sequence[RankStacks], records: dict[int, FlightRecord], world: int | None
) -> list[str]:
    """Return in which call ranks wait, and for which others, by the records of all; empty: in none for a second."""
    kinds = [(one.activity.kind, one.ranks) for one in found.groups if one.activity is not None]
    judged = judge(
        [calls_of(record, world) for record in records.values()],
        busy=[rank for kind, ranks in kinds if kind == WORKS for rank in ranks],
        blocked=[rank for kind, ranks in kinds if kind == WAITS for rank in ranks],
    )
    if judged.root is None:
        return []
    since = duration(judged.root.waited_ns / 1e9)
    text = sentence(judged, {one.rank: one.node for one in stacks})
    return [one_line(f"{text}, for {since}", 300), *(one_line(each, 300) for each in remarks(judged))]


def _group(group: Group, stacks: Sequence[RankStacks], records: dict[int, FlightRecord], frames: bool) -> list[str]:
    who = f"rank{'s' if len(group.ranks) > 1 else ''} {ranges(group.ranks)} ({', '.join(group.nodes[:4])})"
    lines = [f"{who}: {describe(group)}"]
    steps = [one.step for one in stacks if one.rank in group.ranks and one.step is not None]
    if steps:
        least, most = min(steps), max(steps)
        lines.append(f"  step {least}" if least == most else f"  steps {least} to {most}")
    shown = group.frames if frames else user_frames(group.frames)
    lines += [f"  {_frame(frame)}" for frame in shown]
    by_text: dict[str, list[tuple[int, float | None]]] = {}
    for rank in group.ranks:
        text, since_s = newest(records.get(rank))
        by_text.setdefault(text, []).append((rank, since_s))
    for text, ranks in by_text.items():
        whose = "" if len(by_text) == 1 else f"rank{'s' if len(ranks) > 1 else ''} {ranges(r for r, _ in ranks)}: "
        ages = sorted({duration(since_s): since_s for _, since_s in ranks if since_s is not None}.values())
        called = f", called {' to '.join(map(duration, ages[:: max(1, len(ages) - 1)]))} before" if ages else ""
        lines += [f"  {whose}{text}{called}"] if text else []
    return lines


def _frame(frame: Frame) -> str:
    return one_line(f"{frame.file}:{frame.line} in {frame.function}", 300)


def newest(record: FlightRecord | None) -> tuple[str, float | None]:
    """Return the collective that a rank is in, else its last one, and how many seconds before it had called that.

    Such as ``in all_reduce #118 [4096 Float] (default_pg)``.
    """
    if record is None:
        return "", None
    if record.trace is None:
        return f"no record of its collectives: {record.trouble}", None
    if not record.trace.entries:
        return "no collective so far", None
    open_ = [entry for entry in record.trace.entries if not entry.retired]
    shown = open_[0] if open_ else record.trace.entries[-1]
    since_s = max(0.0, (record.time_ns - shown.time_created_ns) / 1e9)
    if not open_:
        return f"last collective: {operation(shown)}, over", since_s
    more = f" and {len(open_) - 1} more behind it" if len(open_) > 1 else ""
    return f"in {operation(shown)}{more}", since_s


def operation(entry: Collective) -> str:
    """Return ``all_reduce #118 [4096 float32] (default_pg)``."""
    number = f"p2p #{entry.p2p_seq_id}" if entry.is_p2p else f"#{entry.collective_seq_id}"
    group = entry.process_group[1] if entry.process_group[1] not in ("", "undefined") else entry.process_group[0]
    found = operation_of(entry)
    return f"{found.name} {number} {f'{found.data} ' if found.data else ''}({group})"
