"""`--rdzv-conf protocol=dynamic`: torch's own dynamic rendezvous, its state in the shared directory.

`SharedFSBackend` is torch's contract of a backend on the fenced cell. torch's handler unpickles its state. It gets
bytes only from a generation of the cell: a plain file of this user, in the cell's format, named by its own token,
published by an exclusive link.
"""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

from torch.distributed import FileStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousParameters,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, create_handler

from ftslurm.records.codec import BadFile
from ftslurm.sharedfs.cell import KEPT, FencedCell, Versioned
from ftslurm.sharedfs.filesystem import FileTooLarge, PosixFileSystem
from ftslurm.sharedfs.ownership import ForeignFile
from ftslurm.torchrun.options import DYNAMIC, WrongOption

if TYPE_CHECKING:
    from ftslurm.torchrun.endpoint import Endpoint

NAME = "sharedfs"


def create_dynamic_handler(params: RendezvousParameters, endpoint: Endpoint) -> RendezvousHandler:
    """Return torch's handler on a `SharedFSBackend`; its agents also exchange their ranks through a file there.

    Raises:
        WrongOption: the directory cannot be used.
    """
    directory = os.path.join(endpoint.run.root, DYNAMIC, endpoint.attempts(0))
    fs = PosixFileSystem(owner=os.geteuid())
    try:
        fs.makedirs(os.path.join(directory, "state"))
        _check_private(directory)
        store = FileStore(os.path.join(directory, "store"))
    except (OSError, RuntimeError) as error:
        raise WrongOption(f"--rdzv-endpoint: {directory} cannot be used: {error}") from None
    # If agents share their store, torch (at least 2.13) does not pass it to a new node while rank 0 stays the same
    # agent: the node waits for MASTER_ADDR until its store's timeout, and the job fails.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # The address of the workers' store: torch itself would call getfqdn, see `endpoint`.
    own_params = RendezvousParameters(
        params.backend,
        params.endpoint,
        endpoint.run_id,
        params.min_nodes,
        params.max_nodes,
        endpoint.address,
        **params.config,
    )
    return create_handler(store, SharedFSBackend(FencedCell(fs, os.path.join(directory, "state"))), own_params)


def _check_private(directory: str) -> None:
    """Raise `OSError` unless only this user can write the directory (`open_run` has checked the run's own)."""
    for path in (os.path.dirname(directory), directory, os.path.join(directory, "state")):
        facts = os.stat(path, follow_symlinks=False)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise PermissionError(1, f"others may write to it (uid {facts.st_uid}, mode {facts.st_mode & 0o7777:04o})")


class SharedFSBackend(RendezvousBackend):  # type: ignore[misc]
    """Holds torch's rendezvous state in a directory that all nodes share.

    Args:
        cell: the fenced cell; its filesystem must refuse files of other users.
    """

    def __init__(self, cell: FencedCell) -> None:
        self._cell = cell
        self._newest = 0

    @property
    def name(self) -> str:
        """Return "sharedfs"."""
        return NAME

    def get_state(self) -> tuple[bytes, Any] | None:
        """Return the state and its fencing token, None before the first.

        Raises:
            RendezvousConnectionError: the shared directory cannot be read.
            RendezvousStateError: the newest generation is damaged, or belongs to another user.
        """
        return _pair(self._get())

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Publish `state` if `token` is the newest one (None: if there is no state yet).

        Returns:
            The newest state, its token, and whether it is this caller's; None without a state (`token` was never
                issued).

        Raises:
            RendezvousConnectionError, RendezvousStateError: as `get_state`; whether it was published is unknown.
        """
        if token is not None and not self._is_issued(token):
            return _answer(self._get())
        try:
            newest, won = self._cell.set(_as_json(state), token)
        except Exception as error:
            raise _translated(error) from error
        self._newest = max(self._newest, newest.token)
        if won:
            self._cell.retire(newest.token - KEPT)
        return _from_json(newest.value), newest.token, won

    def _is_issued(self, token: object) -> bool:
        """Return whether this token was ever issued: a larger one would leave a gap in the tokens."""
        if not isinstance(token, int) or isinstance(token, bool) or token < 1:
            return False
        if token > self._newest:
            self._get()
        return token <= self._newest

    def _get(self) -> Versioned | None:
        try:
            newest = self._cell.get()
        except Exception as error:
            raise _translated(error) from error
        if newest is not None:
            self._newest = max(self._newest, newest.token)
        return newest


def _as_json(state: bytes) -> bytes:
    """Return torch's pickled state as a JSON text."""
    return b'"%s"' % base64.b64encode(state)


def _from_json(value: bytes) -> bytes:
    """Return torch's state.

    Raises:
        RendezvousStateError: the value is no such text.
    """
    try:
        return base64.b64decode(json.loads(value), validate=True)
    except (ValueError, TypeError) as error:
        raise RendezvousStateError(f"the rendezvous state is corrupt: expected base64 text, {error}") from None


def _pair(newest: Versioned | None) -> tuple[bytes, Any] | None:
    return None if newest is None else (_from_json(newest.value), newest.token)


def _answer(newest: Versioned | None) -> tuple[bytes, Any, bool] | None:
    return None if newest is None else (_from_json(newest.value), newest.token, False)


def _translated(error: Exception) -> Exception:
    translated = error
    if isinstance(error, BadFile | ForeignFile | FileTooLarge):
        translated = RendezvousStateError(f"the rendezvous state is corrupt: {error}")
    elif isinstance(error, OSError):
        translated = RendezvousConnectionError(f"the shared directory failed: {error}")
    return translated
