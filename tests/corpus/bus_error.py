"""A mapped file on a filesystem that has no room for its pages: argv[1] is a directory on it."""

import mmap
import os
import sys

from ranks import train


def share() -> None:
    fd = os.open(f"{sys.argv[1]}/batch", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, 8 << 20)
    page = mmap.mmap(fd, 8 << 20)
    for at in range(0, 8 << 20, 4096):
        page[at] = 1  # here


train(share)
