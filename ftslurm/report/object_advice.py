"""Advice on objects that a file has, or another process sent, and on classes that hide their own errors (pure)."""

from __future__ import annotations

from ftslurm.pattern import pattern
from ftslurm.records.error import HAS_PROPERTY
from ftslurm.report.failed_worker import FailedWorker

_OF_FILES = pattern(r"/(?:torch/serialization|pickle|joblib/numpy_pickle)\.py$")
_OF_PROCESSES = pattern(r"/multiprocessing/(?:connection|queues)\.py$")
_PROPERTY = pattern(rf"\S{{1,200}} {HAS_PROPERTY} \S{{1,200}}")
_MISSING = pattern(r"No module named '(?P<name>\w+)|Can't get attribute '")
_OF_NUMPY = ("numpy",)  # a file that another version of it has written
_NO_ARGUMENT = pattern(r"\w+\.__init__\(\) missing \d+ required (?:positional|keyword)")


def advice_on_object(worker: FailedWorker) -> str:
    """Return advice on an error that comes from an object's class, or is hidden by it; empty: it is none."""
    raised = worker.exception
    if raised is None or not worker.frames:
        return ""
    if _of_pickle(worker):
        return "The file holds objects of that module, not only tensors: put it on PYTHONPATH, or save a state_dict."
    note = next((note for note in raised.notes if _PROPERTY.fullmatch(note)), "")
    if note and raised.type == "AttributeError":
        return f"{note}, in which an AttributeError was raised that __getattr__ hides: call it by itself to see that."
    if _NO_ARGUMENT.match(raised.message) and _OF_PROCESSES.search(worker.frames[-1].file):
        return "This exception's class cannot be unpickled here: give all its arguments to super().__init__, too."
    return ""


def _of_pickle(worker: FailedWorker) -> bool:
    """Return whether a module, or a name in it, is missing that an object in a file has."""
    if worker.exception is None or worker.exception.type not in ("ModuleNotFoundError", "AttributeError"):
        return False
    missing = _MISSING.match(worker.exception.message)
    # Another one is missing where the file's own module, which is there, imports it.
    return missing is not None and missing["name"] not in _OF_NUMPY and bool(_OF_FILES.search(worker.frames[-1].file))
