"""Histories of jobs under scripts/chaos, written by hand: a good one, and ways to change it."""

from __future__ import annotations

from dataclasses import replace

from chaos_parts.counting import total
from chaos_parts.history import Closed, Commit, Event, FirstFailure, History, Injection, PastRound, Report

S = 1_000_000_000
STEPS = 40
NODES = ("n1", "n2", "n3", "n4", "n5", "n6")


def at(seconds: float) -> int:
    """Return a time of the story."""
    return int((1_000_000 + seconds) * S)


def commit(seconds: float, round_: int, step: int, name: str = "last.json", lasting_s: float = 0.001) -> Commit:
    return Commit(at(seconds), at(seconds + lasting_s), name, "7.0", round_, step, total(step))


def event(
    seconds: float, what: str, round_: int, rank: int = 0, step: int = -1, name: str = "", why: str = ""
) -> Event:
    return Event(at(seconds), what, round_, "7.0", rank, f"n{1 + rank // 2}", name, step, why)


def injection(kind: str, seconds: float, *, until: float | None = None, node: str | None = None) -> Injection:
    return Injection(kind, at(seconds), None if until is None else at(until), node, None, 1)


def kill(seconds: float, rank: int = 3, node: str = "n2", round_: int = 1) -> Injection:
    return Injection("rank-killed", at(seconds), None, node, rank, round_)


def failed(
    seconds: float,
    cause: str = "sigkill",
    rank: int | None = 3,
    node: str = "n2",
    number: int = 1,
    nodes: tuple[str, ...] = (),
) -> PastRound:
    first = FirstFailure(cause, f"{cause}, as recorded", rank, node, nodes or (node,))
    return PastRound(number, "7.0", "failed", "as decided", at(seconds), NODES[:4], first)


def succeeded(number: int, seconds: float = 20) -> PastRound:
    return PastRound(number, "7.0", "succeeded", "", at(seconds), NODES[:4])


def good() -> History:
    """A job of six nodes with two spares: rank 3 was killed in round 1, after step 12; round 2 succeeded."""
    checkpoints = [commit(2 + step / 10, 1, step) for step in (5, 10)]
    checkpoints += [commit(5 + step / 10, 2, step) for step in range(15, STEPS + 1, 5)]
    checkpoints.append(commit(10, 2, STEPS, "result.json"))
    events = [
        *(event(1.5, "reading", 1), event(1.6, "restored", 1, step=0)),
        *(event(4.5, "reading", 2), event(4.6, "restored", 2, step=10)),
        *(event(10.1, "done", 2, rank, STEPS) for rank in range(8)),
    ]
    return History(
        name="job-7",
        steps=STEPS,
        nodes=NODES,
        min_nodes=4,
        max_restarts=6,
        batch_host="n1",
        begin_ns=at(0),
        end_ns=at(12),
        state="COMPLETED",
        exit_code="0:0",
        injections=(kill(3.5),),
        commits=tuple(checkpoints),
        events=tuple(events),
        closed=Closed("succeeded", "all ranks succeeded", 0, at(11)),
        report=Report("succeeded", (failed(3.6), succeeded(2)), 1, 6),
        result=(STEPS, total(STEPS)),
        output="job-7 succeeded after 1 recovered failure\n",
    )


def with_commits(*more: Commit) -> History:
    history = good()
    return replace(history, commits=(*history.commits, *more))


def with_injections(*injections: Injection) -> History:
    return replace(good(), injections=injections)


def with_rounds(*rounds: PastRound, injections: tuple[Injection, ...] = (kill(3.5),)) -> History:
    return replace(good(), report=Report("succeeded", rounds, 1, 6), injections=injections)


def ended(
    outcome: str, code: int, state: str, exit_code: str, *injections: Injection, restarts_used: int = 1
) -> History:
    """The same job, but ended otherwise, without a result."""
    history = good()
    commits = tuple(each for each in history.commits if each.name != "result.json")
    rounds = (failed(3.6), PastRound(2, "7.0", "stopped", "told to stop", at(11), NODES[:4]))
    return replace(
        history,
        state=state,
        exit_code=exit_code,
        injections=(kill(3.5), *injections),
        commits=commits,
        closed=Closed(outcome, "as it was decided", code, at(11)),
        report=Report(outcome, rounds if outcome == "stopped" else rounds[:1], restarts_used, 6),
        result=None,
    )
