"""Causes in the script, its environment and what it checks."""

from __future__ import annotations

from ftslurm.failures.catalogue.cause import OLDER_CHECKPOINT, POINTLESS, PRIMARY, Cause
from ftslurm.failures.predicates import (
    corrupted,
    either,
    ended,
    exception,
    not_finite,
    not_importable,
    wrong_usage,
)
from ftslurm.failures.retryability import PERHAPS

_ENV = "It fails the same way every time: fix the script or its environment before submitting again."

START: tuple[Cause, ...] = (
    Cause("syntax-error", "the script cannot start", PRIMARY,
          exception("SyntaxError", "IndentationError", "TabError"), _ENV,
          proof=lambda e: e.early, not_for="text that the running script compiles", restart=POINTLESS),
    Cause("import-error", "the script cannot start", PRIMARY, not_importable, _ENV,
          proof=lambda e: e.early, not_for="an import that fails after training has begun", restart=POINTLESS),
    Cause("wrong-usage", "the script refused its arguments", PRIMARY, wrong_usage,
          "Its message is in its output; the same arguments fail the same way every time.",
          proof=lambda e: e.early, not_for="exit code 2 from elsewhere", restart=POINTLESS),
    Cause("no-stdin", "workers have no stdin", PRIMARY,
          either(exception("EOFError", text="^EOF when reading a line$"), exception("BdbQuit")),
          "Remove breakpoint() and input(): there is no terminal to answer.",
          not_for="a file that ends too early", restart=POINTLESS),
    Cause("line-ends", "the batch script has DOS line ends", PRIMARY, ended(text="^the batch script has DOS line ends"),
          "Convert it (dos2unix): the carriage return at each line's end becomes part of a command or a file's name.",
          not_for="a file that does not exist", restart=POINTLESS),
    Cause("missing-script", "the script does not exist", PRIMARY, ended(2, text="^can't open file "),
          "Check the path on this node; it is relative to the submission directory.",
          not_for="a file that the script opens", restart=POINTLESS),
    Cause("batch-script", "the batch script failed", PRIMARY, ended(text=r"\(line \d+ of the batch script\)"),
          "It failed before any rank started: see its lines above (modules, environments); set -e stops at the first.",
          not_for="a program that the script starts", restart=POINTLESS),
    Cause("missing-program", "the program cannot be started", PRIMARY, ended(126, 127, text="^cannot start "),
          "Check that it exists on this node, in PATH, and is executable.",
          not_for="a command inside the script", restart=POINTLESS),
    Cause("log-file", "a rank's log file could not be opened", PRIMARY, ended(1, text="^cannot open the log file "),
          "Check that filesystem (ftslurm doctor DIR): full, read-only or unmounted; --log-dir moves the logs.",
          not_for="a log file that the script opens"),
)  # fmt: skip

ROWS: tuple[Cause, ...] = (
    Cause("nan", "a number is not finite", PRIMARY, not_finite,
          "Check the learning rate, the batch at that step, and mixed precision; resume from an older checkpoint.",
          not_for="data that happens to hold NaN, or a function with nan in its name", restart=OLDER_CHECKPOINT),
    Cause("silent-corruption", "replicas of the model differ: suspected silent data corruption", PRIMARY, corrupted,
          "A GPU or host may compute wrongly: test the node (dcgmi diag -r 3), resume from a checkpoint before it.",
          not_for="a checksum of a downloaded file", restart=OLDER_CHECKPOINT, blame=PERHAPS),
    Cause("system-exit", "the script ended itself", PRIMARY, exception("SystemExit"),
          "Its reason is usually in the last lines of its output.", not_for="wrong usage", vague=True, silent=True),
    Cause("interrupt", "interrupted", PRIMARY, exception("KeyboardInterrupt"),
          "Not by ftslurm: a user or a tool sent SIGINT, or the program interrupted itself (_thread.interrupt_main).",
          not_for="a stop by ftslurm or Slurm"),
    Cause("exception", "Python exception", PRIMARY, lambda e: e.exception is not None or e.kind == "exception",
          not_for="an exception that was caught", vague=True),
)  # fmt: skip
