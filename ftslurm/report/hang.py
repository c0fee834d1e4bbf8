"""A round that ended because a rank hung: the suspect rank, and the locations of all ranks (pure).

Imported only for such a round: the classification of stacks is large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ftslurm.dataclasses import replace
from ftslurm.failures.causes import Evidence, classify
from ftslurm.failures.own_code import is_library
from ftslurm.monitor import stack_classifier
from ftslurm.monitor.faulthandler_text import Frame, Reader
from ftslurm.monitor.stack_classifier import WAITS
from ftslurm.monitor.stacks_file import Stacks
from ftslurm.monitor.triage import (
    COLLECTIVES,
    NO_ANSWER,
    Branch,
    Group,
    Triage,
    count,
    describe,
    has_finished,
    is_ending,
    tree,
)
from ftslurm.pattern import pattern
from ftslurm.report.facts import Failure, RoundFiles, Worker
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.first_failure import VARIABLE, FirstFailure, location_of, log_end
from ftslurm.report.hang_advice import AFTER_FAILURE, LOCKED, ONE_RECEIVES, RECEIVES, SILENT, advice_on
from ftslurm.report.printed_last import output_end
from ftslurm.report.reported_before import dead_thread, traceback_at_end
from ftslurm.report.root_cause import HANG
from ftslurm.report.wording import those_ranks
from ftslurm.text import clip, plural, ranges

if TYPE_CHECKING:
    from ftslurm.collectives.judgement import Judgement

PARTIES = "parties"
PARTIES_NAMED = THREADS_NAMED = 3
GROUPS_KEPT, BRANCHES_FROM = 64, 6
NATIVE_LINES = 60
DEAD_ROOM = 90
"""Characters about a thread that died that a headline has room for."""
_DEAD = pattern(r"(?P<thread>\w.{0,200}?) of (?:some )?rank.{0,20}? died(?: at \S{1,200})?: (?P<type>[\w.]+):")
Dict = dict[str, Any]


def is_first(hang: Failure, found: Sequence[FailedWorker]) -> bool:
    """Whether the hang was the round's first failure: no primary failure precedes the expiry of its time-out.

    A rank that raised an exception and then did not end makes the others hang.
    """
    time_ns = hang.time_ns
    return not any(
        not s.cause.cascade and s.time_ns is not None and time_ns is not None and s.time_ns < time_ns for s in found
    )


def is_end_of_failure(hang: Failure, found: Sequence[FailedWorker], verdict: Triage) -> bool:
    """Whether what hung was the end of ranks that had raised: their exceptions tell more."""
    raised = [group for group in verdict.groups if is_ending(group) and group.activity and group.activity.raised]
    if not any(hang.rank in group.ranks for group in raised) or any(each not in raised for each in verdict.suspects):
        return False
    return any(failed.rank == hang.rank and failed.kind == "exception" for failed in found)


def without_hung(hang: Failure, found: Sequence[FailedWorker]) -> list[FailedWorker]:
    """Return the failed workers without the hung one, which ftslurm ended."""
    return [s for s in found if s.rank != hang.rank or s.kind == "exception"]


def hang_failure(
    files: RoundFiles,
    hang: Failure,
    verdict: Triage,
    step: int | None,
    cwd: str | None,
    found: Judgement | None = None,
) -> FirstFailure:
    """Describe a hang as a first failure.

    Args:
        files: its round.
        hang: the failure that its agent published.
        verdict: of the ranks' stacks.
        step: the last step of the round.
        cwd: the working directory of its attempt.
        found: what the records of the ranks' collectives show, if they decide; then the verdict has their suspects.
    """
    suspect = verdict.suspects[0] if verdict.suspects else None
    rank = suspect.ranks[0] if suspect else hang.rank
    rank = found.culprits[0] if found is not None and found.culprits else rank
    node, worker = _worker_of(files, rank)
    suspect_ranks = [rank for group in verdict.suspects for rank in group.ranks]
    shown = suspect or next((group for group in verdict.groups if hang.rank in group.ranks), None)
    frame = shown.activity.place if shown and shown.activity else None
    cause = classify(Evidence(kind=HANG))
    name = node or (suspect.nodes[0] if suspect else hang.node)
    last_step = worker.progress.last_step if worker and worker.progress else None
    tails = next((files.tails[each] for each in (rank, hang.rank) if each in files.tails), ())
    dead = dead_threads(files, verdict)
    # The headline has no room for a long message.
    parties = has_parties(verdict) and sum(group.activity is not None for group in verdict.groups) > 1
    short = _DEAD.match(dead) if len(dead) > DEAD_ROOM or parties else None
    then = hang.time_ns
    if len(suspect_ranks) == 1:
        ends = traceback_at_end(files, rank, then) or output_end(files, rank, then, of_trouble=True)
        remarks = (*ends, *_other_threads(files, rank))
    else:
        firsts = _parties(verdict)
        remarks = tuple(line for each in firsts for line in traceback_at_end(files, each, then))
        if not remarks:
            lines = (output_end(files, each, then, of_trouble=True) for each in firsts)
            remarks = tuple(line for each in lines for line in each)
    plain = FirstFailure(
        round=files.number,
        kind=HANG,
        cause=cause,
        what=_what(verdict, hang, dead if short is None else f"{short['thread']} died: {short['type']}"),
        signature=_signature(verdict, hang),
        node=name,
        nodes=tuple(dict.fromkeys(n for group in _named(verdict) for n in group.nodes))[:8] or (name,),
        host=next((n.host for n in files.nodes if n.node == name), None),
        rank=rank,
        local_rank=worker.local_rank if worker else None,
        ranks=ranges(suspect_ranks or (_all_ranks(verdict) if has_parties(verdict) else [hang.rank])),
        time_ns=hang.time_ns,
        step=next((s for s in (_step_at(files, rank), last_step, hang.step, step) if s is not None), None),
        advice=_advice(verdict) if files.stacks else cause.advice,
        where=location_of(frame.file, frame.line, frame.function, None, cwd) if frame else None,
        log=log_end(tails, None),
        remarks=remarks if short is None or found is not None else (*remarks, dead),
        evidence=("state", *(("stacks",) if files.stacks else ())),
        hang={
            "rank": hang.rank,
            "node": hang.node,
            "message": hang.message,
            "since_ns": hang.since_ns,
            "verdict": PARTIES if has_parties(verdict) else verdict.verdict,
            "where": None,
        },
    )
    if found is not None:
        return _by_collectives(plain, files, verdict, found)
    if _is_active(files, hang):
        what = f"silent, though it called collectives, {plain.what.removeprefix('hung ')}"
        return replace(plain, what=what, advice=SILENT)
    return plain


def _is_active(files: RoundFiles, hang: Failure) -> bool:
    """Whether all ranks called collectives in most of the time in which one showed no sign of life."""
    silent_s = (hang.time_ns - hang.since_ns) / 1e9 if hang.since_ns is not None else 0.0
    ages = [calls.idle_s for calls in files.collectives.values()]
    return bool(ages) and all(age is not None and age < silent_s / 4 for age in ages)


def _by_collectives(plain: FirstFailure, files: RoundFiles, verdict: Triage, found: Judgement) -> FirstFailure:
    """Return a hang as the records of the ranks' collectives show it."""
    from ftslurm.collectives import phrases
    from ftslurm.collectives.finding import LEFT
    from ftslurm.report.collectives import NO_MEMBER, advice_of, involved, no_members, nodes_of, place_of, statement

    nodes, ranks = nodes_of(files), list(found.culprits) or involved(found)
    where = tuple(dict.fromkeys(nodes[rank] for rank in ranks if rank in nodes))[:8]
    what = statement(found, files) if found.culprits else phrases.undecided(found)
    locked = plain.advice == LOCKED
    odd = [group for group in verdict.suspects if group.activity is not None and group.activity.activity in RECEIVES]
    receives = len(found.culprits) == 1 == len(odd)
    raised = not found.culprits and len(plain.remarks) == 1
    advice = ONE_RECEIVES if receives else AFTER_FAILURE if raised else advice_of(found, files)
    outside = no_members(files)
    advice = NO_MEMBER if outside else advice
    dead = dead_threads(files, verdict)
    left = found.culprits[:1] if found.kind == LEFT else ()
    ended = (traceback_at_end(files, rank, None) or output_end(files, rank) for rank in left)
    ends = [line for lines in ended for line in lines if line not in plain.remarks]
    return replace(
        plain,
        what=what,
        signature=f"{HANG}|{COLLECTIVES}|{VARIABLE.sub('#', what)[:200]}",
        node=nodes.get(plain.rank if plain.rank is not None else -1, plain.node),
        nodes=where or plain.nodes,
        ranks=ranges(ranks),
        advice=plain.advice if locked else advice,
        evidence=(*plain.evidence, COLLECTIVES),
        remarks=(*plain.remarks, *ends, *([dead] if dead else []), *outside),
        hang={
            **(plain.hang or {}),
            "verdict": COLLECTIVES if found.culprits else f"{COLLECTIVES}-{PARTIES}",
            "where": None if found.kind == LEFT else place_of(verdict) or _places_of(verdict, ranks),
        },
    )


