"""A module is missing, the program does without it and ends itself much later, for another reason."""

import sys

from ranks import train


def harm() -> None:
    sys.exit(3)  # here


def train_without_it() -> None:
    train(harm)


try:
    import no_such_module_at_all  # noqa: F401
except ImportError:
    train_without_it()
