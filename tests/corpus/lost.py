"""A node's agent is killed: alone ("agent"), or with its guardian, as when the whole node dies ("node").

With "sockets" behind it the other ranks have connections of their own to it, and fail by those, not by torch's.
"""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from ranks import connect, train

SOCKETS = "sockets" in sys.argv[2:]


def die() -> None:
    links = connect() if SOCKETS else []  # noqa: F841
    record = Path(os.environ["FTSLURM_RUN_DIR"], "nodes", "local1.json")
    agent = json.loads(record.read_text())["pid"]
    guardian = int(Path(f"/proc/{agent}/stat").read_text().rpartition(") ")[2].split()[1])
    # The guardian is stopped first, so that it cannot report its agent's end; this rank ends with its agent.
    both = f"kill -STOP {guardian}; kill -9 {agent} {guardian}"
    subprocess.Popen(["sh", "-c", both if sys.argv[1] == "node" else f"kill -9 {agent}"], start_new_session=True)
    time.sleep(60)


def wait() -> None:
    (link,) = connect()
    if link.recv(1) == b"":
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


train(die, wait if SOCKETS else None)
