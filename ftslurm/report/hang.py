"""A round that ended because a rank hung: the suspect rank, and the locations of all ranks (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftslurm.failures.causes import Evidence, classify
from ftslurm.monitor.faulthandler_text import Frame
from ftslurm.monitor.stack_classifier import BUILD_LOCK, WAITS
from ftslurm.monitor.triage import (
    ELSEWHERE,
    MISMATCH,
    NO_ANSWER,
    ODD,
    OVERDUE,
    Branch,
    Group,
    Triage,
    count,
    describe,
    tree,
    triage,
)
from ftslurm.report.evidence import FAILURE_KEYS, VARIABLE, location_of, log_end
from ftslurm.report.facts import Failure, LogTail, RoundFiles, Worker
from ftslurm.report.hang_records import HANG
from ftslurm.report.wording import ranges

GROUPS_KEPT, BRANCHES_FROM = 64, 6
NATIVE_LINES = 60
_ADVICE = {
    ODD: "The others wait for it: its stack below shows its own location.",
    ELSEWHERE: "It is not where most ranks are; Python's stacks do not show what those wait for.",
    OVERDUE: "The time-out that expired was its own, and its Python stack shows no wait for another rank.",
    MISMATCH: "Ranks took different paths through the script: check for a condition on the rank or on its data.",
    "stopped": "It was stopped from outside: by kill -STOP, a debugger or a suspended container.",
    "uninterruptible": "It waits in its node's kernel, mostly for a filesystem or a device: check dmesg there.",
    "ended": "It had ended while the others still waited for it: ranks must take part in equally many collectives.",
}
_LOCKED = (
    "A rank waits for the file `lock` in the build directory of a C++ extension. If no process builds it any more, "
    "remove it: find ${TORCH_EXTENSIONS_DIR:-~/.cache/torch_extensions} -name lock -delete"
)
_NO_SUSPECT = "All wait, and Python's stacks do not show for what: check the network and the devices of all nodes."

Dict = dict[str, Any]


def culprits(files: RoundFiles, hang: Failure) -> list[int]:
    """Return the ranks whose output may explain a hang: the suspects', or the one whose time-out expired."""
    suspects = triage(files.stacks.values()).suspects
    return [group.ranks[0] for group in suspects[:1]] or [hang.rank]


def hang_failure(
    files: RoundFiles, hang: Failure, verdict: Triage, tails: Sequence[LogTail], step: int | None, cwd: str | None
) -> Dict:
    """Describe a hang as a first failure; the same keys as for a worker, and "hang"."""
    suspect = verdict.suspects[0] if verdict.suspects else None
    rank = suspect.ranks[0] if suspect else hang.rank
    node, worker = _worker_of(files, rank)
    suspect_ranks = [rank for group in verdict.suspects for rank in group.ranks]
    shown = suspect or next((group for group in verdict.groups if hang.rank in group.ranks), None)
    frame = shown.activity.place if shown and shown.activity else None
    cause = classify(Evidence(kind=HANG))
    name = node or (suspect.nodes[0] if suspect else hang.node)
    last_step = worker.progress.last_step if worker and worker.progress else None
    failure: Dict = dict.fromkeys(FAILURE_KEYS)
    return failure | {
        "round": files.number,
        "node": name,
        "nodes": list(dict.fromkeys(n for group in verdict.suspects for n in group.nodes))[:8] or [name],
        "host": next((n.host for n in files.nodes if n.node == name), None),
        "rank": rank,
        "local_rank": worker.local_rank if worker else None,
        "time_ns": hang.time_ns,
        "kind": HANG,
        "core_dumped": False,
        "step": next((s for s in (last_step, hang.step, step) if s is not None), None),
        "cause": cause.name,
        "title": cause.title,
        "role": cause.role,
        "advice": _advice(verdict) if files.stacks else cause.advice,
        "what": _what(verdict, hang),
        "where": location_of(frame.file, frame.line, frame.function, None, cwd) if frame else None,
        "log": log_end(tails, None),
        "signature": _signature(verdict, hang),
        "same_as_rounds": [],
        "ranks": ranges(suspect_ranks) if suspect_ranks else str(hang.rank),
        "argv": [],
        "evidence": ["state", *(["stacks"] if files.stacks else [])],
        "evidence_lines": [],
        "restart": cause.restart,
        "hang": {
            "rank": hang.rank,
            "node": hang.node,
            "message": hang.message,
            "since_ns": hang.since_ns,
            "verdict": verdict.verdict,
        },
    }


