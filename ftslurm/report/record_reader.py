"""Read the records of a run directory one by one, bounded; an unusable file becomes a `Problem`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from ftslurm.records.codec import BadFile, record_in
from ftslurm.report.facts import Problem
from ftslurm.sharedfs.bounded_read import (
    Malformed,
    list_directory,
    open_folder,
    parse_json,
    read_file,
    read_in_parallel,
)

KIB = 1024
RECORD_LIMIT = 1024 * KIB
PROBLEMS_KEPT = 1000

Fact = TypeVar("Fact")


class RecordReader:
    """Reads files of one run directory.

    Args:
        directory: the run directory.
        owner: the uid of the run's user; files of others are not read.

    Attributes:
        problems: the first `PROBLEMS_KEPT` ones.
    """

    def __init__(self, directory: Path, owner: int) -> None:
        self.directory = directory
        # An administrator placed root's files on purpose.
        self.owners = frozenset((owner, 0))
        self.problems: list[Problem] = []

    def problem(self, path: Path, reason: str) -> None:
        """Note a problem with a file."""
        if len(self.problems) >= PROBLEMS_KEPT:
            return
        name = os.path.relpath(path, self.directory) if path.is_relative_to(self.directory) else str(path)
        self.problems.append(Problem(name, reason))

    def listing(self, path: Path) -> tuple[list[str], list[str]]:
        """Return the names of the files and of the folders in a folder."""
        try:
            return list_directory(path)
        except Malformed as error:
            self.problem(path, str(error))
            return [], []

    def content(self, path: Path, limit: int) -> bytes | None:
        """Return a file's content; None: there is none.

        Raises:
            Malformed: it is longer than the limit in bytes, or unusable otherwise.
        """
        return read_file(path, limit, self.owners)

    def record(self, path: Path, cls: type[Fact], limit: int) -> Fact | None:
        """Return the decoded file; None: there is none, or it is unusable."""
        try:
            data = self.content(path, limit)
            return None if data is None else self.decoded(path, cls, parse_json(data))
        except Malformed as error:
            self.problem(path, str(error))
            return None

    def records(self, parent: Path, names: Sequence[str], cls: type[Fact]) -> Iterable[tuple[str, Fact]]:
        """Yield the decoded files ``names`` of a folder, with their names; unusable ones are omitted."""
        for name, data in self.contents(parent, names):
            try:
                yield name, self.decoded(parent / name, cls, parse_json(data))
            except Malformed as error:
                self.problem(parent / name, str(error))

    def decoded(self, path: Path, cls: type[Fact], value: object) -> Fact:
        """Return a record; of a damaged one what can be used, with a line that names the damage."""
        try:
            return record_in(cls, value, "it")
        except BadFile as error:
            reason = str(error).removeprefix("it: ")
        try:
            record = record_in(cls, value, "it", lenient=True)
        except BadFile:
            raise Malformed(reason) from None
        self.problem(path, reason)
        return record

    def contents(self, parent: Path, names: Sequence[str], limit: int = RECORD_LIMIT) -> Iterable[tuple[str, bytes]]:
        """Yield the contents of files by their names, relative to ``parent``; in the order given."""

        def read(name: str) -> bytes | Malformed | None:
            try:
                return read_file(name, limit, self.owners, folder)
            except Malformed as error:
                return error

        if not names:
            return
        try:
            folder = open_folder(parent)
        except Malformed as error:
            self.problem(parent, str(error))
            return
        if folder is None:
            return
        try:
            for name, data in zip(names, read_in_parallel(read, names), strict=True):
                if isinstance(data, bytes):
                    yield name, data
                elif data is not None:
                    self.problem(parent / name, str(data))
        finally:
            os.close(folder)
