"""A heartbeat between the ranks themselves, opt-in: `ftslurm.peer.start`; see `ftslurm.peer.heartbeat`."""

from ftslurm.peer.heartbeat import EXIT_CODE, PeerLostError, PeerTokenError, start

__all__ = ["EXIT_CODE", "PeerLostError", "PeerTokenError", "start"]
