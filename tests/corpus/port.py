"""A port that another process holds."""

import socket

from ranks import train


def serve() -> None:
    first, second = socket.socket(), socket.socket()
    first.bind(("127.0.0.1", 0))
    first.listen()
    second.bind(first.getsockname())  # here


train(serve)
