"""The limit of CPU time (ulimit -t)."""

import resource

from ranks import train


def compute() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (1, 10))
    while True:
        pass


train(compute)
