"""A rank that sleeps where it should step: no heartbeat of it comes."""

import time

from ranks import train


def fetch() -> None:
    time.sleep(600)  # here


train(fetch, beat=True)