def whereabouts(files: RoundFiles, verdict: Triage, world: int | None) -> Dict | None:
    """Return the ranks' locations; see `ftslurm.report.analysis` for the keys. None if no stacks were collected."""
    if not files.stacks:
        return None
    ordered = [*verdict.suspects, *(group for group in verdict.groups if group not in verdict.suspects)]
    missing = sorted(set(range(world or 0)) - set(files.stacks))
    return {
        "verdict": verdict.verdict,
        "text": verdict.words,
        "groups": [_group(files, group, suspect=group in verdict.suspects) for group in ordered[:GROUPS_KEPT]],
        "more_groups": max(0, len(ordered) - GROUPS_KEPT),
        "tree": [_branch(branch) for branch in tree(ordered[:BRANCHES_FROM])],
        "missing": {"ranks": ranges(missing), "count": len(missing)} if missing else None,
    }


def _group(files: RoundFiles, group: Group, *, suspect: bool) -> Dict:
    first = files.stacks[group.ranks[0]].stacks
    return {
        "ranks": ranges(group.ranks),
        "count": len(group.ranks),
        "nodes": list(group.nodes[:8]),
        "node_count": len(group.nodes),
        "suspect": suspect,
        "waits": group.activity is not None and group.activity.kind == WAITS,
        "text": describe(group),
        "problem": group.problem,
        "facts": dict(first.facts) if group.problem else {},
        "native": first.native.splitlines()[:NATIVE_LINES] if suspect else [],
    }


def _branch(branch: Branch) -> Dict:
    return {
        "ranks": ranges(branch.ranks),
        "count": len(branch.ranks),
        "frames": [_frame(frame) for frame in branch.frames],
        "children": [_branch(child) for child in branch.children],
    }


def _frame(frame: Frame) -> str:
    return f'File "{frame.file}", line {frame.line}, in {frame.function}'


def _what(verdict: Triage, hang: Failure) -> str:
    """The description after "rank 412 on n51: "."""
    if not verdict.suspects:
        return f"hung: {hang.message}"
    suspect = verdict.suspects[0]
    text = describe(suspect)
    text = f"hung {text}" if suspect.problem is None else f"hung: {text}"
    rest = [group for group in verdict.groups if group not in verdict.suspects]
    if not rest:
        return text
    verb = (
        ("waits" if len(rest[0].ranks) == 1 else "wait") if rest[0].activity and rest[0].activity.kind == WAITS else ""
    )
    be = verb or ("is" if len(rest[0].ranks) == 1 else "are")
    return f"{text}, while {count(rest[0])} {be} {describe(rest[0])}"


def _advice(verdict: Triage) -> str:
    if any(group.activity is not None and group.activity.activity == BUILD_LOCK for group in verdict.groups):
        return _LOCKED
    if verdict.verdict != NO_ANSWER:
        return (
            _ADVICE.get(verdict.verdict, _NO_SUSPECT)
            if verdict.suspects or verdict.verdict == MISMATCH
            else _NO_SUSPECT
        )
    problem = verdict.suspects[0].problem or ""
    return next(text for key, text in _ADVICE.items() if key in problem)


def _signature(verdict: Triage, hang: Failure) -> str:
    suspect = verdict.suspects[0] if verdict.suspects else None
    text = describe(suspect) if suspect else hang.message
    return f"{HANG}|{verdict.verdict}|{VARIABLE.sub('#', text)[:200]}"


def _worker_of(files: RoundFiles, rank: int) -> tuple[str | None, Worker | None]:
    return next(((n.node, w) for n in files.nodes for w in n.workers if w.rank == rank), (None, None))


__all__ = ["culprits", "hang_failure", "whereabouts"]
