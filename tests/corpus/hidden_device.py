"""What broke is the GPU, the network or the storage, and the program ends itself because of it; argv[1] says which."""

import errno
import os
import sys

from ranks import train

BROKEN = {
    "gpu": RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    "network": OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH)),
    "storage": OSError(errno.EIO, os.strerror(errno.EIO), "/data/shard-7"),
}


def harm() -> None:
    try:
        raise BROKEN[sys.argv[1]]  # here
    except Exception:
        sys.exit(1)


train(harm)
