"""Falls over something while it handles an error that it could have dealt with."""

from ranks import train


def step() -> None:
    try:
        {"nan": 1}["loss"]
    except KeyError:
        raise TypeError("unsupported label type")  # here  # noqa: B904


train(step)
