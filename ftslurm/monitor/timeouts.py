"""Time-outs: configured, observed, learned, and effective ones (pure).

Seconds throughout. ``math.inf`` in configured ones means "off", regardless of learned ones; None means unset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from ftslurm.dataclasses import dataclass, field
from ftslurm.monitor.heartbeat_page import INF
from ftslurm.text import duration_s

FACTOR = 5.0  # a learned time-out is so many times the longest interval that was completed
FLOOR_S = 600.0  # and never shorter than this: the first evaluation or checkpoint may come in any later round
AUTOMATIC_FLOOR_S = 1800.0  # of steps of an optimizer: after its last one a script may evaluate and save for long
SECTION_FLOOR_S = 60.0  # but a section's name states what it does, so that the next one takes about as long
CUT_FACTOR = 2.0  # an interval that a time-out cut short may have been healthy: twice as long the next time ...
CUT_LIMIT_S = 7200.0  # ... but a rank that really hangs each time must not be waited for all night
MAX_SECTIONS = 128  # names that are remembered; the state stays small whatever a script calls its sections
MAX_NAME = 40  # bytes of a section's name
VERSION = 1


@dataclass(frozen=True)
class Timeouts:
    """The time-outs of a rank; None: not watched.

    Attributes:
        initial_s: from the worker's start to its first heartbeat; only where it was asked for or learned.
        heartbeat_s: between heartbeats, once there was one.
        sections: each section's.
        out_of_section_s: with no section open, once one was opened.
        warmup_steps: number of initial heartbeats, and entries per section, that ...
        warmup_s: ... get at least this time-out.
        hang_s: without any progress, also of a rank that never sent a heartbeat.
    """

    initial_s: float | None = None
    heartbeat_s: float | None = None
    sections: Mapping[str, float] = field(default_factory=dict)
    out_of_section_s: float | None = None
    warmup_steps: int = 0
    warmup_s: float = 0.0
    hang_s: float | None = None


DEFAULTS = Timeouts(heartbeat_s=1800.0)
NOTHING = Timeouts()


@dataclass(frozen=True)
class Spans:
    """One duration for each thing that is watched; None and missing: unknown."""

    initial_s: float | None = None
    heartbeat_s: float | None = None
    sections: Mapping[str, float] = field(default_factory=dict)
    out_of_section_s: float | None = None


@dataclass(frozen=True)
class Longest:
    """The longest completed intervals of a round, over some of its ranks.

    Attributes:
        completed: those intervals, the warm-up's not among them.
        cut: the time-outs that expired, whose intervals were not completed.
        silent: how many of the ranks never sent a heartbeat.
        automatic: of how many of them the heartbeats are steps of the optimizer (`optimizer_steps`).
    """

    completed: Spans = Spans()
    cut: Spans = Spans()
    silent: int = 0
    automatic: int = 0

    @staticmethod
    def from_json(value: object, where: str) -> Longest:
        """Read it from JSON (`ftslurm.records.codec`); raises as `read_longest`."""
        return read_longest(value, where)


@dataclass(frozen=True)
class Learned:
    """The time-outs learned so far, and from how many rounds."""

    timeouts: Spans = Spans()
    rounds: int = 0

    @staticmethod
    def from_json(value: object, where: str) -> Learned:
        """Read it from JSON (`ftslurm.records.codec`); raises as `read_learned`."""
        return read_learned(value, where)


def merge(parts: Iterable[Longest]) -> Longest:
    """Return the longest intervals over all of `parts` (ranks of a node, nodes of a round)."""
    completed, cut, silent, automatic = Spans(), Spans(), 0, 0
    for part in parts:
        completed, cut = _each(_max, completed, part.completed), _each(_max, cut, part.cut)
        silent += part.silent
        automatic += part.automatic
    return Longest(completed, cut, silent, automatic)


def widest(one: Spans, other: Spans) -> Spans:
    """Return of each duration the longer one."""
    return _each(_max, one, other)


def learn(previous: Learned | None, longest: Longest) -> Learned:
    """Return the learned time-outs after one more round.

    A new time-out is `FACTOR` times the longest interval of the round, at least `FLOOR_S` (`SECTION_FLOOR_S` for a
    section); it shrinks by half steps only. Values without an observation in the round stay. A time-out that expired
    doubles, up to `CUT_LIMIT_S`: if the rank was healthy, the longer interval is completed the next time, and learned.

    The time to the first heartbeat is learned only from rounds in which every rank sent one: else a rank that never
    does (often only rank 0 calls a hook) would be ended for it in the next round. Steps of an optimizer teach nothing
    about it: a start that also loads a checkpoint may take far longer than one from nothing. Between them the learned
    time is at least `AUTOMATIC_FLOOR_S`: what follows after the last step was in no round before.
    """
    before = previous.timeouts if previous else Spans()
    fresh = _each(_max, _map(_allow, longest.completed), _map(_allow_cut, longest.cut))
    if longest.automatic and fresh.heartbeat_s is not None:
        heartbeat_s = max(AUTOMATIC_FLOOR_S, fresh.heartbeat_s)
        fresh = Spans(fresh.initial_s, heartbeat_s, fresh.sections, fresh.out_of_section_s)
    if longest.silent or longest.automatic:
        fresh = Spans(
            _one(_allow_cut, longest.cut.initial_s, FLOOR_S), fresh.heartbeat_s, fresh.sections, fresh.out_of_section_s
        )
    after = _each(_smooth, before, fresh)
    if len(after.sections) > MAX_SECTIONS:
        # Those of this round first: the others may be names of last month's script.
        names = sorted(after.sections, key=lambda name: (name not in fresh.sections, name))[:MAX_SECTIONS]
        sections = {name: after.sections[name] for name in names}
        after = Spans(after.initial_s, after.heartbeat_s, sections, after.out_of_section_s)
    return Learned(after, (previous.rounds if previous else 0) + 1)


def effective(asked: Timeouts, learned: Learned | None, defaults: Timeouts = DEFAULTS) -> Timeouts:
    """Return the time-outs that hold: asked for beats learned, learned beats the default, "off" is None."""
    known = learned.timeouts if learned else Spans()
    sections = {**defaults.sections, **known.sections, **asked.sections}
    return Timeouts(
        initial_s=_first(asked.initial_s, known.initial_s, defaults.initial_s),
        heartbeat_s=_first(asked.heartbeat_s, known.heartbeat_s, defaults.heartbeat_s),
        sections={name: seconds for name, seconds in sections.items() if abs(seconds) < INF},
        out_of_section_s=_first(asked.out_of_section_s, known.out_of_section_s, defaults.out_of_section_s),
        warmup_steps=asked.warmup_steps or defaults.warmup_steps,
        warmup_s=asked.warmup_s or defaults.warmup_s,
        hang_s=_first(asked.hang_s, defaults.hang_s),
    )


def parse_seconds(option: str, text: str) -> float:
    """Read a time-out from the command line: a duration above 0, or "off" (`math.inf`).

    Raises:
        ValueError: with one line that names `option`.
    """
    if text.strip().lower() in ("off", "none"):
        return INF
    seconds = duration_s(text)
    if seconds is None or seconds <= 0:
        raise ValueError(f"{option} {text!r}: expected seconds above 0, a time such as 30m or 2h, or off")
    return seconds


def parse_section(option: str, text: str) -> tuple[str, float]:
    """Read `NAME=SECONDS` (or `NAME=off`) from the command line; the name may hold a `=` itself.

    Raises:
        ValueError: with one line that names `option`.
    """
    name, equals, seconds = text.rpartition("=")
    if not equals or not is_name(name):
        raise ValueError(f"{option} {text!r}: expected NAME=SECONDS, the name at most {MAX_NAME} bytes")
    return name, parse_seconds(option, seconds)


def is_name(name: object) -> bool:
    """Whether that can be a section's name: 1 to 40 bytes of UTF-8, no NUL."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    try:
        return len(name.encode()) <= MAX_NAME
    except UnicodeEncodeError:
        return False


