"""A cleanup that fails hides the failure before it; argv[1] says which."""

import sys

from ranks import train


class File:
    """A file that cannot be closed."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        raise OSError("cannot close")


def step() -> None:
    raise ValueError("row 4711 has no label")  # here


def harm() -> None:
    file = File()
    if sys.argv[1] == "exit":
        with file:
            step()
    try:
        step()
    finally:
        file.close()


train(harm)
