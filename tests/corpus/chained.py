"""An exception raised from another one."""

from ranks import train


def load() -> None:
    try:
        {"train": 1}["valid"]
    except KeyError as error:
        raise RuntimeError("cannot load the sample") from error  # here


train(load)
