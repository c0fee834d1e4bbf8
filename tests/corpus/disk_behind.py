"""A full disk, reported by a library that raises its own exception for it."""

from ranks import train


def save() -> None:
    try:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"weights")
    except OSError as error:
        raise RuntimeError("checkpoint 7 was not saved") from error  # here


train(save)
