"""One process of a crowd: holds members, does what the parent's lines say, answers each with a line.

python -m benchmarks.players ftslurm|c10d
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from typing import Any, Protocol


class Worlds:
    """The worlds that the members of this process have had, and a way to wait for the next ones."""

    def __init__(self, members: list[int]) -> None:
        self._condition = threading.Condition()
        self._had: dict[int, list[tuple[int, int, int]]] = {member: [] for member in members}

    def had(self, member: int, number: int, rank: int, size: int) -> None:
        """Note that a member has its `number`-th world now."""
        now_ns = time.monotonic_ns()
        with self._condition:
            if len(self._had[member]) < number:
                self._had[member].append((now_ns, rank, size))
                self._condition.notify_all()

    def wait(self, number: int, limit_s: float) -> dict[str, Any]:
        """Wait for everybody's `number`-th world; return when the last one had it, and what they are in it."""
        with self._condition:
            self._condition.wait_for(lambda: all(len(had) >= number for had in self._had.values()), limit_s)
            there = [had[number - 1] for had in self._had.values() if len(had) >= number]
        return {
            "last_ns": max((time_ns for time_ns, _, _ in there), default=0),
            "ranks": [rank for _, rank, _ in there],
            "sizes": sorted({size for _, _, size in there}),
        }


class Members(Protocol):
    """What one kind of rendezvous must do to take part."""

    worlds: Worlds

    def facts(self) -> dict[str, Any]:
        """Return what the members of other processes need to know of these."""

    def go(self) -> None:
        """Let all members join."""

    def again(self, member: int) -> None:
        """Let this member ask for the next world."""

    def costs(self) -> dict[int, tuple[tuple[int, int, int, int], bool]]:
        """Return each member's calls, sets, bytes read, bytes written; and whether it coordinates."""

    def dismiss(self) -> None:
        """End."""


def main(kind: str) -> None:
    """Obey until the parent's pipe closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    module = importlib.import_module(f"benchmarks.players_{kind}")
    members: Members | None = None

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    answer({})
    for line in sys.stdin:
        message = json.loads(line)
        what = message.pop("do")
        if what == "assemble":
            members = module.assemble(**message)
            answer(members.facts())
            continue
        assert members is not None
        if what == "go":
            members.go()
            answer(members.worlds.wait(1, message["limit_s"]))
        elif what == "await":
            answer(members.worlds.wait(message["worlds"], message["limit_s"]))
        elif what == "again":
            asked_ns = time.monotonic_ns()
            members.again(message["member"])
            answer({"asked_ns": asked_ns})
        elif what == "count":
            costs = members.costs()
            answer({"time_ns": time.monotonic_ns(), "members": costs})
        elif what == "dismiss":
            members.dismiss()
            members = None
            answer({})


if __name__ == "__main__":
    main(sys.argv[1])
