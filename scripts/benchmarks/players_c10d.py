"""torch's members: `DynamicRendezvousHandler` over `C10dRendezvousBackend` and a TCPStore, polled as its agent does."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from benchmarks.players import Worlds

MONITOR_INTERVAL_S = 0.1  # torchrun's default
STORE_TIMEOUT_S = 60  # torch's default read_timeout


class CountingBackend(C10dRendezvousBackend):  # type: ignore[misc]
    """torch's backend, with each call of the store and its bytes counted; a lock of the handler's serializes them."""

    def __init__(self, store: TCPStore, run_id: str) -> None:
        self.calls = self.sets = self.bytes_read = self.bytes_written = 0
        super().__init__(store, run_id)

    def _call_store(self, store_op: str, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        self.sets += store_op != "get"
        self.bytes_written += sum(len(argument) for argument in args)
        result = super()._call_store(store_op, *args, **kwargs)
        self.bytes_read += len(result)
        return result


class Player(threading.Thread):
    """One member with the smallest agent: it joins, and joins again when another member waits for the next world."""

    def __init__(self, number: int, size: int, store: TCPStore, keep_alive_s: int, worlds: Worlds) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.backend = CountingBackend(store, "bench")
        self._handler = DynamicRendezvousHandler.from_backend(
            "bench", store, self.backend, size, size, local_addr="127.0.0.1", keep_alive_interval=keep_alive_s
        )
        self._worlds = worlds
        self._again = threading.Event()
        self._over = threading.Event()

    def run(self) -> None:
        """Take part until dismissed."""
        number = 0
        while not self._over.is_set():
            info = self._handler.next_rendezvous()
            number += 1
            self._again.clear()
            self._worlds.had(self.number, number, info.rank, info.world_size)
            while not self._over.is_set() and not self._again.wait(MONITOR_INTERVAL_S):
                if self._handler.num_nodes_waiting() > 0:
                    break

    def again(self) -> None:
        """Ask for the next world, as an agent whose workers failed."""
        self._again.set()

    def dismiss(self) -> None:
        """Stop polling, and keeping alive."""
        self._over.set()
        self._again.set()
        self._handler.shutdown()


class C10dMembers:
    """The members of one process; the first process hosts the store."""

    def __init__(self, members: list[int], size: int, port: int | None, keep_alive_s: int) -> None:
        self.worlds = Worlds(members)
        self._port = port or 0
        self._server = None
        if port is None:
            self._server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            self._port = self._server.port
        self._players = {n: Player(n, size, self._store(), keep_alive_s, self.worlds) for n in members}

    def _store(self) -> TCPStore:
        return TCPStore(
            "127.0.0.1", self._port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=STORE_TIMEOUT_S)
        )

    def facts(self) -> dict[str, Any]:
        """Return where the store listens."""
        return {"port": self._port}

    def go(self) -> None:
        """Start all members."""
        for player in self._players.values():
            player.start()

    def again(self, member: int) -> None:
        """Let this member ask for the next world."""
        self._players[member].again()

    def costs(self) -> dict[int, tuple[tuple[int, int, int, int], bool]]:
        """See `Members`."""
        return {
            number: ((backend.calls, backend.sets, backend.bytes_read, backend.bytes_written), False)
            for number, player in self._players.items()
            for backend in [player.backend]
        }

    def dismiss(self) -> None:
        """End; what still waits in a rendezvous ends with the process."""
        for player in self._players.values():
            player.dismiss()


def assemble(size: int, members: list[int], keep_alive_s: int, port: int | None = None) -> C10dMembers:
    """Make the members of one process."""
    return C10dMembers(members, size, port, keep_alive_s)
