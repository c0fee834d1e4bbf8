"""An assertion without a message."""

from ranks import train


def check(labels: int) -> None:
    assert labels == 4711  # here


train(lambda: check(0))
