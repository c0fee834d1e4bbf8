"""One round of the run as a dictionary: the first failure, the other ranks in groups, times and steps (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ftslurm.failures.causes import CASCADE, PRIMARY, Evidence, classify, describe
from ftslurm.report import blame
from ftslurm.report.blame import Suspect
from ftslurm.report.facts import Attempt, Frame, History, LogTail, Lost, RoundFiles, Snapshot, Worker
from ftslurm.report.words import ranges

LOG_LINES = 20
LOG_LINE_LIMIT = 1000
# Ranks are numbers in a file: a hostile world size must not make the report count to 2**60.
WORLD_LIMIT = 1_000_000
_HEADER = "Traceback (most recent call last):"
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<frozen|/ftslurm/worker")

Dict = dict[str, Any]


def round_report(snapshot: Snapshot, number: int, *, newest: bool) -> Dict:
    """Describe one round; see `ftslurm.report.analyse` for the keys."""
    files = blame.round_files(snapshot, number)
    entry = blame.history_of(snapshot, number)
    found = blame.suspects(snapshot, number)
    lost = _lost(snapshot, files, entry, newest=newest)
    outcome = _outcome(snapshot, files, entry, found, newest=newest)
    first, others = _first(snapshot, number, found, lost, outcome)
    started, ended = _started_ns(files, entry), _ended_ns(files, entry, outcome)
    nodes = _node_names(files, entry)
    return {
        "round": number,
        "attempt": _attempt_name(files, entry),
        "nodes": nodes,
        "world_size": _world_size(files, entry),
        "started_ns": started,
        "ended_ns": ended,
        "duration_s": _seconds(started, ended),
        "outcome": outcome,
        "reason": entry.reason if entry else None,
        **_steps(files),
        "first_failure": first,
        "same_time": [_short(s) for s in blame.at_the_same_time(found)] if first and first["rank"] is not None else [],
        "groups": _groups(others),
        **_rest(files, entry, found, outcome),
        "recovered": False,
        "cost": None,
    }


def _first(
    snapshot: Snapshot, number: int, found: list[Suspect], lost: list[Lost], outcome: str
) -> tuple[Dict | None, list[Suspect]]:
    """Choose the first failure of the round and return it with the suspects that remain."""
    if outcome in ("stopped", "succeeded"):
        return None, found
    if lost and not _before(found, lost):
        return _lost_failure(snapshot, number, lost), found
    if not found:
        return None, []
    return _worker_failure(snapshot, number, found[0]), found[1:]


def _before(found: list[Suspect], lost: list[Lost]) -> bool:
    """Whether a worker had failed for a reason of its own before the lost nodes fell silent."""
    gone = {x.node for x in lost}
    last_words = [x.time_ns - int((x.silent_s or 0) * 1e9) for x in lost if x.time_ns is not None]
    for suspect in found:
        if suspect.cause.role != PRIMARY:
            continue
        # What a lost node's agent still wrote about a worker, it wrote before it went.
        if suspect.node in gone or not last_words:
            return True
        if suspect.time_ns is not None and suspect.time_ns <= min(last_words):
            return True
    return False


def _lost(snapshot: Snapshot, files: RoundFiles, entry: History | None, *, newest: bool) -> list[Lost]:
    state = snapshot.state
    lost = [x for x in (state.lost if state else ()) if x.round == files.number]
    if lost or entry is None or entry.outcome != "node-lost":
        return lost
    ended = {n.node for n in files.nodes if n.ended_ns is not None}
    return [Lost(node, files.number, entry.ended_ns, None) for node in entry.nodes if node not in ended]


def _lost_failure(snapshot: Snapshot, number: int, lost: list[Lost]) -> Dict:
    names = [x.node for x in lost]
    silent = max((x.silent_s for x in lost if x.silent_s is not None), default=None)
    left = next((w.reason for w in snapshot.nodes if w.node in names and w.status == "left" and w.reason), None)
    text = "was lost" if len(names) == 1 else "were lost"
    if left:
        text += f": {left}"
    elif silent is not None:
        text += f" (no sign of life for {silent:.0f} s)"
    evidence = Evidence(kind="node-lost", message=text)
    cause = classify(evidence)
    files = blame.round_files(snapshot, number)
    failure = dict.fromkeys(_FAILURE_KEYS)
    return failure | {
        "round": number,
        "node": names[0],
        "nodes": names,
        "time_ns": min((x.time_ns for x in lost if x.time_ns is not None), default=None),
        "kind": "node-lost",
        "core_dumped": False,
        "step": _steps(files)["last_step"],
        "cause": cause.name,
        "title": cause.title,
        "role": cause.role,
        "advice": cause.advice,
        "what": describe(evidence, cause),
        "signature": "node-lost",
        "ranks": ranges(_ranks_of(snapshot, files, set(names))),
        "argv": [],
        "evidence": ["state"],
    }


def _ranks_of(snapshot: Snapshot, files: RoundFiles, names: set[str]) -> list[int]:
    ranks = [w.rank for n in files.nodes if n.node in names for w in n.workers]
    state = snapshot.state
    if not ranks and state is not None and state.round == files.number:
        for p in state.participants:
            if p.node in names and 0 <= p.slots <= WORLD_LIMIT:
                ranks.extend(range(p.first_rank, p.first_rank + p.slots))
    return ranks


_FAILURE_KEYS = (
    "round", "node", "nodes", "host", "rank", "local_rank", "time_ns", "kind", "exit_code", "signal", "core_dumped",
    "step", "cause", "title", "role", "advice", "what", "where", "raised_in", "traceback", "stacks", "log",
    "signature", "same_as_rounds", "ranks", "argv", "evidence",
)  # fmt: skip


def _worker_failure(snapshot: Snapshot, number: int, suspect: Suspect) -> Dict:
    files = blame.round_files(snapshot, number)
    attempt = _attempt(snapshot, _attempt_name(files, blame.history_of(snapshot, number)))
    where, raised_in = _places(suspect, attempt.cwd if attempt else None)
    return {
        "round": number,
        "node": suspect.node,
        "nodes": [suspect.node],
        "host": suspect.host,
        "rank": suspect.rank,
        "local_rank": suspect.local_rank,
        "time_ns": suspect.time_ns,
        "kind": suspect.kind,
        "exit_code": suspect.exit_code,
        "signal": suspect.signal,
        "core_dumped": suspect.core_dumped,
        "step": suspect.step,
        "cause": suspect.cause.name,
        "title": suspect.cause.title,
        "role": suspect.cause.role,
        "advice": suspect.cause.advice,
        "what": suspect.what,
        "where": where,
        "raised_in": raised_in,
        "traceback": _traceback(suspect),
        "stacks": suspect.stacks,
        "log": _log(suspect, files.tails.get(suspect.rank, ())),
        "signature": _signature(suspect),
        "same_as_rounds": [],
        "ranks": str(suspect.rank),
        "argv": list(suspect.argv),
        "evidence": list(suspect.evidence),
    }


def _short(suspect: Suspect) -> Dict:
    return {
        "rank": suspect.rank,
        "node": suspect.node,
        "nodes": [suspect.node],
        "time_ns": suspect.time_ns,
        "cause": suspect.cause.name,
        "title": suspect.cause.title,
        "what": suspect.what,
        "core_dumped": suspect.core_dumped,
    }


def _traceback(suspect: Suspect) -> str | None:
    if suspect.traceback or not suspect.exception or not suspect.frames:
        return suspect.traceback
    lines = [_HEADER]
    for frame in suspect.frames:
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        if frame.source:
            lines.append(f"    {frame.source.strip()}")
    return "\n".join([*lines, suspect.what])


def _places(suspect: Suspect, cwd: str | None) -> tuple[Dict | None, Dict | None]:
    """Return the innermost place in the user's own code and, if it is another one, where it was raised."""
    frames = suspect.frames
    if not frames:
        return None, None
    own = next((f for f in reversed(frames) if not _LIBRARY.search(f.file)), frames[-1])
    return _place(own, cwd), None if own is frames[-1] else _place(frames[-1], cwd)


