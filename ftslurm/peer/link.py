"""Connections of the peer heartbeat: its own store, kept by rank 0, and gloo groups that can be made anew.

Why groups are made anew: after one time-out the pairs of a gloo group are broken for good. Each group is a
*generation* with names of its own in the store, so that nothing of an old one can disturb it; a rank that drops
its group closes its connections, by which the others' next use of that generation fails too, and all meet in the next.

Anything here that talks to the store can hang in C when rank 0 is stopped or out of reach: the store's client has
no time-out but for waiting. Callers that must not hang use a thread that they can leave behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any

from ftslurm.dataclasses import dataclass
from ftslurm.peer.verdict import PeerLostError, absent

LEFT, LOST = "left", "lost"
CONNECT_S = 60.0  # at the start, when all ranks are known to be there
_TERMS_BYTES = 1024
_SLACK_S = 1.0  # gloo's own time-out comes first, with a better message
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.1
_CONNECT_PAUSE_S = 0.2
_RECEIVERS_PAUSE_S = 0.02
_DAY = timedelta(days=1)


class MissingError(Exception):
    """Not all ranks came to make a new group; ``ranks`` are those that did not, empty if that is unknown."""

    def __init__(self, text: str, ranks: list[int]) -> None:
        super().__init__(text)
        self.ranks = ranks


@dataclass(frozen=True)
class Terms:
    """What the ranks agree on at the start: rank 0 decides."""

    token: int
    period_s: float
    timeout_s: float
    host: str
    port: int


@dataclass(frozen=True)
class Exchange:
    """One all-reduce on its way; kept together because C++ goes on using all of it until it has ended."""

    group: Any
    work: Any
    slots: Any

    def finish(self, until_s: float, stopping: threading.Event) -> list[int] | None:
        """Return every rank's slot, or None when ``stopping`` was set first; both without blocking in C.

        Args:
            until_s: the monotonic second at which to give up.
            stopping: ends the waiting at once.

        Raises:
            RuntimeError: gloo's own error, or it had not ended in time.
        """
        pause_s = _FIRST_PAUSE_S
        while not self.work.is_completed():
            overdue = time.monotonic() > until_s + _SLACK_S
            if overdue or stopping.wait(pause_s):
                keep_for_ever(self.group, self.work, self.slots)
                if overdue:
                    raise RuntimeError("the all-reduce did not end in time")
                return None
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self.work.wait()  # Raises what went wrong.
        return [int(value) for value in self.slots.tolist()]


class Link:
    """One rank's end of the connections."""

    def __init__(self, rank: int, size: int, terms: Terms, server: Any) -> None:
        self.rank = rank
        self.size = size
        self.terms = terms
        self.keeper = f"rank 0, which keeps the heartbeat's store at {terms.host}:{terms.port}"
        if server is not None:
            # If the interpreter took it down at its end, threads that wait for it would wake up in the ruins.
            keep_for_ever(server)

    def connect(self, limit_s: float) -> Any:
        """Return a new connection to the store; a store's client serves one call at a time.

        Raises:
            OSError: no process listens there, for ``limit_s`` seconds.
            RuntimeError: the process that listens does not answer.
        """
        import torch.distributed as dist

        _await_listener(self.terms.host, self.terms.port, time.monotonic() + limit_s)
        limit = timedelta(seconds=limit_s)
        return dist.TCPStore(
            self.terms.host, self.terms.port, None, False, limit, wait_for_workers=False, use_libuv=_libuv()
        )

    def gather(self, generation: int, until_s: float) -> Any:
        """Wait for all ranks to come to a new group; return a connection to the store.

        Args:
            generation: the number of the group. A rank that came once to a generation counts as come.
            until_s: the monotonic second until which others are waited for.

        Raises:
            MissingError: some did not come, or the store does not answer.
            PeerLostError: another rank has found that peers are lost.
        """
        try:
            store = self.connect(_left(until_s))
            store.set(f"{generation}/{self.rank}", "here")
        except Exception as problem:
            raise MissingError(f"{self.keeper}, cannot be reached ({problem})", [0] if self.rank else []) from problem
        everybody = [f"{generation}/{rank}" for rank in range(self.size)]
        late: Exception | None = None
        try:
            if self.rank == 0:
                store.wait(everybody, timedelta(seconds=_left(until_s)))
                store.set(f"{generation}/all", "here")
            else:
                store.wait([f"{generation}/all"], timedelta(seconds=_left(until_s)))
        except Exception as problem:
            late = problem
        try:
            _raise_if_lost(store)
            missing = absent(range(self.size), lambda some: bool(store.check([everybody[rank] for rank in some])))
        except PeerLostError:
            raise
        except Exception:
            missing = [0] if self.rank else []  # It took the store with it.
        if late or missing:
            raise MissingError("not all ranks came to make a new group", missing) from late
        return store

    def group(self, store: Any, generation: int, limit_s: float) -> Any:
        """Return the gloo group ``generation``, connected; all ranks must do this at about the same time.

        Raises:
            RuntimeError: they did not, within ``limit_s`` seconds.
        """
        import torch.distributed as dist

        names = dist.PrefixStore(f"{generation}/gloo", store)
        return dist.ProcessGroupGloo(names, self.rank, self.size, timedelta(seconds=limit_s))

    def exchange(self, group: Any, limit_s: float) -> Exchange:
        """Begin to all-reduce a vector in which this rank has filled its slot with the token."""
        import torch
        import torch.distributed as dist

        slots = torch.zeros(self.size, dtype=torch.int64, device="cpu")
        slots[self.rank] = self.terms.token
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=limit_s)
        return Exchange(group, group.allreduce([slots], options), slots)

    def announce_departure(self, limit_s: float) -> None:
        """Announce to all ranks that this one leaves in order.

        Raises:
            Exception: the store cannot be reached. It may also hang.
        """
        self.connect(limit_s).set(LEFT, str(self.rank))

    def await_departure(self) -> int:
        """Wait until some rank leaves; return which, -1 if the store ended just after the announcement.

        Raises:
            Exception: the connection broke, or a day went by.
        """
        store = self.connect(CONNECT_S)
        store.wait([LEFT], _DAY)  # It alone is enough: rank 0 may be gone before a slow rank asks which one it was.
        try:
            rank = int(store.get(LEFT))
            store.add(f"received {LEFT}", 1)
        except Exception:
            return -1
        return rank

    def publish_lost(self, generation: int, text: str, limit_s: float) -> None:
        """Publish to all ranks that are still there what was found; they read it in `gather`.

        Raises:
            Exception: the store cannot be reached. It may also hang.
        """
        store = self.connect(limit_s)
        store.compare_set(LOST, "", text)
        store.add(f"received {LOST}", 1)
        store.set(f"{generation}/all", "over")  # wakes them up

    def await_receivers(self, what: str, count: int, limit_s: float) -> None:
        """On rank 0: keep the store a moment, until ``count`` ranks have received LEFT or LOST."""
        until_s = time.monotonic() + limit_s
        with contextlib.suppress(Exception):
            store = self.connect(limit_s)
            while store.add(f"received {what}", 0) < count and time.monotonic() < until_s:
                time.sleep(_RECEIVERS_PAUSE_S)


