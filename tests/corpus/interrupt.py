"""A KeyboardInterrupt without a signal from outside."""

import os
import signal
import time

from ranks import train


def wait() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)  # here
    time.sleep(1)


train(wait)
