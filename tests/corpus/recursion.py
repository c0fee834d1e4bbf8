"""A recursion without an end."""

from ranks import train


def walk(depth: int) -> int:
    return walk(depth + 1) + 1  # here


train(lambda: walk(0))