def _places_of(verdict: Triage, ranks: Sequence[int]) -> str | None:
    """Return where those ranks are that the records are about, by their stacks: ``at a.py:3 (rank 0)``.

    None: not known of all of them, or at too many places.
    """
    found = [(group, sorted(set(ranks) & set(group.ranks))) for group in verdict.groups]
    parts = [(group, own) for group, own in found if own]
    places = [group.activity.place if group.activity is not None else None for group, _ in parts]
    if not 0 < len(parts) <= PARTIES_NAMED or sum(len(own) for _, own in parts) < len(set(ranks)):
        return None
    shown = [
        f"{place.file.rpartition('/')[2]}:{place.line} ({those_ranks(ranges(own))})"
        for place, (_, own) in zip(places, parts, strict=True)
        if place is not None
    ]
    return f"at {', '.join(shown)}" if len(shown) == len(parts) else None


def _step_at(files: RoundFiles, rank: int) -> int | None:
    """Return a rank's step when the stacks were taken: while others are stopped, it may get further."""
    found = files.stacks.get(rank)
    return found.step if found is not None else None


def has_parties(verdict: Triage) -> bool:
    """Whether none of several ranks is the odd one: all at one place, or parties that may wait for each other."""
    return not verdict.suspects and len(_all_ranks(verdict)) > 1


