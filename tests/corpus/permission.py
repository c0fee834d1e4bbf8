"""A file of another user; root drops its right to read everything."""

import os

from ranks import train


def read() -> None:
    os.close(os.open("secret", os.O_CREAT | os.O_WRONLY, 0))
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        open("secret")  # here
    finally:
        if root:
            os.seteuid(0)


train(read)
