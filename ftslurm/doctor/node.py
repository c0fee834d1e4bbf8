"""The probes on one node: one after the other, synchronised with the other nodes, each in child processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ftslurm.dataclasses import dataclass, field
from ftslurm.doctor.barrier import Session, arrive, collect, make, pass_barrier, publish_result, unlisted, versions
from ftslurm.doctor.findings import Json
from ftslurm.doctor.probes import atomic_rename, clock, exclusive_link, lock, mount, rate, resolve, visibility
from ftslurm.doctor.timed_filesystem import Outcome, TimedFileSystem, Work, run_all
from ftslurm.sharedfs.ownership import check_own_directory
from ftslurm.sharedfs.publish import publish

CALL_LIMIT_S = 10.0
"""A filesystem call that takes longer counts as hanging."""
SLACK_S = 5.0
SHARES = {"names": 0.3, "whole": 0.15, "seen": 0.35, "rate": 0.2}
"""Share of the time for which each probe measures; the others take as long as they need."""
HANGS = 2
"""Number of hung probes after which the others are skipped."""


@dataclass(frozen=True)
class Task:
    """The plan of one node.

    Attributes:
        directory: the directory under test, absolute.
        seconds: for all measurements.
        wait_s: time-out for nodes that have not joined.
        real_names: the nodes' names are those of hosts, so that they should resolve.
    """

    directory: str
    session: Session
    seconds: float
    wait_s: float
    version: str
    real_names: bool = True


@dataclass
class Examination:
    """The results on this node so far.

    Attributes:
        nodes: those that take part; empty: joining failed.
        result: probe to facts, as published.
    """

    task: Task
    nodes: list[str] = field(default_factory=list)
    result: Json = field(default_factory=lambda: {"problems": [], "slowest": [0.0, ""]})

    def run(self, probe: str, works: Sequence[Work], limit_s: float) -> list[Outcome]:
        """Run a probe's works; record errors."""
        outcomes = run_all(works, limit_s, CALL_LIMIT_S)
        for outcome in outcomes:
            if outcome.problem is not None:
                problem = {"probe": probe, "text": outcome.problem, "hung": outcome.hung is not None}
                if problem not in self.result["problems"]:
                    self.result["problems"].append(problem)
            self.result["slowest"] = list(max(tuple(self.result["slowest"]), outcome.slowest))
        return outcomes

    @property
    def hangs(self) -> int:
        """Number of hung probes."""
        return len({problem["probe"] for problem in self.result["problems"] if problem["hung"]})

    @property
    def alone(self) -> bool:
        """Whether the first node missed a barrier: the rest would only wait for it again."""
        return any(problem["text"].startswith("LeftAlone") for problem in self.result["problems"])


def examine(task: Task) -> Examination:
    """Run all probes on this node and publish the result for the first node."""
    session = task.session
    exam = Examination(task)
    (seen_place,) = exam.run("place", [lambda fs: mount.read_mount(fs, task.directory, session.root)], 3 * CALL_LIMIT_S)
    exam.result["place"] = seen_place.value
    if seen_place.value is None or seen_place.value.get("problem") or seen_place.value["kind"] != "directory":
        return exam
    limit_s = task.wait_s + CALL_LIMIT_S + SLACK_S
    (met,) = exam.run("meet", [lambda fs: arrive(fs, session, task.version, task.wait_s)], limit_s)
    if met.value is None:
        return exam
    exam.nodes = met.value
    for probe in (_alone, _names, _whole, _lock, _seen, _rate):
        if exam.hangs < HANGS and not exam.alone:
            probe(exam)
    exam.run("results", [lambda fs: publish_result(fs, session, exam.result)], CALL_LIMIT_S + SLACK_S)
    return exam


def gather(exam: Examination) -> tuple[dict[str, Json], dict[str, str]]:
    """Return all available results and versions; this node's own is always included."""
    session, nodes = exam.task.session, exam.nodes
    own = {session.node: exam.result}
    if not nodes:
        return own, {}
    wait_s = 2 * CALL_LIMIT_S + SLACK_S

    def work(fs: TimedFileSystem) -> Json:
        results = collect(fs, session, nodes, wait_s)
        return {"results": results, "versions": versions(fs, session, nodes), "unlisted": unlisted(fs, session)}

    (got,) = exam.run("results", [work], wait_s + CALL_LIMIT_S)
    if got.value is None:
        return own, {}
    exam.result["unlisted"] = got.value["unlisted"]
    results: dict[str, Json] = {**got.value["results"], **own}
    return {node: results[node] for node in nodes if node in results}, got.value["versions"]


def clean_up(session: Session, others: bool = False) -> str | None:
    """Remove the session's directory; return the error if it stays.

    Args:
        session: the session.
        others: other nodes may still be using it: remove this node's files, and then empty directories.
    """

    def work(fs: TimedFileSystem) -> bool:
        import os
        import shutil
        import time
        from pathlib import Path

        # Not if another user created it: links in it may point anywhere.
        fs.during(f"open {session.root}", lambda: check_own_directory(session.root))
        if others:
            fs.unlink(session.path("hello", f"{session.node}.json"))
            for name in (session.path("hello"), session.root):
                Path(name).rmdir()
            return True
        # NFS keeps an open file under a temporary name for a moment.
        for _ in range(5):
            fs.during(f"remove {session.root}", lambda: shutil.rmtree(session.root, ignore_errors=True))
            if not os.path.lexists(session.root):
                return True
            time.sleep(0.5)
        return False

    (done,) = run_all([work], 6 * CALL_LIMIT_S, 6 * CALL_LIMIT_S)
    if done.value or others:
        return None
    return f"{session.root} could not be removed ({done.problem or 'it is not empty'})"


