"""Many members of a rendezvous in a few processes, which get their orders line by line; the parent's side."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.measure import RunFailedError

ANSWER_LIMIT_S = 60.0


@dataclass(frozen=True)
class Costs:
    """What one member has asked of the medium so far.

    Attributes:
        calls: operations of the shared filesystem, or of the store.
        sets: of these, the ones that write.
        read: bytes.
        written: bytes.
    """

    calls: float = 0
    sets: float = 0
    read: float = 0
    written: float = 0

    @property
    def moved(self) -> float:
        """Bytes read and written together."""
        return self.read + self.written

    def minus(self, other: Costs) -> Costs:
        """Return what came after `other`."""
        return Costs(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def by(self, divisor: float) -> Costs:
        """Return the same of one of `divisor` seconds or members."""
        return Costs(*(getattr(self, f.name) / divisor for f in fields(self)))


@dataclass(frozen=True)
class Count:
    """One member's costs at a moment of the machine's monotonic clock."""

    time_ns: int
    costs: Costs
    coordinating: bool


class Crowd:
    """Some processes that hold the members of one rendezvous between them.

    Args:
        command: starts one of the processes.
        count: how many.
        directory: of this crowd alone; what the processes say goes there.
        environment: theirs.
    """

    def __init__(self, command: list[str], count: int, directory: Path, environment: dict[str, str]) -> None:
        self._output = directory / "crowd.txt"
        self._buffers = [b""] * count
        self._size = 0
        with self._output.open("ab") as output:
            self._processes = [
                subprocess.Popen(
                    command, cwd=directory, env=environment, start_new_session=True, bufsize=0,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
                )
                for _ in range(count)
            ]  # fmt: skip
        try:
            self._answers(range(count), ANSWER_LIMIT_S)  # each says hello
        except RunFailedError:
            self.end()
            raise

    def assemble(self, size: int, **facts: object) -> None:
        """Make `size` new members, the n-th in process n modulo their number; none moves yet.

        What the first process answers is passed to the others: where its store listens.
        """
        self._size = size
        processes = len(self._processes)
        for process in range(processes):
            mine = list(range(process, size, processes))
            self._send([process], do="assemble", size=size, members=mine, **facts)
            facts |= self._answers([process], ANSWER_LIMIT_S)[0]

    def go(self, limit_s: float) -> float:
        """Let all members go; return the seconds until the last one has its world."""
        started_ns = time.monotonic_ns()
        self._send(range(len(self._processes)), do="go", limit_s=limit_s)
        return (self._world(1, limit_s) - started_ns) / 1e9

    def again(self, member: int, worlds: int, limit_s: float) -> float:
        """Let one member ask for the next world; return the seconds until the last of all has that one.

        Args:
            member: its number.
            worlds: how many everybody has had.
            limit_s: patience.
        """
        owner = member % len(self._processes)
        self._send([owner], do="again", member=member)
        asked_ns = int(self._answers([owner], ANSWER_LIMIT_S)[0]["asked_ns"])
        self._send(range(len(self._processes)), do="await", worlds=worlds + 1, limit_s=limit_s)
        return (self._world(worlds + 1, limit_s) - asked_ns) / 1e9

    def count(self) -> dict[int, Count]:
        """Return what each member has cost so far."""
        self._send(range(len(self._processes)), do="count")
        return {
            int(member): Count(answer["time_ns"], Costs(*costs), coordinating)
            for answer in self._answers(range(len(self._processes)), ANSWER_LIMIT_S)
            for member, (costs, coordinating) in answer["members"].items()
        }

    def dismiss(self) -> None:
        """End this rendezvous."""
        self._send(range(len(self._processes)), do="dismiss")
        self._answers(range(len(self._processes)), ANSWER_LIMIT_S)

    def end(self) -> None:
        """Kill the processes and collect them."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def _world(self, number: int, limit_s: float) -> int:
        """Return when the last member had its `number`-th world, which all of them must share."""
        answers = self._answers(range(len(self._processes)), limit_s + ANSWER_LIMIT_S)
        ranks = sorted(rank for answer in answers for rank in answer["ranks"])
        if ranks != list(range(self._size)) or {size for a in answers for size in a["sizes"]} != {self._size}:
            had = "it was not one world" if len(ranks) == self._size else f"only {len(ranks)} members had it"
            raise RunFailedError(f"world {number} of {self._size}: {had} within {limit_s:.0f} s")
        return max(int(answer["last_ns"]) for answer in answers)

    def _send(self, processes: Iterable[int], **message: object) -> None:
        line = json.dumps(message).encode() + b"\n"
        for process in processes:
            pipe = self._processes[process].stdin
            assert pipe is not None
            try:
                pipe.write(line)
            except BrokenPipeError:
                raise RunFailedError(f"process {process} has ended; {self._last_output()}") from None

    def _answers(self, processes: Sequence[int], limit_s: float) -> list[dict[str, Any]]:
        deadline = time.monotonic() + limit_s
        answers = []
        for process in processes:
            pipe = self._processes[process].stdout
            assert pipe is not None
            while b"\n" not in self._buffers[process]:
                left_s = deadline - time.monotonic()
                data = os.read(pipe.fileno(), 1 << 16) if select.select([pipe], [], [], max(0.0, left_s))[0] else None
                if not data:
                    how = "did not answer in time" if data is None else "ended"
                    raise RunFailedError(f"process {process} {how}; {self._last_output()}")
                self._buffers[process] += data
            line, _, self._buffers[process] = self._buffers[process].partition(b"\n")
            answers.append(json.loads(line))
        return answers

    def _last_output(self) -> str:
        lines = self._output.read_text(errors="replace").strip().splitlines()[-8:]
        return "its last output:\n    " + "\n    ".join(lines or ["(none)"])
