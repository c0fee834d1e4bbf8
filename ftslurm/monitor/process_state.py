"""State of a process that may hang, from /proc:  its state, where it waits, which signals it takes (proc(5)).

Every read is bounded, and none of them can block on the process: a value that cannot be had is not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

_SHOWN = ("State", "Threads", "VmRSS")
_WAITING = ("wchan", "syscall", "stack")
_LIMIT = 16 * 1024
_THREADS_LIMIT = 256
_FDS_LIMIT = 65536


def status(process: str) -> dict[str, str] | None:
    """Return ``status`` of ``/proc/<pid>`` or ``/proc/<pid>/task/<tid>`` by its keys; None if there is none."""
    text = _read(f"{process}/status")
    if text is None:
        return None
    pairs = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in pairs}


def letter(state: dict[str, str]) -> str:
    """Return the state as its one letter: R, S, D, T, t, Z, X, I."""
    return state.get("State", "?")[:1]


def has(state: dict[str, str], mask: str, number: int) -> bool:
    """Return whether signal ``number`` is in a mask of ``status``: "SigCgt", "SigBlk", "ShdPnd"."""
    try:
        return bool(int(state.get(mask, "0"), 16) >> (number - 1) & 1)
    except ValueError:
        return False


def facts(process: str, *, waiting: bool) -> tuple[tuple[str, str], ...]:
    """Return the facts on a process for display.

    Args:
        process: ``/proc/<pid>``.
        waiting: also where in the kernel it waits; that has a price, and most of it is for root only.
    """
    known = status(process) or {}
    found = [(key, known[key]) for key in _SHOWN if key in known]
    for name in _WAITING if waiting else ():
        value = (_read(f"{process}/{name}") or "").strip()
        if value not in ("", "0"):
            found.append((name, value))
    return tuple(found)


def waits_in(process: str) -> str:
    """Return the kernel function in which the process sleeps; empty if the kernel does not disclose it."""
    name = (_read(f"{process}/wchan") or "").strip()
    if name in ("", "0"):
        # "[<0>] rpc_wait_bit_killable+0x24/0x90", the innermost first; for root only.
        top = (_read(f"{process}/stack") or "").split("\n", 1)[0]
        name = top.rpartition(" ")[2].partition("+")[0]
    return name


def holds(process: str, path: str, guess: range) -> bool:
    """Return whether the process has the file ``path`` open; the numbers in ``guess`` are tried first.

    Only links that end in the file's name are followed: a stat of whatever a process has open could hang with the
    very filesystem that it hangs in.
    """
    name = f"/{os.path.basename(path)}"

    def is_it(number: int | str) -> bool:
        link = f"{process}/fd/{number}"
        try:
            return os.readlink(link).endswith(name) and os.path.samestat(os.stat(link), os.stat(path))
        except OSError:
            return False

    return any(is_it(n) for n in guess) or any(is_it(n) for n in _names(f"{process}/fd", _FDS_LIMIT))


def threads_that_take(process: str, number: int) -> Iterator[int]:
    """Give the ids of the threads, but the first, that could handle signal ``number`` now."""
    first = process.rpartition("/")[2]
    for name in _names(f"{process}/task", _THREADS_LIMIT):
        if name == first:
            continue
        state = status(f"{process}/task/{name}")
        if state is not None and letter(state) in "RS" and not has(state, "SigBlk", number):
            yield int(name)


def _names(path: str, most: int) -> Iterator[str]:
    try:
        with os.scandir(path) as entries:
            for entry, _ in zip(entries, range(most), strict=False):
                yield entry.name
    except OSError:
        return


def _read(path: str) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _LIMIT).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