def _place(frame: Frame, cwd: str | None) -> Dict:
    shown = frame.file
    if cwd and cwd != "/" and shown.startswith(cwd.rstrip("/") + "/"):
        shown = shown[len(cwd.rstrip("/")) + 1 :]
    return {"file": frame.file, "shown": shown, "line": frame.line, "function": frame.function, "source": frame.source}


def _log(suspect: Suspect, tails: Sequence[LogTail]) -> Dict | None:
    """The end of stderr without the traceback that is shown already, else of stdout."""
    by_stream = {t.stream: t for t in tails}
    for stream in ("stderr", "stdout"):
        tail = by_stream.get(stream)
        if tail is None:
            continue
        lines = tail.text.rstrip().split("\n")
        if stream == "stderr" and suspect.traceback:
            lines = _without_traceback(lines, suspect.traceback)
        while lines and not lines[-1].strip():
            lines.pop()
        if any(line.strip() for line in lines):
            kept = [line[:LOG_LINE_LIMIT] for line in lines[-LOG_LINES:]]
            cut = len(kept) < len(lines) or len(tail.text) < tail.size // 4
            return {"stream": stream, "path": tail.path, "size": tail.size, "lines": kept, "cut": cut}
    return None


def _without_traceback(lines: list[str], traceback: str) -> list[str]:
    headers = [i for i, line in enumerate(lines) if _HEADER in line]
    wanted = traceback.count(_HEADER)
    if not wanted or len(headers) < wanted:
        return lines
    start = headers[-wanted]
    last = traceback.rstrip().rsplit("\n", 1)[-1].strip()
    end = next((i for i in range(len(lines) - 1, start, -1) if last and last in lines[i]), None)
    # No last line in sight: what follows the header belongs to something else.
    return lines if end is None else lines[:start] + lines[end + 1 :]


def _signature(suspect: Suspect) -> str:
    """What two failures of the same kind have in common: the text without its numbers."""
    line = suspect.what[:2000].strip().split("\n", 1)[0][:200]
    return f"{suspect.cause.name}|{_VARIABLE.sub('#', line)}"


