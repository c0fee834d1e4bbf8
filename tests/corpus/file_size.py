"""A limit on the size of files (ulimit -f)."""

import resource

from ranks import train


def save() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with open("checkpoint-7.pt", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)  # here


train(save)
