"""Prints the traceback of an error that it survived, goes on, and ends itself for another reason; argv[1] says how."""

import logging
import os
import sys

from ranks import log, train


def harm() -> None:
    try:
        raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    except MemoryError:
        logging.exception("batch 12 is too large, halving it")
    log("step 8 loss 3.14")
    if sys.argv[1] == "exit":
        sys.exit(3)  # here
    os._exit(3)


train(harm)
