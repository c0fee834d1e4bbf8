"""Another process kills this one."""

import os
import subprocess
import time

from ranks import train


def wait() -> None:
    subprocess.Popen(["sh", "-c", f"kill -9 {os.getpid()}"])
    time.sleep(60)


train(wait)
