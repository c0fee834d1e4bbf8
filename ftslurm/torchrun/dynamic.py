"""`--rdzv-conf protocol=dynamic`: torch's own dynamic rendezvous, its state in the shared directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch.distributed import FileStore
from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.torchrun.backend import SharedFSBackend
from ftslurm.torchrun.options import DYNAMIC, WrongOption

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler

    from ftslurm.torchrun.endpoint import Endpoint


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
