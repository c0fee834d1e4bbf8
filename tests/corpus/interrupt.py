"""A KeyboardInterrupt that nobody outside asked for."""

import os
import signal
import time

from ranks import train


def wait() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)  # here
    time.sleep(1)


train(wait)