def _limit(seconds: float, gates: int = 1) -> float:
    return gates * (CALL_LIMIT_S + SLACK_S + 1) + seconds + CALL_LIMIT_S + SLACK_S


def _pass(exam: Examination, fs: TimedFileSystem, step: str, post: bool = True) -> None:
    pass_barrier(fs, exam.task.session, exam.nodes, step, CALL_LIMIT_S + SLACK_S, post)


def _gated(exam: Examination, step: str, post: bool, action: Callable[[TimedFileSystem], Any]) -> Work:
    def work(fs: TimedFileSystem) -> Any:
        _pass(exam, fs, step, post)
        return action(fs)

    return work


def _neighbours(exam: Examination) -> tuple[str, str, str]:
    """Return the node before this one in the ring, this one, and the one after it."""
    node, nodes = exam.task.session.node, exam.nodes
    place = nodes.index(node)
    return nodes[place - 1], node, nodes[(place + 1) % len(nodes)]


def _alone(exam: Examination) -> None:
    session = exam.task.session
    nodes = exam.nodes if exam.task.real_names else []
    works: list[Work] = [
        lambda fs: resolve.look_up(fs, session.node if nodes else None, nodes),
        lambda fs: clock.stamp(fs, session.root),
    ]
    resolved, stamps = exam.run("alone", works, resolve.LIMIT_S + CALL_LIMIT_S)
    exam.result.update(resolve=resolved.value, clock=stamps.value)


def _names(exam: Examination) -> None:
    directory, seconds = exam.task.session.path("names"), exam.task.seconds * SHARES["names"]
    # Enough for contention; more on many nodes would only measure the server.
    count = 4 if len(exam.nodes) == 1 else 2 if len(exam.nodes) <= 64 else 1

    def work(index: int) -> Work:
        def race(fs: TimedFileSystem) -> Json:
            make(fs, directory)
            _pass(exam, fs, "names", post=index == 0)
            return exclusive_link.race(fs, directory, seconds)

        return race

    outcomes = exam.run("names", [work(index) for index in range(count)], _limit(seconds))
    races = [outcome.value for outcome in outcomes if outcome.value is not None]
    exam.result["names"] = {"races": races, "complete": len(races) == count}


def _whole(exam: Examination) -> None:
    directory, seconds = exam.task.session.path("whole"), exam.task.seconds * SHARES["whole"]
    before, own, _ = _neighbours(exam)

    def write(fs: TimedFileSystem) -> Json:
        make(fs, directory)
        publish(fs, f"{directory}/{own}", atomic_rename.content(0))
        _pass(exam, fs, "whole")
        # A little longer, so that the reader has data until its end.
        return atomic_rename.write(fs, f"{directory}/{own}", seconds)

    read = _gated(exam, "whole", False, lambda fs: atomic_rename.read(fs, f"{directory}/{before}", before, seconds))
    _, reads = exam.run("whole", [write, read], _limit(seconds))
    exam.result["whole"] = reads.value


def _lock(exam: Examination) -> None:
    directory = exam.task.session.path("lock")
    before, own, _ = _neighbours(exam)

    def hold(fs: TimedFileSystem) -> Json:
        make(fs, directory)
        _pass(exam, fs, "lock")
        return lock.hold(fs, directory, own)

    take = _gated(exam, "lock", False, lambda fs: lock.take(fs, directory, before))
    _, taken = exam.run("lock", [hold, take], _limit(lock.LIMIT_S))
    exam.result["lock"] = taken.value


def _seen(exam: Examination) -> None:
    root, seconds = exam.task.session.path("seen"), exam.task.seconds * SHARES["seen"]
    before, own, after = _neighbours(exam)

    def ask(fs: TimedFileSystem) -> Json:
        visibility.prepare(fs, f"{root}/{own}")
        _pass(exam, fs, "seen")
        _pass(exam, fs, "seen-looked", post=False)
        return visibility.ask(fs, f"{root}/{own}", after, seconds)

    def stat(fs: TimedFileSystem) -> Json:
        _pass(exam, fs, "seen", post=False)
        size = visibility.first_stat(fs, f"{root}/{before}")
        _pass(exam, fs, "seen-looked")
        return visibility.stat_until(fs, f"{root}/{before}", before, size, seconds)

    answer = _gated(exam, "seen-looked", False, lambda fs: visibility.answer(fs, f"{root}/{before}", seconds))
    asked, looked, _ = exam.run("seen", [ask, stat, answer], _limit(seconds + visibility.LEAST_S, gates=2))
    exam.result.update(asked=asked.value, looked=looked.value)


def _rate(exam: Examination) -> None:
    directory, seconds = exam.task.session.path("rate"), exam.task.seconds * SHARES["rate"]
    node = exam.task.session.node

    def work(fs: TimedFileSystem) -> Json:
        make(fs, directory)
        _pass(exam, fs, "rate")
        return rate.measure(fs, directory, node, seconds)

    (measured,) = exam.run("rate", [work], _limit(seconds))
    exam.result["rate"] = measured.value
