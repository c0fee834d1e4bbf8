"""``stacks.txt`` of a hang: what was collected of one rank, as text that people can read too (pure).

::

    # ftslurm stacks rank 412 local_rank 4 node n17 time_ns 1772366400000000000
    # why: no heartbeat for 30.0 s (time-out 30.0 s)
    # problem: in uninterruptible sleep (D) in rpc_wait_bit_killable
    # /proc: State: D (disk sleep)
    # /proc: Threads: 12
    # /proc: stack: [<0>] rpc_wait_bit_killable+0x24/0x90

    Thread 0x00007f2b1c3ff640 (most recent call first):
      File "/home/ann/lm/data.py", line 40 in __next__

    # py-spy dump --native
    ...

The first line is always there, the others where they apply: ``why`` for a rank whose time-out expired, ``problem``
where there are no stacks, or not all. Between the first blank line and the py-spy line stands what faulthandler wrote.
A ``stacks.txt`` without the first line is that of a crash.
"""

from __future__ import annotations

import re

from ftslurm.dataclasses import dataclass

LIMIT = 1024 * 1024
"""Bytes that `encode` keeps to and `parse` looks at."""

MARK = "# ftslurm stacks "
_FIRST = re.compile(rf"{MARK}rank (\d{{1,9}}) local_rank (\d{{1,9}}) node (\S{{1,255}}) time_ns (\d{{1,19}})\s*")
_NATIVE = "# py-spy dump --native"
_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Stacks:
    """What was collected of one process.

    Attributes:
        local_rank: of the worker.
        text: what faulthandler wrote, or empty.
        facts: what /proc said, name and value; values may have several lines.
        problem: why ``text`` is missing or not complete; None if it is.
        native: what py-spy wrote, or one line on why it could not; or empty.
    """

    local_rank: int
    text: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    problem: str | None = None
    native: str = ""


@dataclass(frozen=True)
class RankStacks:
    """A ``stacks.txt``: `Stacks`, and whose they are. ``why``: the time-out that expired, on a rank that hung."""

    rank: int
    node: str
    time_ns: int
    stacks: Stacks
    why: str | None = None


def encode(stacks: Stacks, *, rank: int, node: str, time_ns: int, why: str | None = None) -> bytes:
    """Return the file's content, at most `LIMIT` bytes.

    Args:
        stacks: what was collected.
        rank: the global rank.
        node: the node's name.
        time_ns: when it was collected, nanoseconds since the epoch.
        why: what expired, for a rank that is here because it did not move itself.
    """
    name = re.sub(r"\s", "_", node) or "?"
    lines = [f"{MARK}rank {rank} local_rank {stacks.local_rank} node {name} time_ns {time_ns}"]
    lines += [f"# why: {_line(why)}"] if why else []
    lines += [f"# problem: {_line(stacks.problem)}"] if stacks.problem else []
    for key, value in stacks.facts:
        lines += [f"# /proc: {key}: {_line(part)}" for part in value.splitlines()]
    text = "\n".join(lines) + "\n\n" + _UNPRINTABLE.sub("?", stacks.text)
    if stacks.native:
        text = f"{text.rstrip()}\n\n{_NATIVE}\n{_UNPRINTABLE.sub('?', stacks.native)}"
    return (text.rstrip() + "\n").encode("utf-8", "backslashreplace")[:LIMIT]


def parse(data: bytes) -> RankStacks | None:
    """Return what a ``stacks.txt`` says; None for one that is not of a hang (or torn before its first line's end)."""
    text = data[:LIMIT].decode("utf-8", "replace")
    first, _, rest = text.partition("\n")
    found = _FIRST.fullmatch(first)
    if found is None:
        return None
    # The blank line is at once the end of the last header line and an empty one.
    head, _, body = rest.partition("\n\n") if not rest.startswith("\n") else ("", "", rest[1:])
    words = dict.fromkeys(("why", "problem"), "")
    facts: dict[str, str] = {}
    for line in head.splitlines():
        key, _, value = line.removeprefix("# ").partition(": ")
        if key in words:
            words[key] = value
        elif key == "/proc":
            name, _, fact = value.partition(": ")
            facts[name] = f"{facts[name]}\n{fact}" if name in facts else fact
    body, _, native = body.partition(f"{_NATIVE}\n")
    rank, local_rank, node, time_ns = found.groups()
    stacks = Stacks(int(local_rank), body.strip("\n"), tuple(facts.items()), words["problem"] or None, native)
    return RankStacks(int(rank), node, int(time_ns), stacks, words["why"] or None)


def _line(text: str) -> str:
    return _UNPRINTABLE.sub("?", text.replace("\n", " "))


__all__ = ["LIMIT", "MARK", "RankStacks", "Stacks", "encode", "parse"]
