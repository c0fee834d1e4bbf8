"""A port that another process holds, by torch's own store."""

import socket
from datetime import timedelta

from ranks import train


def serve() -> None:
    from torch.distributed import TCPStore

    first = socket.socket()
    first.bind(("127.0.0.1", 0))
    first.listen()
    TCPStore("127.0.0.1", first.getsockname()[1], 1, True, timeout=timedelta(seconds=5))  # here


train(serve)
