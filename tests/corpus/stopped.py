"""A rank that was stopped by a signal."""

import os
import signal

from ranks import train

train(lambda: os.kill(os.getpid(), signal.SIGSTOP), beat=True)
