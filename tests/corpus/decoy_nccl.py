"""Warns of NCCL, then ends itself."""

import sys
import warnings

from ranks import log, train


def step() -> None:
    warnings.warn("NCCL error: unhandled system error, ncclSystemError; Connection reset by peer", stacklevel=1)
    log("[W] ProcessGroupNCCL: Watchdog caught collective operation timeout")
    sys.exit(3)  # here


train(step)
