"""Atomic rename: one process renames whole files over a name, the next node reads it; no read may be torn."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Mapping

from ftslurm.dataclasses import asdict, dataclass
from ftslurm.doctor.contended import ContendedCheck, Meeting, last_value
from ftslurm.health.barrier import make_directory
from ftslurm.health.timed_filesystem import TimedFileSystem, Work
from ftslurm.health.verdict import Json, NodeFinding, node_findings
from ftslurm.records.health import FAIL, NOTE, WARN
from ftslurm.sharedfs.publish import publish

SIZES = (200, 50_000)
LIMIT = 1 << 20
MANY_ABSENT = 0.5


@dataclass(frozen=True)
class Reads:
    """One node's reads of another one's file.

    Attributes:
        writer: the node that wrote it.
        reads: tries; `changes`: tries with a newer content.
        torn: tries with an incomplete or mixed content; `example`: one of them as text.
        absent: tries without a file, although one existed all the time.
        errors: tries with another error, after ftslurm's own retries.
        backwards: tries that were older than the one before.
    """

    writer: str
    reads: int
    changes: int
    torn: int
    example: str
    absent: int
    errors: dict[str, int]
    backwards: int


def content(counter: int) -> bytes:
    """Return the content of this generation, with a checksum."""
    body = b"%d " % counter * (SIZES[counter % len(SIZES)] // (len(str(counter)) + 1))
    return b"%d %d %d\n" % (counter, len(body), zlib.crc32(body)) + body


def check(data: bytes) -> int | str:
    """Return the generation, or a description of torn content."""
    head, newline, body = data.partition(b"\n")
    fields = head.split()
    if not newline or len(fields) != 3 or not all(field.isdigit() for field in fields):
        return f"{len(data)} bytes without a header"
    counter, length, crc = map(int, fields)
    if len(body) != length:
        return f"generation {counter}: {len(body)} of {length} bytes"
    return counter if zlib.crc32(body) == crc else f"generation {counter}: {length} bytes, but not those written"


def write(fs: TimedFileSystem, path: str, seconds: float) -> Json:
    """Rename new generations over `path` until the time is over; generation 0 exists already."""
    end = time.monotonic() + seconds
    counter, failed = 0, 0
    while time.monotonic() < end:
        counter += 1
        try:
            publish(fs, path, content(counter))
        except OSError:
            failed += 1
    return {"written": counter, "failed": failed}


def read(fs: TimedFileSystem, path: str, writer: str, seconds: float) -> Json:
    """Read `path` over and over until the time is over."""
    end = time.monotonic() + seconds
    newest, reads, changes, torn, absent, backwards = -1, 0, 0, 0, 0, 0
    example = ""
    errors: dict[str, int] = {}
    while time.monotonic() < end:
        reads += 1
        try:
            fs.refresh(os.path.dirname(path))
            found = check(fs.read(path, LIMIT))
        except FileNotFoundError:
            absent += 1
            continue
        except OSError as error:
            errors[str(error.strerror)] = errors.get(str(error.strerror), 0) + 1
            continue
        if isinstance(found, str):
            torn, example = torn + 1, found
        elif found < newest:
            backwards += 1
        else:
            changes += found > newest
            newest = found
    return asdict(Reads(writer, reads, changes, torn, example, absent, errors, backwards))


def _works(meeting: Meeting, seconds: float) -> list[Work]:
    directory = meeting.session.path("renames")
    before, own, _ = meeting.neighbours()

    def rename(fs: TimedFileSystem) -> Json:
        make_directory(fs, directory)
        publish(fs, f"{directory}/{own}", content(0))
        meeting.wait(fs, "renames")
        return write(fs, f"{directory}/{own}", seconds)

    return [rename, meeting.after("renames", lambda fs: read(fs, f"{directory}/{before}", before, seconds))]


CHECK = ContendedCheck("atomic-rename", _works, last_value, share=0.15)


def judge(by_node: Mapping[str, Reads]) -> list[NodeFinding]:
    """Judge each node's reads."""
    return node_findings(CHECK.name, by_node, _judge)


def _judge(facts: Reads) -> list[tuple[str, str, str]]:
    found = []
    of_reads = f"of {facts.reads} reads of {facts.writer}'s renamed-over file"
    if facts.torn:
        advice = "rename is not atomic for readers here: do not put a run there"
        found.append((FAIL, f"{facts.torn} {of_reads} were torn (such as {facts.example})", advice))
    for text, count in facts.errors.items():
        found.append((WARN, f"{count} {of_reads} failed ({text})", "ftslurm tries again; programs that do not, fail"))
    if facts.absent > MANY_ABSENT * facts.reads:
        found.append((WARN, f"{facts.absent} {of_reads} found no file", "ftslurm tries again, and gets slower by it"))
    elif facts.absent:
        found.append((NOTE, f"{facts.absent} {of_reads} found no file", "ftslurm tries again; your programs must, too"))
    if facts.backwards:
        advice = "ftslurm's state cannot go back, its tokens only grow; your programs may need the same"
        found.append((NOTE, f"{facts.backwards} {of_reads} gave an older content than the one before", advice))
    return found
