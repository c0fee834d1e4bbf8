"""Reads all records of a run directory as the report does, in the same bounded way, and does nothing with them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ftslurm.report.gather import _published, _Reader


def main(directory: Path) -> int:
    """Read nodes/, and nodes and error records of all rounds; return how many bytes those were."""
    reader = _Reader(directory, os.stat(directory).st_uid)
    size = 0
    for number in reader.round_numbers():
        parent = directory / "rounds" / f"{number:06d}"
        names = [f"{rank:05d}/error.json" for rank in reader.ranks(parent / "ranks")]
        places = [(parent / "nodes", _published(reader.listing(parent / "nodes")[0])), (parent / "ranks", names)]
        for place, wanted in [(directory / "nodes", _published(reader.listing(directory / "nodes")[0])), *places]:
            size += sum(len(data) for _, data in reader.contents(place, wanted))
    return size


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
