"""More memory than the cgroup has: the kernel kills this process."""

from ranks import train

KEPT = []


def allocate() -> None:
    while True:
        KEPT.append(b"x" * (8 << 20))


train(allocate)