def _parties(verdict: Triage) -> list[int]:
    """Return the first rank of each of the few parties of which none is suspect."""
    parts = [group for group in verdict.groups if group.activity is not None]
    return [group.ranks[0] for group in parts] if not verdict.suspects and len(parts) <= PARTIES_NAMED else []


def _other_threads(files: RoundFiles, rank: int) -> tuple[str, ...]:
    """Return where the user's code is in other threads of a rank whose main thread waits for none of torch's calls.

    One of them may hold the lock that it wants.
    """
    known = files.stacks.get(rank)
    threads = Reader().threads(known.stacks.text) if known is not None else ()
    main = next((each for each in threads if each.main and each.frames), None)
    if main is None or ((activity := stack_classifier.classify(main.frames)).kind == WAITS and not activity.of_thread):
        return ()
    own = (
        next((f for f in reversed(each.frames) if not is_library(f.file)), None) for each in threads if not each.main
    )
    places = [f"{frame.file.rpartition('/')[2]}:{frame.line} in {frame.function}" for frame in own if frame is not None]
    which = "another thread" if len(places) == 1 else "other threads"
    return (f"rank {rank} has {which} at {', '.join(places[:THREADS_NAMED])}",) if places else ()


def dead_threads(files: RoundFiles, verdict: Triage) -> str:
    """Return which thread of a suspect an exception had ended, by its stderr; empty: none."""
    for rank in dict.fromkeys([*(rank for group in verdict.suspects for rank in group.ranks), *files.tails]):
        for tail in files.tails.get(rank, ()):
            if text := dead_thread(rank, tail):
                return text
    return ""


def _named(verdict: Triage) -> Sequence[Group]:
    return verdict.groups if has_parties(verdict) else verdict.suspects


def _all_ranks(verdict: Triage) -> list[int]:
    return [rank for group in verdict.groups if group.activity is not None for rank in group.ranks]


