"""The error file of a launcher above `ftslurm run` (`TORCHELASTIC_ERROR_FILE`): the first failure, in torch's form."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress

from ftslurm.failures.recordfile import NAME, SIZE_LIMIT, read_file
from ftslurm.records.codec import BadFile
from ftslurm.records.state import Failure, State
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.rundir import RunDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def tell_parent(run_dir: str, environment: Mapping[str, str]) -> str | None:
    """Write the run's first failure for the launcher of this process, as torchrun does for its own.

    Returns:
        Why it could not be written; None: it was, or there is nothing to write or no such launcher.
    """
    path = environment.get(VARIABLE)
    if not path:
        return None
    try:
        newest = FencedCell(PosixFileSystem(owner=os.geteuid()), RunDirectory(run_dir).state).get()
        state = State.decode(newest.value, run_dir) if newest is not None else None
        failure = None if state is None else first_failure(state)
        if failure is None:
            return None
        content = error_content(failure, _record_of(run_dir, failure))
        temporary = f"{path}.{os.getpid()}"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except (OSError, BadFile) as error:
        return f"{VARIABLE}={path} is not written: {(isinstance(error, OSError) and error.strerror) or error}"
    return None


def first_failure(state: State) -> Failure | None:
    """Return the first failure of the round that ended the run (pure); None: it did not fail, or not by a rank."""
    if state.closed is None or not state.closed.exit_code or not state.history:
        return None
    return state.history[-1].failure


def error_content(failure: Failure, record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the file's content (pure).

    Args:
        record: the content of the rank's own error file; None: it has none.
    """
    if record is not None and isinstance(record.get("message"), (dict, str)):
        return {"message": record["message"]}
    text = f"rank {failure.rank} on {failure.node}: {failure.message}"
    message: dict[str, Any] = {"message": text, "extraInfo": {"timestamp": str(failure.time_ns // 1_000_000_000)}}
    if failure.exit_code is not None:
        message["errorCode"] = failure.exit_code
    return {"message": message}


def _record_of(run_dir: str, failure: Failure) -> dict[str, Any] | None:
    path = os.path.join(RunDirectory(run_dir).rank(failure.round, failure.rank), NAME)
    try:
        value = json.loads(read_file(path, SIZE_LIMIT))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
