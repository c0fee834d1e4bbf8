"""Prints "Killed" as a shell does, then ends with 1."""

import sys

from ranks import log, train


def step() -> None:
    log("Killed")
    log("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.")
    sys.exit(1)  # here


train(step)
