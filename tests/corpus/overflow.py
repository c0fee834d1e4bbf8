"""A FloatingPointError, as numpy and others raise it."""

from ranks import train


def check() -> None:
    raise FloatingPointError("overflow encountered in exp")  # here


train(check)
