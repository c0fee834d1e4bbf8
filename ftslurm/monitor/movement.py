"""Whether the ranks of this node move, as far as that shows from outside: pages, CPU time, output.

For the report on a job that is stopped from outside while it hangs: its script may call nothing of ftslurm. A rank
that waits uses next to no CPU time; what its children (data loaders, a program behind a shell) use, and when it printed
last, is examined only then. A rank that spins (NCCL in a kernel) moves, by this measure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.agent.workers import Worker

SHARE = 0.03
"""The part of a CPU that a waiting rank may use: NCCL's watchdog, a progress bar's or a metrics thread."""
SLACK_S = 0.02
EVERY_S = 2.0
"""Least interval of samples, in seconds: the kernel counts CPU time in hundredths."""
TREE_S = 6.0
"""Interval at which all processes of ranks that use no CPU time themselves are examined: one pass over /proc."""


class Movement:
    """When each rank moved last.

    Args:
        monotonic: clock, seconds.
        cpu_s: CPU seconds of a process; None: it is gone.
        sessions_s: CPU seconds of all processes of each of these sessions.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        cpu_s: Callable[[int], float | None] | None = None,
        sessions_s: Callable[[Iterable[int]], dict[int, float]] | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._cpu_s = cpu_s or process_cpu_s
        self._sessions_s = sessions_s or session_cpu_s
        # By local rank: last movement, longest time without one before that; measurements with their times.
        self._last: dict[int, float] = {}
        self._longest: dict[int, float] = {}
        self._signs: dict[int, object] = {}
        self._cpu: dict[int, tuple[float, float]] = {}
        self._trees: dict[int, tuple[float, float]] = {}
        self._outputs: dict[int, int] = {}
        self._sampled_s = monotonic()

    def begin(self, local_rank: int) -> None:
        """A worker has started."""
        for one in (self._longest, self._signs, self._cpu, self._trees, self._outputs):
            one.pop(local_rank, None)
        self._last[local_rank] = self._monotonic()

    def sample(self, workers: Sequence[Worker], signs: Mapping[int, object], *, at_once: bool = False) -> bool:
        """Take a sample; return whether the ages of their outputs are needed, for `on_outputs`.

        Args:
            workers: those that are alive.
            signs: by local rank what changes when the rank moves, as its counters.
            at_once: whether their children are examined now, although it is early.
        """
        now = self._monotonic()
        if now - self._sampled_s < EVERY_S and not at_once:
            return False
        self._sampled_s = now
        due: dict[int, int] = {}
        for worker in workers:
            rank = worker.local_rank
            moved = self._signs.get(rank) != signs.get(rank)
            self._signs[rank] = signs.get(rank)
            if self._uses_cpu(self._cpu, rank, self._cpu_s(worker.pid), now) or moved:
                self._moved(rank, now)
                self._trees.pop(rank, None)
            elif at_once or now - self._trees.get(rank, (now - TREE_S, 0.0))[0] >= TREE_S:
                due[rank] = worker.pid
        sessions = self._sessions_s(due.values()) if due else {}
        for rank, pid in due.items():
            if self._uses_cpu(self._trees, rank, sessions.get(pid), now):
                self._moved(rank, now)
        return bool(due)

    def on_outputs(self, outputs: Mapping[int, tuple[int, float]]) -> None:
        """Take the outputs of ranks: their sizes in bytes, and how many seconds ago they were written last."""
        now = self._monotonic()
        for rank, (size, age_s) in outputs.items():
            if self._outputs.get(rank, 0) != size and rank in self._last:
                self._outputs[rank] = size
                self._moved(rank, now - max(0.0, age_s))

    def still_s(self, local_rank: int) -> tuple[float, float]:
        """Return the seconds since the rank's last movement, and the longest such time before."""
        now = self._monotonic()
        return now - self._last.get(local_rank, now), self._longest.get(local_rank, 0.0)

    def _moved(self, rank: int, at_s: float) -> None:
        since_s = at_s - self._last[rank] if rank in self._last else 0.0
        if since_s > 0:
            self._longest[rank] = max(self._longest.get(rank, 0.0), since_s)
        self._last[rank] = max(at_s, self._last.get(rank, at_s))

    @staticmethod
    def _uses_cpu(known: dict[int, tuple[float, float]], rank: int, used_s: float | None, now: float) -> bool:
        if used_s is None:
            return False
        before = known.get(rank)
        known[rank] = (now, used_s)
        if before is None:
            return False
        at_s, before_s = before
        # An ended child takes its share of the sum along.
        return abs(used_s - before_s) > SHARE * (now - at_s) + SLACK_S


def process_cpu_s(pid: int) -> float | None:
    """Return the CPU seconds that a process has used, without its children; None: it is gone."""
    found = _stat(str(pid))
    return None if found is None else found[1]


def session_cpu_s(sessions: Iterable[int]) -> dict[int, float]:
    """Return the CPU seconds of all processes of each of these sessions."""
    sums = dict.fromkeys(sessions, 0.0)
    for name in os.listdir("/proc"):
        found = _stat(name) if name.isdigit() else None
        if found is not None and found[0] in sums:
            sums[found[0]] += found[1]
    return sums


def _stat(pid: str) -> tuple[int, float] | None:
    """Return a process's session and its CPU seconds (proc_pid_stat(5), fields 6, 14 and 15)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    fields = line[line.rindex(b")") + 2 :].split(None, 14)
    return int(fields[3]), (int(fields[11]) + int(fields[12])) / _TICKS


_TICKS = os.sysconf("SC_CLK_TCK") or 100