def timeouts_json(timeouts: Timeouts) -> dict[str, object]:
    """Return `timeouts` as a JSON object, what is None left out, "off" as that string."""
    spans = Spans(timeouts.initial_s, timeouts.heartbeat_s, timeouts.sections, timeouts.out_of_section_s)
    content = spans_json(spans)
    if timeouts.warmup_steps:
        content["warmup_steps"] = timeouts.warmup_steps
    if timeouts.warmup_s:
        content["warmup_s"] = timeouts.warmup_s
    if timeouts.hang_s is not None:
        content["hang_s"] = _number(timeouts.hang_s)
    return content


def read_timeouts(value: object, where: str = "time-outs") -> Timeouts:
    """Read what `timeouts_json` returned.

    Raises:
        ValueError: one line that names what is wrong and `where`.
    """
    content, spans = _object(value, where), read_spans(value, where)
    warmup_s = content.get("warmup_s", 0.0)
    return Timeouts(
        initial_s=spans.initial_s,
        heartbeat_s=spans.heartbeat_s,
        sections=spans.sections,
        out_of_section_s=spans.out_of_section_s,
        warmup_steps=_count(content, "warmup_steps", where),
        warmup_s=0.0 if warmup_s == 0 else _seconds(warmup_s, f"{where}: warmup_s"),
        hang_s=_maybe(content, "hang_s", where),
    )


def spans_json(spans: Spans) -> dict[str, object]:
    """Return `spans` as a JSON object, what is unknown left out."""
    content: dict[str, object] = {}
    for name in ("initial_s", "heartbeat_s", "out_of_section_s"):
        seconds = getattr(spans, name)
        if seconds is not None:
            content[name] = _number(seconds)
    if spans.sections:
        content["sections"] = {name: _number(seconds) for name, seconds in sorted(spans.sections.items())}
    return content


