"""A process of its own that chooses the CPUs of a node's ranks: ``MODE COUNT``; the driver that it asks may hang.

Prints JSON: of each local rank its CPUs, or why it has none; or the reason for all.
"""

from __future__ import annotations

import json
import os
import sys

from ftslurm.numa.choice import choose
from ftslurm.numa.topology import NoGpus, gpu_addresses, numa_nodes, read_topology
from ftslurm.text import plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(mode: str, count: int) -> Sequence[frozenset[int] | str] | str:
    """Return what this program prints.

    Args:
        mode: one of `ftslurm.numa.choice.MODES`.
        count: number of workers on this node.
    """
    allowed = frozenset(os.sched_getaffinity(0))
    try:
        gpus = gpu_addresses()
    except NoGpus as problem:
        return str(problem)
    chosen = choose(mode, numa_nodes(gpus), read_topology(mode, allowed), allowed)
    return [*chosen, *[f"CUDA finds only {plural(len(gpus), 'GPU')}"] * (count - len(gpus))][:count]


if __name__ == "__main__":
    try:
        answer = main(sys.argv[1], int(sys.argv[2]))
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer, default=sorted), flush=True)
    # The driver's own end may hang, too.
    os._exit(0)
