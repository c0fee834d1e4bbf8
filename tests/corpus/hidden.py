"""A program that logs its exception and ends itself, as Hydra does; argv[1] says by what."""

import logging
import sys

from ranks import train

EXIT = {"code": 1, "another-code": 3, "text": "giving up: see the log"}[sys.argv[1]]


def load(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise RuntimeError(f"no sample in {path}") from error  # here


def harm() -> None:
    try:
        load("data/train-00007.parquet")
    except Exception:
        logging.exception("training failed")
        sys.exit(EXIT)


train(harm)
