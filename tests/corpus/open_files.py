"""No more file descriptors (ulimit -n)."""

import resource

from ranks import train

KEPT = []


def open_all() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    while True:
        KEPT.append(open("/dev/null"))  # here


train(open_all)
