"""An allocation over the limit of the address space (ulimit -v)."""

import resource

from ranks import train


def allocate() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(8 << 30)  # here


train(allocate)
