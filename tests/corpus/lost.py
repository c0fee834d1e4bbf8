"""A node's agent is killed: alone ("agent"), or with its guardian, as when the whole node dies ("node")."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from ranks import train


def die() -> None:
    word = Path(os.environ["FTSLURM_RUN_DIR"], "nodes", "local1.json")
    agent = json.loads(word.read_text())["pid"]
    guardian = int(Path(f"/proc/{agent}/stat").read_text().rpartition(") ")[2].split()[1])
    if sys.argv[1] == "node":
        os.kill(guardian, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    time.sleep(60)


train(die)
