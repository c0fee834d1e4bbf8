"""Reads records of a run directory as the report does, in the same bounded way, and does nothing with them.

All that there are: `report_reader.py DIRECTORY`. Those that the report itself reads: `report_reader.py DIRECTORY LIST`,
where `report_reader.py DIRECTORY LIST --write` has written their names.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ftslurm.report.gathering import _published, _Reader, gather
from ftslurm.sharedfs import bounded_read as reading

READER = "ftslurm.report.record_reader"


def read_all(directory: Path) -> int:
    """Read nodes/, and nodes and error records of all rounds; return how many bytes those were."""
    reader = _Reader(directory, os.stat(directory).st_uid)
    size = 0
    for number in reader.round_numbers():
        parent = directory / "rounds" / f"{number:06d}"
        names = [f"{rank:05d}/error.json" for rank in reader.ranks(number)]
        places = [(parent / "nodes", _published(reader.listing(parent / "nodes")[0])), (parent / "ranks", names)]
        for place, wanted in [(directory / "nodes", _published(reader.listing(directory / "nodes")[0])), *places]:
            size += sum(len(data) for _, data in reader.contents(place, wanted))
    return size


def read_listed(directory: Path, names: Sequence[str]) -> int:
    """Read these files; return how many bytes they were."""
    folders: dict[str, list[str]] = {}
    for name in names:
        folder = name.split("/ranks/")[0] + "/ranks" if name.endswith("/error.json") else os.path.dirname(name)
        folders.setdefault(folder, []).append(os.path.relpath(name, folder or "."))
    reader = _Reader(directory, os.stat(directory).st_uid)
    return sum(
        len(data) for folder, wanted in folders.items() for _, data in reader.contents(directory / folder, wanted)
    )


def listed(directory: Path) -> list[str]:
    """Return the names of the files that a report of that run reads whole."""
    from unittest import mock

    names: list[str] = []

    def noted(path: Path | str, limit: int, owners: frozenset[int], dir_fd: int | None = None) -> bytes | None:
        folder = str(directory) if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        data = reading.read_file(path, limit, owners, dir_fd)
        if data is not None:
            names.append(os.path.relpath(os.path.join(folder, path), os.path.realpath(directory)))
        return data

    with mock.patch(f"{READER}.read_file", noted):
        gather(directory.resolve(), now_ns=time.time_ns())
    return names


def main(arguments: Sequence[str]) -> int:
    """Read, and print how many bytes."""
    directory = Path(arguments[0])
    if len(arguments) == 1:
        print(read_all(directory))
    elif len(arguments) == 2:
        print(read_listed(directory, Path(arguments[1]).read_text().splitlines()))
    else:
        Path(arguments[1]).write_text("\n".join(listed(directory)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
