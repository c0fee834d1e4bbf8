"""Exclusive link: many processes on all nodes compete for name after name; each must have exactly one winner.

The fenced state depends on this. A winner is determined as there: by the call, and after an error by the nonce inside
the file, because a lost reply makes a completed `link` look failed.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.doctor.contended import ContendedCheck, Meeting
from ftslurm.health.barrier import make_directory
from ftslurm.health.timed_filesystem import TimedFileSystem, Work
from ftslurm.health.verdict import Json, NodeFinding, node_finding
from ftslurm.records.health import FAIL, NOTE
from ftslurm.sharedfs.publish import random_nonce, temporary_name

MAX_NAMES = 1000


@dataclass(frozen=True)
class Race:
    """One process's view on one node.

    Attributes:
        attempts: links tried.
        wins: numbers of the names that it won.
        rescued: those of them whose call reported an error although it was completed.
        taken: the highest number observed to be taken; all below are taken, too.
        refused: errors after which the name did not exist: the call really failed. Text to count.
    """

    attempts: int
    wins: list[int]
    rescued: list[int]
    taken: int
    refused: dict[str, int]


def race(fs: TimedFileSystem, directory: str, seconds: float) -> Json:
    """Compete for the names 1, 2, ... in `directory` until the time is over."""
    end = time.monotonic() + seconds
    attempts, number = 0, 1
    wins: list[int] = []
    rescued: list[int] = []
    refused: dict[str, int] = {}
    while time.monotonic() < end and number <= MAX_NAMES:
        try:
            # A process that is behind catches up, so that all compete for the newest name.
            if _holder(fs, directory, number) is not None:
                number += 1
                continue
            attempts += 1
            won, failed = _try(fs, os.path.join(directory, str(number)))
        except OSError as error:
            name = f"{errno.errorcode.get(error.errno or 0, error.errno)} ({error.strerror})"
            refused[name] = refused.get(name, 0) + 1
            if refused[name] > 20 and number == 1:
                break
            continue
        if won:
            wins.append(number)
            if failed:
                rescued.append(number)
        number += 1
    return {"attempts": attempts, "wins": wins, "rescued": rescued, "taken": number - 1, "refused": refused}


def _works(meeting: Meeting, seconds: float) -> list[Work]:
    directory = meeting.session.path("links")
    nodes = len(meeting.nodes)
    # Enough for contention; more on many nodes would only measure the server.
    count = 4 if nodes == 1 else 2 if nodes <= 64 else 1

    def work(index: int) -> Work:
        def compete(fs: TimedFileSystem) -> Json:
            make_directory(fs, directory)
            meeting.wait(fs, "links", post=index == 0)
            return race(fs, directory, seconds)

        return compete

    return [work(index) for index in range(count)]


def _facts(values: Sequence[Json | None]) -> Json:
    races = [value for value in values if value is not None]
    return {"races": races, "complete": len(races) == len(values)}


CHECK = ContendedCheck("exclusive-link", _works, _facts, share=0.3)


def _holder(fs: TimedFileSystem, directory: str, number: int) -> bytes | None:
    fs.refresh(directory)
    try:
        return fs.read(os.path.join(directory, str(number)), 64)
    except FileNotFoundError:
        return None


def _try(fs: TimedFileSystem, path: str) -> tuple[bool, bool]:
    """Try to win `path`; return whether it is won, and whether the call failed."""
    nonce = random_nonce()
    temporary = temporary_name(path, nonce)
    fs.create(temporary, nonce.encode(), durable=False)
    try:
        fs.link(temporary, path)
        return True, False
    except OSError as error:
        fs.refresh(os.path.dirname(path))
        try:
            return fs.read(path, 64) == nonce.encode(), True
        except FileNotFoundError:
            raise error from None
    finally:
        try:
            fs.unlink(temporary)
        except OSError:
            pass


def judge(races: Mapping[str, list[Race]], complete: bool) -> list[NodeFinding]:
    """Find names with two winners or none.

    Args:
        races: node to its processes' histories.
        complete: every competing process has published its history; else a name without a known winner
            proves nothing.
    """
    winners: dict[int, list[str]] = {}
    for node, processes in races.items():
        for process in processes:
            for number in process.wins:
                winners.setdefault(number, []).append(node)
    found = []
    for number, nodes in sorted(winners.items()):
        if len(nodes) > 1:
            text = f"link is not exclusive: name {number} was won {len(nodes)} times"
            found.append(node_finding(FAIL, CHECK.name, tuple(nodes), text, _ELSEWHERE))
            break
    taken = max((process.taken for processes in races.values() for process in processes), default=0)
    unowned = [number for number in range(1, taken + 1) if number not in winners]
    if complete and unowned:
        text = f"{len(unowned)} of {taken} names exist without a winner (the first: {unowned[0]})"
        found.append(node_finding(FAIL, CHECK.name, (), text, _ELSEWHERE))
    return found + _errors(races, taken)


def _errors(races: Mapping[str, list[Race]], taken: int) -> list[NodeFinding]:
    found = []
    for node, processes in races.items():
        for text in sorted({text for process in processes for text in process.refused}):
            count = sum(process.refused.get(text, 0) for process in processes)
            none = not any(process.taken for process in processes)
            advice = "hard links do not work here; " + _ELSEWHERE if none else "a run repeats such calls; find out why"
            failure = f"an exclusive link fails with {text}" + ("" if none else f" {_times(count)}")
            found.append(node_finding(FAIL if none else NOTE, CHECK.name, (node,), failure, advice))
    rescued = sum(len(process.rescued) for processes in races.values() for process in processes)
    if rescued:
        text = f"{rescued} of {taken} names were won by a call that failed: replies get lost"
        found.append(node_finding(NOTE, CHECK.name, (), text, "ftslurm handles that; programs that trust errno do not"))
    return found


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


_ELSEWHERE = "do not put a run there: its state could be lost; choose another filesystem, and inform its operators"
