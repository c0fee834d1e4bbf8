"""The entry point in the group `torchrun.handlers`: cheap to import, since every start of torchrun imports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters


def sharedfs() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return the factory of handlers: torch calls the entry point's function, and registers its result."""
    return create_handler


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Return the handler for `--rdzv-backend=sharedfs`.

    Args:
        params: torchrun's; `endpoint` is the shared directory, `config` the parsed `--rdzv-conf` (see `options`).

    Raises:
        WrongOption: the message is one line.
    """
    # Imported here: torch's rendezvous package is only partially imported while it loads its plugins.
    from ftslurm.torchrun.dynamic import create_dynamic_handler
    from ftslurm.torchrun.endpoint import open_endpoint
    from ftslurm.torchrun.handler import SharedFSHandler
    from ftslurm.torchrun.link import LOG
    from ftslurm.torchrun.options import DYNAMIC, ignored_options, read_options, without_quotes

    params.config = without_quotes(params.config)
    options = read_options(params.config)
    if note := ignored_options(params.config):
        LOG.warning(note)
    endpoint = open_endpoint(params, options.protocol)
    if options.protocol == DYNAMIC:
        return create_dynamic_handler(params, endpoint)
    return SharedFSHandler(params, options, endpoint)