def _raise_if_lost(store: Any) -> None:
    if store.check([LOST]):
        text = store.get(LOST).decode()
        store.add(f"received {LOST}", 1)
        raise PeerLostError(text)


def agree(period_s: float, timeout_s: float) -> tuple[Link, Any]:
    """Let all ranks agree on rank 0's terms, by a gloo group that is gone afterwards; return link and first group.

    A collective call: waits for the slowest rank, as long as torch does in a new group by default.

    Raises:
        RuntimeError: rank 0 could not make a store, or it or a rank cannot be reached.
    """
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    meeting = dist.new_group(backend="gloo")
    server, terms = _offer(period_s, timeout_s) if rank == 0 else (None, {})
    page = bytearray(json.dumps(terms).encode().ljust(_TERMS_BYTES))
    letters = torch.tensor(list(page), dtype=torch.uint8, device="cpu")
    dist.broadcast(letters, src=0, group=meeting)
    terms = json.loads(bytes(letters.tolist()))
    if "problem" in terms:
        raise RuntimeError(f"the peer heartbeat could not start: rank 0 cannot keep its store: {terms['problem']}")
    link = Link(rank, size, Terms(**terms), server)
    try:
        group = link.group(link.connect(CONNECT_S), 0, CONNECT_S)
    except Exception as problem:
        text = f"the peer heartbeat could not start: cannot reach {link.keeper}, or another rank: {problem}"
        raise RuntimeError(text) from problem
    dist.destroy_process_group(meeting)
    return link, group


def _libuv() -> bool:
    """As torch's launcher: a torch may be built without libuv."""
    return os.environ.get("USE_LIBUV", "1") == "1"


def _offer(period_s: float, timeout_s: float) -> tuple[Any, dict[str, Any]]:
    import torch.distributed as dist

    # Where torch itself finds rank 0, by definition of the env:// method.
    host = os.environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        limit = timedelta(seconds=CONNECT_S)
        server = dist.TCPStore(host, 0, None, True, limit, wait_for_workers=False, use_libuv=_libuv())
    except Exception as problem:
        return None, {"problem": str(problem)[:300]}
    token = 1 + int.from_bytes(os.urandom(4), "big")  # never 0: that is an empty slot
    terms = {"token": token, "period_s": period_s, "timeout_s": timeout_s, "host": host, "port": server.port}
    return server, terms


def keep_for_ever(*things: object) -> None:
    """Never free ``things``: freeing a gloo group waits for what it is doing, up to its time-out."""
    with contextlib.suppress(ImportError):
        import ctypes

        for thing in things:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _left(until_s: float) -> float:
    return max(0.1, until_s - time.monotonic())


def _await_listener(host: str, port: int, until_s: float) -> None:
    """Wait until a process listens there: torch's own attempts print pages about each one that fails."""
    while True:
        try:
            socket.create_connection((host, port), _left(until_s)).close()
            return
        except OSError:
            if time.monotonic() + _CONNECT_PAUSE_S > until_s:
                raise
            time.sleep(_CONNECT_PAUSE_S)
