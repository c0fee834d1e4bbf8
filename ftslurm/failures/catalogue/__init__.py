"""The catalogue of causes: one row each.

Rows are tried in order and the first match wins, so special rows precede general ones. Claims beyond the match need
proof: a bare SIGKILL is no out-of-memory kill without a counter's or the scheduler's evidence.
"""

from __future__ import annotations

from ftslurm.failures.catalogue import (
    devices,
    distributed,
    ends,
    files,
    memory,
    outside,
    script,
    services,
    toolchain,
)
from ftslurm.failures.catalogue.cause import (
    CASCADE,
    GPU,
    NETWORK,
    OLDER_CHECKPOINT,
    OTHER_NODE,
    POINTLESS,
    PRIMARY,
    RESTARTS,
    SAME_NODE,
    Cause,
)

PARTS: tuple[tuple[str, tuple[Cause, ...]], ...] = (
    ("Outside the workers", outside.ROWS),
    ("torch.distributed and NCCL", distributed.ROWS),
    ("GPUs and other accelerators", devices.ROWS),
    ("External services", services.ROWS),
    ("Libraries and compilers", toolchain.ROWS),
    ("Memory, processes, data loaders", memory.ROWS),
    ("The script at its start", script.START),
    ("Files and checkpoints", files.ROWS),
    ("The script", script.ROWS),
    ("Ends of which no more is known", ends.ROWS),
)
"""The rows by their kinds, in the order of the match."""

ROWS: tuple[Cause, ...] = tuple(row for _, rows in PARTS for row in rows)

__all__ = ["CASCADE", "GPU", "NETWORK", "OLDER_CHECKPOINT", "OTHER_NODE", "POINTLESS", "PRIMARY", "RESTARTS", "ROWS"]
__all__ += ["PARTS", "SAME_NODE", "Cause"]