def read_spans(value: object, where: str = "durations") -> Spans:
    """Read what `spans_json` returned; `ValueError` as `read_timeouts`."""
    content = _object(value, where)
    sections = _object(content.get("sections", {}), f"{where}: sections")
    if len(sections) > MAX_SECTIONS:
        raise ValueError(f"{where}: sections: expected at most {MAX_SECTIONS}, found {len(sections)}")
    for name in sections:
        if not is_name(name):
            raise ValueError(f"{where}: sections: {name!r:.80} is no name of a section")
    return Spans(
        initial_s=_maybe(content, "initial_s", where),
        heartbeat_s=_maybe(content, "heartbeat_s", where),
        sections={name: _seconds(seconds, f"{where}: section {name!r}") for name, seconds in sections.items()},
        out_of_section_s=_maybe(content, "out_of_section_s", where),
    )


def read_longest(value: object, where: str = "longest intervals") -> Longest:
    """Read the JSON object of a `Longest`; `ValueError` as `read_timeouts`."""
    content = _object(value, where)
    completed, cut = (read_spans(content.get(name, {}), f"{where}: {name}") for name in ("completed", "cut"))
    return Longest(completed, cut, _count(content, "silent", where), _count(content, "automatic", where))


def learned_json(learned: Learned) -> dict[str, object]:
    """Return `learned` as a JSON object, for the state and for checkpoints."""
    return {"timeouts": spans_json(learned.timeouts), "rounds": learned.rounds}


def read_learned(value: object, where: str = "learned time-outs") -> Learned:
    """Read what `learned_json` returned; `ValueError` as `read_timeouts`."""
    content = _object(value, where)
    spans = read_spans(content.get("timeouts", {}), where)
    return Learned(spans, _count(content, "rounds", where))


def to_env(asked: Timeouts, learned: Learned | None) -> str:
    """Return the value of `FTSLURM_TIMEOUTS`, for the workers."""
    content: dict[str, object] = {"version": VERSION, "asked": timeouts_json(asked)}
    if learned is not None:
        content["learned"] = learned_json(learned)
    return json.dumps(content, separators=(",", ":"))


def from_env(text: str) -> tuple[Timeouts, Learned | None]:
    """Read the value of `FTSLURM_TIMEOUTS`; `ValueError` as `read_timeouts`."""
    where = "FTSLURM_TIMEOUTS"
    content = _object(json.loads(text), where)
    learned = content.get("learned")
    return read_timeouts(content.get("asked", {}), where), None if learned is None else read_learned(learned, where)


def _max(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


def _smooth(old: float | None, new: float | None) -> float | None:
    if old is None or new is None:
        return old if new is None else new
    return max((old + new) / 2, new)


def _allow(longest: float, floor_s: float) -> float:
    return max(floor_s, FACTOR * longest)


def _allow_cut(expired: float, floor_s: float) -> float:
    return max(floor_s, expired, min(CUT_FACTOR * expired, CUT_LIMIT_S))


def _one(allow: Callable[[float, float], float], value: float | None, floor_s: float) -> float | None:
    return None if value is None else allow(value, floor_s)


def _map(allow: Callable[[float, float], float], spans: Spans) -> Spans:
    return Spans(
        _one(allow, spans.initial_s, FLOOR_S),
        _one(allow, spans.heartbeat_s, FLOOR_S),
        {name: allow(value, SECTION_FLOOR_S) for name, value in spans.sections.items()},
        _one(allow, spans.out_of_section_s, FLOOR_S),
    )


def _each(join: Callable[[float | None, float | None], float | None], one: Spans, other: Spans) -> Spans:
    names = [*one.sections, *(name for name in other.sections if name not in one.sections)]
    sections = {name: join(one.sections.get(name), other.sections.get(name)) for name in names}
    return Spans(
        join(one.initial_s, other.initial_s),
        join(one.heartbeat_s, other.heartbeat_s),
        {name: value for name, value in sections.items() if value is not None},
        join(one.out_of_section_s, other.out_of_section_s),
    )


def _first(*values: float | None) -> float | None:
    found = next((value for value in values if value is not None), None)
    return found if found is not None and abs(found) < INF else None


def _number(seconds: float) -> float | str:
    return round(seconds, 3) if abs(seconds) < INF else "off"


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected an object, found {type(value).__name__}")
    return value


def _seconds(value: object, where: str) -> float:
    if value == "off":
        return INF
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    raise ValueError(f"{where}: expected seconds, found {value!r:.80}")


def _maybe(content: Mapping[str, object], name: str, where: str) -> float | None:
    value = content.get(name)
    return None if value is None else _seconds(value, f"{where}: {name}")


def _count(content: Mapping[str, object], name: str, where: str) -> int:
    value = content.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{where}: {name}: expected a whole number, found {value!r:.80}")
    return value
