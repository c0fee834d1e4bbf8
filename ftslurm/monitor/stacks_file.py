"""``stacks.txt`` of a hang: the collected stacks of one rank as readable text (pure).

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
where there are no stacks, or not all; ``stop: SIGTERM from outside`` where no rank had a time-out, but the job was
stopped from outside; ``still: 58.2 s, before at most 3.1 s``: how long the rank had not moved by then, and the longest
time before, which is 0.0 s for a hang; ``step: 7``: its last training step by then, where it reports steps.
Between the first blank line and the py-spy line stands what faulthandler wrote.
A ``stacks.txt`` without the first line is that of a crash.
"""

from __future__ import annotations

import re

from ftslurm.dataclasses import dataclass

# Imported as typing.TYPE_CHECKING, without typing: the agent collects stacks, and never parses them.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.monitor.faulthandler_text import Frame

LIMIT = 1024 * 1024
"""Bytes that `encode` keeps to and `parse` reads."""

MARK = "# ftslurm stacks "
_FIRST = re.compile(rf"{MARK}rank (\d{{1,9}}) local_rank (\d{{1,9}}) node (\S{{1,255}}) time_ns (\d{{1,19}})\s*")
_NATIVE = "# py-spy dump --native"
_STILL = re.compile(r"(\d{1,12}\.\d) s, before at most (\d{1,12}\.\d) s")
_STEP = re.compile(r"-?[0-9]{1,18}")
_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Stacks:
    """What was collected of one process.

    Attributes:
        local_rank: of the worker.
        text: what faulthandler wrote, or empty.
        facts: from /proc, name and value; values may have several lines.
        problem: why ``text`` is missing or not complete; None if it is.
        native: output of py-spy, or one line with the reason why there is none; or empty.
    """

    local_rank: int
    text: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    problem: str | None = None
    native: str = ""


@dataclass(frozen=True)
class RankStacks:
    """A ``stacks.txt``: `Stacks`, and whose they are.

    Attributes:
        why: the time-out that expired, on a rank that hung.
        stop: why the job was stopped from outside, if that was the occasion.
        still: seconds without a movement until then, and the longest such time before; None: unknown.
        step: the last training step that it had reported by then.
        raised: the exception that ended its script, by its error record: its type, and the place in the script. Not in
            the file.
    """

    rank: int
    node: str
    time_ns: int
    stacks: Stacks
    why: str | None = None
    stop: str | None = None
    still: tuple[float, float] | None = None
    step: int | None = None
    raised: tuple[str, Frame | None] | None = None


def encode(
    stacks: Stacks,
    *,
    rank: int,
    node: str,
    time_ns: int,
    why: str | None = None,
    stop: str | None = None,
    still: tuple[float, float] | None = None,
    step: int | None = None,
) -> bytes:
    """Return the file's content, at most `LIMIT` bytes.

    Args:
        stacks: what was collected.
        rank: the global rank.
        node: the node's name.
        time_ns: when it was collected, nanoseconds since the epoch.
        why: what expired, for a rank that is here because it did not move itself.
        stop, still, step: see `RankStacks`.
    """
    name = re.sub(r"\s", "_", node) or "?"
    lines = [f"{MARK}rank {rank} local_rank {stacks.local_rank} node {name} time_ns {time_ns}"]
    lines += [f"# why: {_line(why)}"] if why else []
    lines += [f"# stop: {_line(stop)}"] if stop else []
    lines += [f"# still: {still[0]:.1f} s, before at most {still[1]:.1f} s"] if still is not None else []
    lines += [f"# step: {step}"] if step is not None else []
    lines += [f"# problem: {_line(stacks.problem)}"] if stacks.problem else []
    for key, value in stacks.facts:
        lines += [f"# /proc: {key}: {_line(part)}" for part in value.splitlines()]
    text = "\n".join(lines) + "\n\n" + _UNPRINTABLE.sub("?", stacks.text)
    if stacks.native:
        text = f"{text.rstrip()}\n\n{_NATIVE}\n{_UNPRINTABLE.sub('?', stacks.native)}"
    return (text.rstrip() + "\n").encode("utf-8", "backslashreplace")[:LIMIT]


def parse(data: bytes) -> RankStacks | None:
    """Return the content of a ``stacks.txt``; None for one that is not of a hang, or torn in its first line."""
    text = data[:LIMIT].decode("utf-8", "replace")
    first, _, rest = text.partition("\n")
    found = _FIRST.fullmatch(first)
    if found is None:
        return None
    # The blank line is at once the end of the last header line and an empty one.
    head, _, body = rest.partition("\n\n") if not rest.startswith("\n") else ("", "", rest[1:])
    texts = dict.fromkeys(("why", "problem", "stop", "still", "step"), "")
    facts: dict[str, str] = {}
    for line in head.splitlines():
        key, _, value = line.removeprefix("# ").partition(": ")
        if key in texts:
            texts[key] = value
        elif key == "/proc":
            name, _, fact = value.partition(": ")
            facts[name] = f"{facts[name]}\n{fact}" if name in facts else fact
    body, _, native = body.partition(f"{_NATIVE}\n")
    rank, local_rank, node, time_ns = found.groups()
    stacks = Stacks(int(local_rank), body.strip("\n"), tuple(facts.items()), texts["problem"] or None, native)
    times = _STILL.fullmatch(texts["still"])
    still = (float(times[1]), float(times[2])) if times is not None else None
    step = int(texts["step"]) if _STEP.fullmatch(texts["step"]) else None
    return RankStacks(int(rank), node, int(time_ns), stacks, texts["why"] or None, texts["stop"] or None, still, step)


def _line(text: str) -> str:
    return _UNPRINTABLE.sub("?", text.replace("\n", " "))