def _groups(others: Iterable[Suspect]) -> list[Dict]:
    members: dict[str, list[Suspect]] = {}
    for suspect in others:
        members.setdefault(_signature(suspect), []).append(suspect)
    return [_group(group) for group in members.values()]


def _group(group: list[Suspect]) -> Dict:
    first = group[0]
    nodes = list(dict.fromkeys(s.node for s in group))
    return {
        "cause": first.cause.name,
        "title": first.cause.title,
        "role": first.cause.role,
        "what": first.what,
        "ranks": ranges(s.rank for s in group),
        "count": len(group),
        "nodes": nodes[:8],
        "node_count": len(nodes),
        "first_ns": min((s.time_ns for s in group if s.time_ns is not None), default=None),
    }


def _rest(files: RoundFiles, entry: History | None, found: list[Suspect], outcome: str) -> Dict:
    """The ranks that did not fail: stopped by ftslurm, finished, and those nobody saw end."""
    failed = {s.rank for s in found}
    workers = [w for n in files.nodes for w in n.workers if w.rank not in failed]
    stopped = [w for w in workers if w.stopped_by_ftslurm]
    finished = [w.rank for w in workers if w.ended_ns is not None and not w.stopped_by_ftslurm and not w.failed]
    seen = failed | {w.rank for w in stopped} | set(finished)
    world = _world_size(files, entry) or 0
    over = outcome != "running"
    silent = [r for r in range(min(world, WORLD_LIMIT)) if r not in seen] if over else []
    reported = {n.node for n in files.nodes if n.ended_ns is not None}
    names = [n for n in _node_names(files, entry) if n not in reported]
    return {
        "stopped": _stopped(files, stopped) if stopped else None,
        "finished": {"ranks": ranges(finished), "count": len(finished)} if finished else None,
        "silent": {"ranks": ranges(silent), "count": len(silent), "nodes": names} if silent else None,
    }


def _stopped(files: RoundFiles, stopped: list[Worker]) -> Dict:
    reasons = Counter(n.stop_reason for n in files.nodes if n.stop_reason)
    killed = [w.rank for w in stopped if w.stop_signal == "SIGKILL"]
    return {
        "ranks": ranges(w.rank for w in stopped),
        "count": len(stopped),
        "reason": reasons.most_common(1)[0][0] if reasons else None,
        "killed_ranks": ranges(killed),
        "killed": len(killed),
    }


def _outcome(
    snapshot: Snapshot, files: RoundFiles, entry: History | None, found: list[Suspect], *, newest: bool
) -> str:
    if entry is not None and entry.outcome not in ("running", "unknown"):
        return entry.outcome
    closed = snapshot.state.closed if snapshot.state else None
    if newest and closed is not None and closed.outcome == "stopped":
        return "stopped"
    if found:
        return "failed"
    outcomes = {n.outcome for n in files.nodes}
    if outcomes == {"succeeded"} and _all_there(files, entry):
        return "succeeded"
    if newest and closed is None:
        return "stopped" if outcomes == {"stopped"} else "running"
    return closed.outcome if newest and closed is not None else "unknown"


def _all_there(files: RoundFiles, entry: History | None) -> bool:
    world = _world_size(files, entry)
    return world is None or world == len({w.rank for n in files.nodes for w in n.workers})


def _attempt_name(files: RoundFiles, entry: History | None) -> str | None:
    if entry is not None and entry.attempt:
        return entry.attempt
    return next((n.attempt for n in files.nodes if n.attempt), None)


def _attempt(snapshot: Snapshot, name: str | None) -> Attempt | None:
    return next((a for a in snapshot.attempts if a.attempt == name), None)


def _node_names(files: RoundFiles, entry: History | None) -> list[str]:
    if entry is not None and entry.nodes:
        return list(entry.nodes)
    return [n.node for n in files.nodes]


def _world_size(files: RoundFiles, entry: History | None) -> int | None:
    sizes = [entry.world_size if entry else None] + [n.world_size for n in files.nodes]
    return next((s for s in sizes if s is not None and 0 < s <= WORLD_LIMIT), None)


def _started_ns(files: RoundFiles, entry: History | None) -> int | None:
    if entry is not None and entry.formed_ns is not None:
        return entry.formed_ns
    return min((n.started_ns for n in files.nodes if n.started_ns is not None), default=None)


def _ended_ns(files: RoundFiles, entry: History | None, outcome: str) -> int | None:
    if entry is not None and entry.ended_ns is not None:
        return entry.ended_ns
    if outcome == "running":
        return None
    return max((n.ended_ns for n in files.nodes if n.ended_ns is not None), default=None)


def _steps(files: RoundFiles) -> Dict:
    progress = [w.progress for n in files.nodes for w in n.workers if w.progress is not None]
    return {
        "first_step": min((p.first_step for p in progress), default=None),
        "last_step": max((p.last_step for p in progress), default=None),
    }


def _seconds(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else max(0, end - start) / 1e9


__all__ = ["CASCADE", "round_report"]
