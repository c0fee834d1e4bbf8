"""The entry point in the group `torchrun.handlers`: cheap to load, for every start of torchrun loads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters

__all__ = ["create_handler", "sharedfs"]


def sharedfs() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return the function that makes handlers: torch calls what the entry point names, and registers its result."""
    return create_handler


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Return the handler that `--rdzv-backend=sharedfs` asks for.

    Args:
        params: torchrun's; `endpoint` is the shared directory, `config` what `--rdzv-conf` says (see `options`).

    Raises:
        WrongOption: with one line that says what was expected.
    """
    # Not above: the rendezvous package of torch is half imported while it loads its plugins.
    from ftslurm.torchrun.dynamic import create_dynamic_handler
    from ftslurm.torchrun.endpoint import open_endpoint
    from ftslurm.torchrun.handler import SharedFSHandler
    from ftslurm.torchrun.options import DYNAMIC, read_options

    options = read_options(params.config)
    place = open_endpoint(params, options.protocol)
    if options.protocol == DYNAMIC:
        return create_dynamic_handler(params, place)
    return SharedFSHandler(params, options, place)
