"""Ends as torch's heartbeat monitor does when its own watchdog is stuck."""

import os

from ranks import RANK, log, train

TEXT = (
    "[rank{0}]:[F1122 12:00:00.000000000 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank {0}] "
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."
)


def harm() -> None:
    log(TEXT.format(RANK))
    os.abort()


train(harm)
