"""What the programs of the corpus share: ranks that take steps together, and one of them that comes to harm.

`train(harm)` reports steps up to 7; then one rank calls its harm, and the others wait for it: each alone, or, with
CORPUS_CASCADE=1, on a connection to that rank, so that its end breaks them as gloo's peers break.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

import ftslurm

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ROUND = int(os.environ["FTSLURM_ROUND"])
HARMED = int(os.environ.get("CORPUS_RANK", "2"))
CASCADE = os.environ.get("CORPUS_CASCADE") == "1"
STEP = 7
LINK = "link.sock"
# As gloo says it where a peer has gone.
BROKEN = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:41873"


def train(harm: Callable[[], object], wait: Callable[[], object] | None = None, beat: bool = False) -> None:
    """Take steps, then come to harm or wait for the rank that does; after a restart, end well.

    Args:
        harm: what happens to rank CORPUS_RANK.
        wait: what the others do meanwhile, in place of a wait that only the end of the round ends.
        beat: send heartbeats.
    """
    for step in range(STEP + 1):
        ftslurm.progress(step)
        if beat:
            ftslurm.heartbeat()
    if ROUND > 1:
        return
    links = connect() if CASCADE else []
    if RANK == HARMED:
        if os.environ.get("CORPUS_WRAPPING"):
            from wrappings import wrapped  # here, for it imports much

            harm = wrapped(harm)
        harm()
    elif wait is not None:
        wait()
    else:
        all_reduce(links, beat)


def connect() -> list[socket.socket]:
    """Connect all ranks to the harmed one."""
    if RANK == HARMED:
        server = socket.socket(socket.AF_UNIX)
        server.bind(LINK + ".tmp")
        server.listen(WORLD)
        os.rename(LINK + ".tmp", LINK)
        return [server.accept()[0] for _ in range(WORLD - 1)]
    while not os.path.exists(LINK):
        time.sleep(0.005)
    client = socket.socket(socket.AF_UNIX)
    client.connect(LINK)
    return [client]


def all_reduce(links: list[socket.socket], beat: bool = False) -> None:
    """Wait for the harmed rank; it never comes."""
    if not links:
        while True:
            if beat:
                ftslurm.heartbeat()
            time.sleep(0.05)
    try:
        gone = links[0].recv(1) == b""
    except OSError:
        gone = True
    if gone:
        raise RuntimeError(BROKEN)


def log(text: str) -> None:
    """Print a line as logging does: on stderr."""
    print(text, file=sys.stderr, flush=True)
