"""What real programs put around a failure: the report must see through each of them.

`WRAPPINGS` maps a name to a function of the failing function; CORPUS_WRAPPING names the one that `ranks.train` applies.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable

Harm = Callable[[], object]
HARM: list[Harm] = []  # a pool's process finds it here: closures cannot be pickled


class TrainingError(Exception):
    """Of a trainer that raises all failures as its own."""


def logged_exit(harm: Harm) -> None:
    """As Hydra and many main functions do."""
    try:
        harm()
    except Exception:
        logging.exception("training failed")
        sys.exit(1)


def hard_exit(harm: Harm) -> None:
    """As programs do whose threads would keep them alive."""
    try:
        harm()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def raised_from(harm: Harm) -> None:
    """As Lightning, Ray and Accelerate raise errors of their own."""
    try:
        harm()
    except Exception as error:
        raise TrainingError("training failed") from error


def raised_anew(harm: Harm) -> None:
    """A cleanup in an except block that fails as well."""
    try:
        harm()
    except Exception:
        raise TrainingError("cannot save the last checkpoint")  # noqa: B904


def failing_finally(harm: Harm) -> None:
    """A cleanup in a finally block that fails as well."""
    try:
        harm()
    finally:
        raise TrainingError("cannot close the tracker")


def group(harm: Harm) -> None:
    """As asyncio's task groups do."""
    try:
        harm()
    except Exception as error:
        raise ExceptionGroup("unhandled errors in a TaskGroup", [error]) from None  # noqa: F821 (Python 3.11)


def thread(harm: Harm) -> None:
    """A thread dies, and the main thread ends the program."""
    failed = []

    def body() -> None:
        try:
            harm()
        except BaseException:
            failed.append(True)
            raise

    worker = threading.Thread(target=body, name="trainer")
    worker.start()
    worker.join()
    sys.exit(1 if failed else 0)


def future(harm: Harm) -> None:
    """A thread pool hands the exception on."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(harm).result()


def _of_pool() -> None:
    HARM[0]()


def process_pool(harm: Harm) -> None:
    """A process hands on the exception and, as text, its traceback."""
    HARM[:] = [harm]
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        pool.submit(_of_pool).result()


def child(harm: Harm) -> None:
    """A launcher of the user's own: the training is its child process."""
    environment = {**os.environ, "CORPUS_WRAPPING": ""}
    subprocess.run([sys.executable, *sys.argv], env=environment, check=True)


def captured_child(harm: Harm) -> None:
    """The same, with its output captured."""
    environment = {**os.environ, "CORPUS_WRAPPING": ""}
    subprocess.run([sys.executable, *sys.argv], env=environment, check=True, capture_output=True, text=True)


def passed_code(harm: Harm) -> None:
    """The same, ending with the child's exit code."""
    environment = {**os.environ, "CORPUS_WRAPPING": ""}
    sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode)


def progress_bar(harm: Harm) -> None:
    """A progress bar's last state has no newline."""
    for done in range(44, 46):
        sys.stderr.write(f"\r {done}%|####      | {done}/100 [00:01<00:01, 33.1it/s]")
    sys.stderr.flush()
    harm()


def noise_before(harm: Harm) -> None:
    """Warnings, and an exception that was handled long before."""
    try:
        {}["cached tokenizer"]
    except KeyError:
        logging.exception("no cached tokenizer, building a new one")
    for number in range(40):
        print(f"WARNING:root:slow batch {number}: 1.2 s", file=sys.stderr, flush=True)
    harm()


def noise_after(harm: Harm) -> None:
    """A tracker that prints its summary when the program ends."""
    atexit.register(lambda: print("\n".join(f"wandb: metric {n} ▁▂▄█ 0.{n}" for n in range(30)), file=sys.stderr))
    harm()


WRAPPINGS: dict[str, Callable[[Harm], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        logged_exit,
        hard_exit,
        raised_from,
        raised_anew,
        failing_finally,
        group,
        thread,
        future,
        process_pool,
        child,
        captured_child,
        passed_code,
        progress_bar,
        noise_before,
        noise_after,
    )
}


def wrapped(harm: Harm) -> Harm:
    """Return the failing function within the wrapping of CORPUS_WRAPPING."""
    return lambda: WRAPPINGS[os.environ["CORPUS_WRAPPING"]](harm)
