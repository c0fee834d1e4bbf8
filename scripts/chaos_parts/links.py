"""All-reduce of the ranks: over plain sockets in a star, or with torch's gloo.

A broken link raises the same error as gloo, so that the report gets the same evidence at a hundredth of the cost.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import Protocol

CONNECT_S = 60.0
NUMBER = struct.Struct("<q")


class Link(Protocol):
    """The connection of one rank to the others."""

    def all_sum(self, value: int) -> int:
        """Return the sum of the values of all ranks, on all of them."""

    def close(self) -> None:
        """Close it after all ranks are done."""


class Star:
    """Rank 0 listens on MASTER_PORT and adds up; the others send and wait.

    Raises:
        RuntimeError: the link to another rank could not be made, or broke.
    """

    def __init__(self, rank: int, world_size: int, address: str, port: int) -> None:
        self._rank = rank
        self._peers = self._accept(port, world_size) if rank == 0 else {0: self._connect(address, port)}
        for peer in self._peers.values():
            peer.settimeout(None)

    def all_sum(self, value: int) -> int:
        """See `Link`."""
        if self._rank == 0:
            value += sum(self._receive(rank) for rank in self._peers)
            for rank in self._peers:
                self._send(rank, value)
            return value
        self._send(0, value)
        return self._receive(0)

    def close(self) -> None:
        """See `Link`; the kernel closes the sockets."""

    def _accept(self, port: int, world_size: int) -> dict[int, socket.socket]:
        listener = socket.create_server(("", port), backlog=world_size)
        deadline = time.monotonic() + CONNECT_S
        peers: dict[int, socket.socket] = {}
        while len(peers) < world_size - 1:
            listener.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                peer, _ = listener.accept()
                peer.settimeout(max(deadline - time.monotonic(), 0.01))
                peers[NUMBER.unpack(_exactly(peer))[0]] = peer
            except TimeoutError:
                missing = sorted(set(range(1, world_size)) - set(peers))
                raise RuntimeError(f"gloo/star: Timed out waiting for ranks {missing} to connect") from None
            except OSError:
                # A connection that was closed at once, or not from a rank.
                continue
        listener.close()
        return dict(sorted(peers.items()))

    def _connect(self, address: str, port: int) -> socket.socket:
        deadline = time.monotonic() + CONNECT_S
        while True:
            try:
                peer = socket.create_connection((address, port), timeout=5.0)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.sendall(NUMBER.pack(self._rank))
                return peer
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"gloo/star: Timed out connecting to rank 0 ({error})") from None
                time.sleep(0.1)

    def _send(self, rank: int, value: int) -> None:
        try:
            self._peers[rank].sendall(NUMBER.pack(value))
        except OSError as error:
            raise RuntimeError(f"gloo/star: writev: Connection reset by peer: rank {rank} ({error})") from None

    def _receive(self, rank: int) -> int:
        try:
            return int(NUMBER.unpack(_exactly(self._peers[rank]))[0])
        except OSError as error:
            raise RuntimeError(f"gloo/star: Connection closed by peer: rank {rank} ({error})") from None


class Gloo:
    """torch.distributed with its gloo backend."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self._torch, self._dist = torch, dist

    def all_sum(self, value: int) -> int:
        """See `Link`."""
        tensor = self._torch.tensor([value], dtype=self._torch.int64)
        self._dist.all_reduce(tensor)
        return int(tensor.item())

    def close(self) -> None:
        """See `Link`. A program that ends without this may be aborted by its own threads' end."""
        self._dist.destroy_process_group()


def link(kind: str) -> Link:
    """Return this rank's link to the others, configured by its environment; `kind` is "star" or "gloo"."""
    if kind == "gloo":
        return Gloo()
    environment = os.environ
    where = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    return Star(int(environment["RANK"]), int(environment["WORLD_SIZE"]), *where)


def _exactly(peer: socket.socket) -> bytes:
    data = b""
    while len(data) < NUMBER.size:
        more = peer.recv(NUMBER.size - len(data))
        if not more:
            raise ConnectionResetError("end of the stream")
        data += more
    return data
