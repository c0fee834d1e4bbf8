"""Stack collection in the agent: signals processes and collects their stacks, without blocking.

Driven by the agent's loop: `Collector.start`, then `Collector.poll` at each `Collector.deadline` until it is done. A
signal is sent only to a process that has a handler for it and holds the file that `dump_signal.install` opened: to any
other one, a real-time signal is death. A process that cannot respond is described by its state in /proc.
"""

from __future__ import annotations

import select
from collections.abc import Sequence

from ftslurm.monitor.dump import Descendants, Dump, Target
from ftslurm.monitor.dump_signal import DUMP_SIGNAL, install
from ftslurm.monitor.py_spy import PySpy
from ftslurm.monitor.stacks_file import RankStacks, Stacks, encode, parse

TIMEOUT_S = 2.0
NATIVE_S = 3.0
POLL_S, SLOW_POLL_S, QUICK_S = 0.005, 0.02, 0.1


class Collector:
    """Collects the stacks of some workers, all at once.

    Args:
        targets: the workers.
        descendants: process id to (process id, process group) of its descendants, parents first; asked only for a
            worker that does not answer the signal itself, such as a shell whose child is the Python program.
        timeout_s: how long the processes have for their stacks, in seconds.
        native_s: how long py-spy has after that, in seconds.
        pyspy: the program, by name or path.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        descendants: Descendants,
        *,
        timeout_s: float = TIMEOUT_S,
        native_s: float = NATIVE_S,
        pyspy: str = "py-spy",
    ) -> None:
        self._dumps = [Dump(target, descendants, timeout_s) for target in targets]
        self._pyspy = [PySpy(d.target.pid, pyspy) for d in self._dumps if d.target.native]
        self._native_at = {d.target.local_rank: s for d, s in zip(self._native(), self._pyspy, strict=True)}
        self._timeout_s, self._native_s = timeout_s, native_s
        self._started_s = 0.0
        self.deadline: float | None = None
        """The monotonic second at which `poll` wants to be called; None before the start and when all is done."""

    def start(self, now_s: float) -> None:
        """Ask all processes. ``now_s``: monotonic seconds, as for `poll`."""
        self._started_s = now_s
        for dump in self._dumps:
            dump.start(now_s)
        self.poll(now_s)

    def poll(self, now_s: float) -> bool:
        """Read the output so far; return whether it is complete or the time is over. May be called at any time."""
        ended = self._ended()
        for dump in self._dumps:
            dump.poll(now_s, ended=dump.target.local_rank in ended)
        done = all(dump.done for dump in self._dumps)
        # py-spy stops the process that it examines, so that one may answer first.
        for dump in self._native():
            done &= self._poll_native(dump, now_s)
        quick = now_s - self._started_s < QUICK_S
        self.deadline = None if done else now_s + (POLL_S if quick else SLOW_POLL_S)
        return done

    def result(self) -> dict[int, Stacks]:
        """Return what there is, by local rank; also before all is done."""
        found = {}
        for dump in self._dumps:
            spy = self._native_at.get(dump.target.local_rank)
            found[dump.target.local_rank] = dump.stacks(spy.text() if spy else "")
        return found

    def close(self) -> None:
        """Release all resources; also before the collection is complete; idempotent."""
        for dump in self._dumps:
            dump.close()
        for spy in self._pyspy:
            spy.close()
        self.deadline = None

    def _native(self) -> list[Dump]:
        return [dump for dump in self._dumps if dump.target.native]

    def _poll_native(self, dump: Dump, now_s: float) -> bool:
        spy = self._native_at[dump.target.local_rank]
        if not dump.done:
            return False
        if dump.gone or dump.stopped:
            return True
        return spy.poll(now_s, self._started_s + self._timeout_s + self._native_s)

    def _ended(self) -> set[int]:
        poll = select.poll()
        owners = {d.pidfd: d.target.local_rank for d in self._dumps if not d.done}
        for pidfd in owners:
            poll.register(pidfd, select.POLLIN)
        return {owners[pidfd] for pidfd, _ in poll.poll(0)} if owners else set()


__all__ = ["DUMP_SIGNAL", "Collector", "RankStacks", "Stacks", "Target", "encode", "install", "parse"]
