"""The training script's interface to an orderly stop: should_stop, stop_reason, time_left, on_stop.

As in `client`: nothing here raises into the training loop, and outside an agent, in forked children and in data-loader
processes no stop is ever requested.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from ftslurm.monitor import client, stop_page
from ftslurm.monitor.link import write_line
from ftslurm.monitor.mapping import map_shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CAUGHT = ("SIGTERM", "SIGUSR1", "SIGUSR2")
WATCH_S = 0.5
"""Interval at which `on_stop`'s thread reads the page, in seconds."""


def should_stop(step: int | None = None) -> bool:
    """Return whether this rank should save now and leave, because the job is about to end or was asked to.

    With a step, the answer is True on *all* ranks at the *same* step: the agents agree on a step that no rank has
    passed yet. Call it once per step (or every so many steps) on every rank, with the same numbers. It costs less than
    a microsecond and no communication between ranks; only at the agreed step a rank may wait for the decision, a minute
    at most. Once True, it stays True.

    Without a step it answers for this rank alone, at once: ranks may then leave at different steps.

    The reasons are: the time limit comes near, preemption, `scancel`, `--signal`, `--stop-when`, `ftslurm stop`,
    Ctrl-C. The first call has SIGTERM, SIGUSR1 and SIGUSR2 of this rank count as such a reason too, unless the script
    handles them itself; set your own handlers before it.
    """
    try:
        return _call_without_step() if step is None else _call(step)
    except Exception as problem:
        return _call_with_number(step, problem)


def stop_reason() -> str | None:
    """Return why this rank should stop, one line; None: it should not."""
    try:
        side = _connect()
        if side is None or not side.requested:
            return None
        return _read_reason() or _name(side.words[stop_page.SIGNAL]) or "a stop was requested"
    except Exception as problem:
        client._swallow(problem)
        return None


def time_left() -> float:
    """Return the seconds until this rank is killed: by the grace of a stop, or the job's time limit; `inf`: unknown."""
    try:
        side = _connect()
        left_s = None if side is None else side.time_left_s()
        return math.inf if left_s is None else left_s
    except Exception as problem:
        client._swallow(problem)
        return math.inf


def on_stop(callback: Callable[[str], object]) -> None:
    """Have `callback(reason)` called once, when a stop is requested of this rank, in a thread of ftslurm's.

    For frameworks with a flag of their own. The ranks are not aligned: the flag should be acted upon at a common step.
    """
    if not callable(callback):
        raise TypeError(f"on_stop: expected a function of one argument, found {callback!r:.60}")
    try:
        side = _connect()
        if side is not None:
            side.words[stop_page.CALLS] += 1
            threading.Thread(target=_await_stop, args=(side, callback), name="ftslurm-stop", daemon=True).start()
    except Exception as problem:
        client._swallow(problem)


_side: stop_page.RankSide | None = None
_directory = ""
_connected = False
_lock = threading.RLock()


def _connect() -> stop_page.RankSide | None:
    """Connect at the first call; None: this process has no agent."""
    if not _connected:
        with _lock:
            _connect_once()
    return _side


def _connect_once() -> None:
    global _side, _directory, _connected, _call, _call_without_step
    if _connected:
        return
    _call, _call_without_step = _never, _never
    try:
        # Only the process that owns the rank's heartbeat page.
        if client._connect() is not None:
            _directory = os.environ["FTSLURM_RECORD_DIR"]
            _side = stop_page.RankSide(_map(_directory), waiting=client.excuse, misused=_report_misuse)
            _side.words[stop_page.PID] = os.getpid()
            _catch_signals(_side)
            _call, _call_without_step = _side.call, _side.call_without_step
    except Exception as problem:
        client._swallow(problem)
        write_line(f"this rank does not learn of a stop: {type(problem).__name__}: {problem}"[:300])
    _connected = True


def _report_misuse(what: str) -> None:
    agent = client._connect()
    if agent is not None:
        agent.misuse(what)


def _map(directory: str) -> Any:
    path = os.path.join(directory, stop_page.NAME)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stop_page.decode(os.pread(fd, stop_page.SIZE, 0)) is None:
            raise ValueError(f"{path} is no stop page")
        memory = map_shared(fd, stop_page.SIZE, path)
    finally:
        os.close(fd)
    return memoryview(memory).cast("B").cast("q")


def _catch_signals(side: stop_page.RankSide) -> None:
    """Make signals whose default would kill this rank a request to stop."""
    if threading.current_thread() is not threading.main_thread():
        return  # Only the main thread can set handlers.

    for name in CAUGHT:
        number = getattr(signal, name)
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _note_signal)
            if name == "SIGTERM":
                side.words[stop_page.CATCHES_TERM] = 1


def _note_signal(number: int, frame: object) -> None:
    if _side is not None:
        _side.words[stop_page.SIGNAL] = number


def _first_call(step: int) -> bool:
    _connect()
    return _call is not _first_call and _call(step)


def _first_call_without_step() -> bool:
    _connect()
    return _call_without_step is not _first_call_without_step and _call_without_step()


def _never(step: int | None = None) -> bool:
    """`should_stop` of a process without an agent."""
    return False


_call: Callable[[int], bool] = _first_call
_call_without_step: Callable[[], bool] = _first_call_without_step


def _read_reason() -> str | None:
    try:
        with open(os.path.join(_directory, stop_page.REASON), encoding="utf-8", errors="replace") as file:
            return file.read(1000).strip() or None
    except OSError:
        return None


def _call_with_number(step: object, problem: Exception) -> bool:
    """Answer a call whose step is no `int`: a tensor or float of a whole value counts, anything else is reported."""
    number = None
    try:
        whole = int(step)  # type: ignore[call-overload]
        number = whole if whole == step else None
    except Exception:
        # Reported below.
        pass
    if number is None or isinstance(step, int):
        agent = client._connect()
        if agent is None:
            return False
        if not isinstance(problem, (TypeError, ValueError, OverflowError)):
            client._swallow(problem)
        agent.misuse("should_stop: the step must be a whole number", repr(step)[:40])
        return False
    try:
        return _call(number)
    except Exception as error:
        client._swallow(error)
        return False


def _name(number: int) -> str | None:
    try:
        return signal.Signals(number).name if number else None
    except ValueError:
        return f"signal {number}"


def _await_stop(side: stop_page.RankSide, callback: Callable[[str], object]) -> None:
    while not side.requested:
        time.sleep(WATCH_S)
    callback(stop_reason() or "a stop was requested")


def _forget() -> None:
    """In a forked child: it is not its rank, and a signal to it ends it, as a data loader expects."""
    global _side, _connected, _lock, _call, _call_without_step
    if _side is not None:
        for name in CAUGHT:
            if signal.getsignal(getattr(signal, name)) is _note_signal:
                signal.signal(getattr(signal, name), signal.SIG_DFL)
    _lock = threading.RLock()
    _side, _connected = None, True
    _call, _call_without_step = _never, _never


os.register_at_fork(after_in_child=_forget)
