"""Writers that increment one counter in a fenced cell against each other, and the audit of what they left.

Run as a script by `test_cell_contended`, on any host: it needs this repository and a Python at the same paths there.

    contended.py write DIRECTORY WRITER TOKENS DIE_AT LOSE   increment until the cell has TOKENS generations
    contended.py list DIRECTORY                              print every generation as this client sees it
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ftslurm.sharedfs.cell import HINT, FencedCell, Versioned
from ftslurm.sharedfs.filesystem import PosixFileSystem

WON, LOST, RAISED, END, BROKEN = "won", "lost", "raised", "end", "broken"
PATIENCE = 1000


class FaultyFileSystem(PosixFileSystem):
    """The real filesystem, which loses replies and whose user may be killed.

    Args:
        rng: decides.
        die_at: the user is killed before the operation of this number (0: never).
        lose: this share of the changes is done, and reported as failed: as the client does that repeats the call and
            returns the result of the repetition, or as the one that gives up.
    """

    def __init__(self, rng: random.Random, die_at: int, lose: float) -> None:
        super().__init__()
        self._rng = rng
        self._left = die_at
        self._lose = lose

    def __getattribute__(self, name: str) -> Any:
        real = super().__getattribute__(name)
        if name in ("create", "link", "rename", "unlink", "read", "refresh"):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if name in ("create", "link", "rename", "unlink") and self._rng.random() < self._lose:
                return lambda *arguments, **named: self._done_but(real, *arguments, **named)
        return real

    def _done_but(self, change: Any, *arguments: Any, **named: Any) -> None:
        change(*arguments, **named)
        if self._rng.random() < 0.2:
            raise OSError(errno.EIO, "the reply was lost")
        change(*arguments, **named)


def write(directory: str, writer: str, tokens: int, die_at: int, lose: float) -> None:
    """Increment the counter until there are `tokens` generations, saying after each try how it ended."""
    rng = random.Random(writer)
    cell = FencedCell(FaultyFileSystem(rng, die_at, lose), directory)
    newest = patiently(cell.get)
    outcomes: Counter[str] = Counter()
    serial = 0
    while newest is None or newest.token < tokens:
        serial += 1
        token = newest.token if newest else 0
        value = json.dumps({"counter": count(newest) + 1, "writer": writer, "serial": serial}).encode()
        try:
            after, won = cell.set(value, token or None)
        except OSError as error:
            report(RAISED, token + 1, serial, type(error).__name__, error.errno)
            outcomes[RAISED] += 1
            after, won = patiently(cell.get), False
        else:
            outcomes[WON if won else LOST] += 1
            report(WON if won else LOST, token + 1, serial)
        if after is not None and rng.random() < 0.25:
            thorough = rng.random() < 0.5
            after = patiently(lambda known=after, look=thorough: cell.get_newer(known.token, look)) or after
        if newest is not None and (after is None or after.token < newest.token):
            report(BROKEN, f"saw token {newest.token}, then {after.token if after else None}")
        newest = after
    report(END, dict(outcomes))


def count(newest: Versioned | None) -> int:
    """Return the counter in a value, 0 in none."""
    return int(json.loads(newest.value)["counter"]) if newest else 0


def patiently(read: Any) -> Any:
    """Read, again while the filesystem fails."""
    for _ in range(PATIENCE):
        try:
            return read()
        except OSError:
            time.sleep(0.01)
    return read()


def report(*values: object) -> None:
    """Print one line at once: a killed writer has printed all results that it had."""
    os.write(1, json.dumps(values).encode() + b"\n")


def generations(directory: str) -> None:
    """Print each name in the cell's directory and what is in it."""
    fs = PosixFileSystem()
    fs.refresh(directory)
    for name in sorted(fs.listdir(directory)):
        if name.startswith("."):
            report(name, None, None)
            continue
        content = json.loads(patiently(lambda name=name: fs.read(os.path.join(directory, name), 1 << 16)))
        report(name, content, None if name == HINT else content["value"])


@dataclass
class Outcome:
    """What one writer printed, line by line, and whether it lived to the end."""

    writer: str
    lines: list[list[Any]]
    died: bool


@dataclass
class Audit:
    """What is wrong with a cell, and what happened, in numbers."""

    faults: list[str] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)


def audit(listing: Iterable[list[Any]], writers: list[Outcome], tokens: int) -> Audit:
    """Compare the results that the writers got with what one client sees in the directory."""
    result = Audit()
    faults, numbers = result.faults, result.numbers
    authors = _check_generations(listing, tokens, result)
    claims: dict[int, list[tuple[str, int]]] = {}
    for one in writers:
        excused = {line[2] for line in one.lines if line[0] == RAISED}
        serials = [line[2] for line in one.lines if line[0] in (WON, LOST, RAISED)]
        if one.died:
            excused.add(max(serials, default=0) + 1)
        won = {line[2]: line[1] for line in one.lines if line[0] == WON}
        faults += [f"{one.writer} {line[1]}" for line in one.lines if line[0] == BROKEN]
        for line in one.lines:
            numbers[line[0]] += 1
            if line[0] == RAISED:
                numbers[f"raised {line[3]} {line[4]}"] += 1
        for serial, token in won.items():
            claims.setdefault(token, []).append((one.writer, serial))
            if authors.get(token) != (one.writer, serial):
                faults.append(f"{one.writer} won {token} with its try {serial}, which holds {authors.get(token)}")
        for token, (writer, serial) in authors.items():
            if writer == one.writer and serial not in won:
                unreported = serial > max(serials, default=0)
                numbers["published, then died" if unreported else "published and raised"] += 1
                if serial not in excused:
                    faults.append(f"{token} holds try {serial} of {writer}, which got the result that it lost")
    faults += [f"{token} was won by {len(winners)}: {winners}" for token, winners in claims.items() if len(winners) > 1]
    strangers = {writer for writer, _ in authors.values()} - {one.writer for one in writers}
    faults += [f"generations by unknown writers {strangers}"] if strangers else []
    numbers["died"] = sum(one.died for one in writers)
    return result


def _check_generations(listing: Iterable[list[Any]], tokens: int, result: Audit) -> dict[int, tuple[str, int]]:
    """Return the author and its try of each token, having compared names, headers and counters."""
    authors: dict[int, tuple[str, int]] = {}
    nonces: Counter[str] = Counter()
    for name, header, value in listing:
        if name.startswith("."):
            result.numbers["temporaries left"] += 1
        elif value is not None:
            token = int(name.removesuffix(".json"))
            nonces[header["nonce"]] += 1
            if token in authors:
                result.faults.append(f"{name} is listed twice")
            if header["token"] != token or value["counter"] != token:
                result.faults.append(f"{name} holds token {header['token']}, counter {value['counter']}")
            authors[token] = (value["writer"], value["serial"])
    result.faults += [f"nonce {nonce} is in {times} generations" for nonce, times in nonces.items() if times > 1]
    if set(authors) != set(range(1, tokens + 1)):
        result.faults.append(
            f"expected generations 1 to {tokens}, found {len(authors)}, up to {max(authors, default=0)}"
        )
    return authors


if __name__ == "__main__":
    verb, place, *rest = sys.argv[1:]
    if verb == "write":
        write(place, rest[0], int(rest[1]), int(rest[2]), float(rest[3]))
    else:
        generations(place)