def whereabouts(files: RoundFiles, verdict: Triage, world: int | None) -> Dict | None:
    """Return the ranks' locations; see `ftslurm.report.analysis` for the keys. None if no stacks were collected."""
    if not files.stacks:
        return None
    ordered = [*verdict.suspects, *(group for group in verdict.groups if group not in verdict.suspects)]
    known = {rank for group in verdict.groups for rank in group.ranks}
    missing = sorted(set(range(world or 0)) - known)
    return {
        "verdict": verdict.verdict,
        "text": verdict.summary,
        "groups": [_group(files, group, suspect=group in verdict.suspects) for group in ordered[:GROUPS_KEPT]],
        "more_groups": max(0, len(ordered) - GROUPS_KEPT),
        "tree": [_branch(branch) for branch in tree(ordered[:BRANCHES_FROM])],
        "missing": {"ranks": ranges(missing), "count": len(missing)} if missing else None,
    }


def _group(files: RoundFiles, group: Group, *, suspect: bool) -> Dict:
    known = files.stacks.get(group.ranks[0])
    first = known.stacks if known is not None else Stacks(0)
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


def _what(verdict: Triage, hang: Failure, dead: str = "") -> str:
    """The description after "rank 412 on n51: "; ``dead``: what its own output adds."""
    return "; ".join(part for part in (_place_and_others(verdict, hang, dead), finished_ranks(verdict)) if part)


def finished_ranks(verdict: Triage) -> str:
    """Return which ranks had finished, if they are no suspects: ``rank 1 had finished with exit code 0 at step 5``."""
    done = [group for group in verdict.groups if has_finished(group) and group not in verdict.suspects]
    named = [f"{those(group)} {describe(group)}" for group in done[:PARTIES_NAMED]]
    return ", ".join(named) + (f", and {len(done) - PARTIES_NAMED} more" if len(done) > PARTIES_NAMED else "")


def _place_and_others(verdict: Triage, hang: Failure, dead: str) -> str:
    if not verdict.suspects:
        parts = [group for group in verdict.groups if group.activity is not None]
        if len(parts) == 1:
            return f"hung {describe(parts[0])}{f': {dead}' if dead else ''}"
        if not parts:
            return f"hung: {dead or hang.message}"
        named = [f"{those(group)} {describe(group)}" for group in parts[:PARTIES_NAMED]]
        more = len(parts) - PARTIES_NAMED
        others = f", and {plural(more, 'more place')}" if more > 0 else ""
        return f"hung: {', '.join(named)}{others}"
    suspect = verdict.suspects[0]
    text = f"{describe(suspect)}{_function(suspect)}"
    if has_finished(suspect) or (is_ending(suspect) and verdict.verdict == NO_ANSWER):
        text = f"{text}, and is waited for"
    else:
        text = f"hung {text}" if suspect.problem is None else f"hung: {text}"
    if dead:
        return f"{text}: {dead}"
    rest = [group for group in verdict.groups if group not in verdict.suspects and not has_finished(group)]
    if not rest:
        return text
    verb = (
        ("waits" if len(rest[0].ranks) == 1 else "wait") if rest[0].activity and rest[0].activity.kind == WAITS else ""
    )
    be = verb or ("is" if len(rest[0].ranks) == 1 else "are")
    return f"{text}, while {count(rest[0])} {be} {describe(rest[0])}"


def _function(group: Group) -> str:
    """Return the user's function around a call that is shown by its own name (``time.sleep``), for it may be any."""
    activity = group.activity
    if activity is None or activity.place is None or group.parts_at is not None or "." not in activity.activity:
        return ""
    function = activity.place.function
    return "" if function in ("", "<module>") else f" in {function}"


def those(group: Group) -> str:
    """``rank 3``, ``ranks 0-1``."""
    return f"rank{'s' if len(group.ranks) > 1 else ''} {clip(ranges(group.ranks), 24)}"


def _advice(verdict: Triage) -> str:
    return advice_on(verdict, parties=has_parties(verdict), finished=bool(finished_ranks(verdict)))


def _signature(verdict: Triage, hang: Failure) -> str:
    suspect = verdict.suspects[0] if verdict.suspects else None
    text = describe(suspect) if suspect else hang.message
    return f"{HANG}|{verdict.verdict}|{VARIABLE.sub('#', text)[:200]}"


def _worker_of(files: RoundFiles, rank: int) -> tuple[str | None, Worker | None]:
    return next(((n.node, w) for n in files.nodes for w in n.workers if w.rank == rank), (None, None))
