"""The peer heartbeat: all ranks confirm to each other, every period, that they are the ones that started together.

What DTensor's heartbeat does (tensorflow/dtensor/python/heartbeat.py), for torch.distributed: the ranks agree on a
random token; every period each fills its slot of a vector with it, and all-reduces the vector on a gloo group of its
own. A rank that ended, stands still, was restarted or is out of step is found by all of them, also while their main
threads wait in a collective for ever. Opt-in, and the only part of ftslurm that a worker needs torch for.

How it goes on after a failure: a gloo group is of no use after a time-out, so all make a new one, at once; rank 0 keeps
a small TCP store for that, on a port of its own at MASTER_ADDR (or its host name), and without rank 0 there is no
going on. A restarted process has no part in the old world, so it counts as missing there.

What it costs: as any gloo group, a connection from each rank to each other one, and two to three threads; between the
heartbeats nothing.

What it cannot see: a rank whose main thread hangs *without* holding the interpreter's lock still answers; its agent's
heartbeat and section time-outs are for that. One that holds the lock does not answer, and cannot end itself either.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import warnings
from types import FrameType, TracebackType
from typing import Any, NoReturn

from ftslurm.failures.recorder import Recorder, write_stderr
from ftslurm.peer.link import CONNECT_S, LEFT, LOST, Link, MissingError, agree
from ftslurm.peer.verdict import (
    FAILURES,
    PeerLostError,
    PeerTokenError,
    lost_error,
    ranks,
    timeout_of,
    token_error,
    wrong_ranks,
)

__all__ = ["EXIT_CODE", "PeerLostError", "PeerTokenError", "start"]

EXIT_CODE = 75  # sysexits(3): EX_TEMPFAIL, "the user is invited to retry"
_LEAVE_S = 4.0  # that leaving may cost at most
_RECEIVERS_S = 2.0  # and rank 0 so much more
_END_S = 5.0  # for the last messages of a process that is ended
_STUCK_S = 2.0  # beyond a try's own time-out: then its thread hangs in C and is left behind
_POLL_S = 0.05
_RECONNECT_S = 1.0
_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def start(period: float = 60.0, *, timeout: float | None = None) -> threading.Event:
    """Start the peer heartbeat in the background; a collective call, after ``init_process_group``.

    All ranks of the default group must call it, at the same place among their collectives. Ranks that fail to answer
    are found by all others within ``3 * (period + time-out)`` seconds, a wrong token at the next heartbeat; then the
    error is recorded, and the process ended with exit code 75 (`EXIT_CODE`).

    A rank that ends in order announces it, which ends the heartbeat on *all* ranks: one that goes on longer than
    others is not at fault. One that ends by an exception announces nothing, and is found; so is, in an ftslurm worker,
    one that ends by ``sys.exit`` with an error (elsewhere ``atexit`` cannot distinguish that from a good end). As
    ``atexit`` does not run where a process ends by ``os._exit`` (children of multiprocessing), set the event there
    first.

    Args:
        period: seconds between heartbeats. Rank 0's counts.
        timeout: seconds that one heartbeat may take; as a rule ``max(period - 10, 2)``. Rank 0's counts.

    Returns:
        The event that ends the heartbeat when it is set, on all ranks; and that is set when another rank has left. When
        the heartbeat is running already, that one's event comes back, with a warning.

    Raises:
        ValueError: ``period`` or ``timeout`` is not a positive number.
        RuntimeError: torch.distributed has not been initialised, has no gloo, or the ranks cannot reach each other.
    """
    global _running
    limit = timeout_of(period) if timeout is None else timeout
    if not 0 < period < float("inf") or not 0 < limit < float("inf"):
        raise ValueError(f"expected a period and a time-out of more than 0 s, found {period} and {limit}")
    if _running is not None and _running.pid == os.getpid() and not _running.stop.is_set():
        warnings.warn("the peer heartbeat is running already; start() was ignored", RuntimeWarning, stacklevel=2)
        return _running.stop
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        raise RuntimeError("the peer heartbeat needs torch with distributed and gloo; this torch is built without")
    if not dist.is_initialized():
        raise RuntimeError(
            "the peer heartbeat needs torch.distributed: call torch.distributed.init_process_group() "
            "before ftslurm.peer.start()"
        )
    link, group = agree(period, limit)
    heartbeat = Heartbeat(link, group)
    heartbeat.first()
    heartbeat.start()
    atexit.register(heartbeat.leave)
    _running = heartbeat
    return heartbeat.stop


class Heartbeat:
    """One rank's heartbeat; two threads: one that beats, one that waits for the departure of a rank."""

    def __init__(self, link: Link, group: Any) -> None:
        self.stop = threading.Event()
        self.pid = os.getpid()
        self._link = link
        self._terms = link.terms
        self._group = group
        self._generation = 0
        self._silent = False
        self._departed = threading.Event()
        self._recorder = Recorder(sys.argv)
        self._threads = [
            threading.Thread(target=self._run, name="ftslurm-peer-heartbeat", daemon=True),
            threading.Thread(target=self._listen, name="ftslurm-peer-departure", daemon=True),
        ]

    def first(self) -> None:
        """Exchange the token once, in the caller's thread.

        Raises:
            PeerTokenError: the ranks do not agree on it.
            RuntimeError: the exchange failed.
        """
        try:
            slots = self._exchange(CONNECT_S)
        except Exception as problem:
            raise RuntimeError(
                f"the peer heartbeat could not start: its first all-reduce failed: {problem}"
            ) from problem
        if slots is not None and wrong_ranks(slots, self._terms.token):
            raise token_error(slots, self._terms.token, self._link.rank)

    def start(self) -> None:
        """Go on exchanging it in the background."""
        # What recording needs: the main thread may hang in the middle of an import when it is needed.
        import linecache
        import traceback  # noqa: F401

        from ftslurm.failures import record  # noqa: F401

        linecache.checkcache()
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        """Stop at the interpreter's exit, in bounded time, whoever else is still there."""
        if os.getpid() != self.pid:
            return  # A forked child is not its rank.
        self._silent = self._has_failed()
        self.stop.set()
        until_s = time.monotonic() + _LEAVE_S
        for thread in self._threads[: 1 if self._silent else 2]:
            thread.join(max(0.0, until_s - time.monotonic()))
        if self._link.rank == 0 and self._departed.is_set():
            # They must receive it before the store ends with this process.
            self._link.await_receivers(LEFT, self._link.size, _RECEIVERS_S)

    def _has_failed(self) -> bool:
        """Whether what ends this program is no orderly end, but an exception, or an exit that has been recorded."""
        if getattr(sys, "last_value", None) is not None:  # The interpreter has just printed it.
            return True
        from ftslurm.failures import record

        directory = self._recorder.directory
        return directory is not None and record.read(directory)[0] is not None

    def _run(self) -> None:
        while not self.stop.wait(self._terms.period_s):
            self._beat()
        if not self._silent and not self._departed.is_set():
            with contextlib.suppress(Exception):  # A rank that does not receive it will miss this one.
                self._link.announce_departure(_LEAVE_S)
        self._group = None

    def _listen(self) -> None:
        while not self.stop.is_set():
            try:
                rank = self._link.await_departure()
            except Exception:
                self.stop.wait(_RECONNECT_S)
                continue
            self._departed.set()
            self.stop.set()
            if rank != self._link.rank:
                write_stderr(
                    f"{ranks([rank]) if rank >= 0 else 'a rank'} has left as it should: the peer heartbeat ends"
                )

    def _beat(self) -> None:
        """Exchange the token; after a failure try again with a new group, at once, as all others do."""
        missing: list[int] = []
        last = ""
        for failures in range(1, FAILURES + 1):
            try:
                if self._group is None:
                    self._group = self._new_group()
                slots = self._exchange(self._terms.timeout_s) if self._group is not None else None
            except PeerLostError as lost:
                self._end(lost, self._link.size)
            except Exception as problem:
                self._drop_group()
                absent = problem.ranks if isinstance(problem, MissingError) else []
                # A rank that is missed later may have ended because of the first.
                missing = [rank for rank in missing if rank in absent] or missing or absent
                last = _one_line(problem)
                if not self.stop.is_set() and failures < FAILURES:
                    named = f" ({ranks(absent)} did not come)" if absent else ""
                    write_stderr(f"peer heartbeat failure {failures}, limit is {FAILURES}: {last}{named}")
                continue
            if slots is None:
                return  # It was stopped.
            if wrong_ranks(slots, self._terms.token):
                self._end(token_error(slots, self._terms.token, self._link.rank))
            if failures > 1:
                write_stderr("all ranks answer the peer heartbeat again")
            return
        if not self.stop.is_set():
            error = lost_error(missing, FAILURES, self._terms.timeout_s, last)
            self._end(error, self._link.size - len(missing))

    def _exchange(self, limit_s: float) -> list[int] | None:
        until_s = time.monotonic() + limit_s
        return self._link.exchange(self._group, limit_s).finish(until_s, self.stop)

    def _drop_group(self) -> None:
        # Frees it, and so closes its connections, by which the others learn that this generation is over.
        if self._group is not None:
            self._group = None
            self._generation += 1

    def _new_group(self) -> Any:
        """Meet all ranks in a new group; None if the heartbeat was stopped meanwhile.

        The others may notice the old group's end only at their next heartbeat: they are waited for so long.
        """
        attempt = _Attempt(self._link, self._generation, self._terms.period_s + self._terms.timeout_s)
        while not attempt.done.wait(_POLL_S):
            if self.stop.is_set():
                return None
            if attempt.is_overdue():
                self._generation += attempt.abandon()
                raise MissingError(f"{self._link.keeper}, does not answer", [0] if self._link.rank else [])
        if attempt.problem is not None:
            self._generation += attempt.abandon()
            raise attempt.problem
        return attempt.group

    def _end(self, error: Exception, receivers: int = 0) -> NoReturn:
        """Record ``error``, publish it to ``receivers`` ranks, end the process, whatever its other threads do."""
        write_stderr(f"{type(error).__name__}: {error}; this process ends (exit code {EXIT_CODE})")
        # The filesystem, a lock of the output, or the store may be what hangs.
        until_s = time.monotonic() + _END_S
        threads = [
            threading.Thread(target=self._record, args=(error,), daemon=True),
            threading.Thread(target=self._publish_lost, args=(error, receivers), daemon=True),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        os._exit(EXIT_CODE)

    def _publish_lost(self, error: Exception, receivers: int) -> None:
        if isinstance(error, PeerLostError):
            with contextlib.suppress(Exception):
                self._link.publish_lost(self._generation, str(error), _RECEIVERS_S)
            if self._link.rank == 0:
                self._link.await_receivers(LOST, receivers, _RECEIVERS_S)

    def _record(self, error: Exception) -> None:
        from ftslurm.failures import record

        directory = self._recorder.directory
        if directory is None or record.read(directory)[0] is None:  # An earlier failure is more informative.
            error.__notes__ = ["The traceback shows where the main thread was."]  # type: ignore[attr-defined]
            self._recorder.exception(error, _main_thread())
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()


class _Attempt:
    """A try to make a new group, in a thread that can be left behind when it gets stuck."""

    def __init__(self, link: Link, generation: int, window_s: float) -> None:
        self.done = threading.Event()
        self.group: Any = None
        self.problem: Exception | None = None
        self._link = link
        self._generation = generation
        self._until_s = time.monotonic() + window_s
        self._lock = threading.Lock()
        self._connecting = False
        self._abandoned = False
        threading.Thread(target=self._run, name="ftslurm-peer-group", daemon=True).start()

    def is_overdue(self) -> bool:
        """Whether it must be stuck by now."""
        own_s = self._link.terms.timeout_s if self._connecting else 0.0
        return time.monotonic() > self._until_s + own_s + _STUCK_S

    def abandon(self) -> int:
        """Take it for failed; return 1 if its generation is used up by it, else 0."""
        with self._lock:
            self._abandoned = True
            return int(self._connecting)

    def _run(self) -> None:
        try:
            store = self._link.gather(self._generation, self._until_s)
            with self._lock:
                if self._abandoned:
                    return
                self._connecting = True
            self.group = self._link.group(store, self._generation, self._link.terms.timeout_s)
        except Exception as problem:
            self.problem = problem
        self.done.set()


def _main_thread() -> TracebackType | None:
    """Return where the main thread is, as a traceback, without the frames that started the user's program."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames: list[FrameType] = []  # innermost first
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    while frames and frames[-1].f_code.co_filename.startswith((_OWN, "<frozen")):
        frames.pop()
    trace: TracebackType | None = None
    for frame in frames:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno or 1)
    return trace


def _one_line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0][:300] if lines else type(problem).__name__


_running: Heartbeat | None = None
