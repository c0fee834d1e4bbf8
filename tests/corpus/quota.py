"""An exceeded quota; constructed, for no filesystem here has one that holds for root."""

import errno
import os

from ranks import train


def save() -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/home/ann/checkpoint-7.pt")  # here


train(save)
