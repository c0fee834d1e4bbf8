"""The agent's side of the records of collectives: asks the ranks' servers, all at once, in bounded time and memory.

A thread does it: a rank that is stopped does not answer, a rank's document has a megabyte, and the agent's loop waits
for none of that. The server is torch's, see `ftslurm.monitor.flight_server`; it answers while the rank is in a
collective, or in C code that holds the interpreter's lock.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.monitor import flight
from ftslurm.monitor.flight_server import ABOUT, SOCKET
from ftslurm.records.codec import BadFile
from ftslurm.records.flight import Trace
from ftslurm.text import duration, one_line, size

FETCH_S = 1.0
"""Seconds that all ranks of a node together have for their answers."""
LIMIT = 8 * 1024 * 1024
"""Bytes of one answer; one entry has some 500."""
CHUNK = 1 << 18
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
"""Names of the request: in newer versions of torch, and in older ones."""
NO_SERVER = "its torch has no server for it yet: it has not imported torch.distributed, or it is not a Python script"
NO_ANSWER, UNREAD = "no answer", "its answer was not read in time"


@dataclass(frozen=True)
class Answer:
    """One rank's answer.

    Attributes:
        trace: the recorder's content; None: there is none.
        trouble: why.
        torch: the version of the rank's torch; None: unknown.
        took_s: seconds until the answer was complete.
        data: the answer itself, not read yet.
    """

    trace: Trace | None = None
    trouble: str | None = None
    torch: str | None = None
    took_s: float | None = None
    data: bytes | None = None


class FlightCollector:
    """Asks the ranks of a node for their recorders' content, once.

    Args:
        directories: the record directory of each rank, by local rank.
        timeout_s: seconds for all of them together.
        monotonic: clock, seconds.
    """

    def __init__(
        self,
        directories: dict[int, str],
        timeout_s: float = FETCH_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directories = directories
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._paths: dict[int, str] = {}
        self._answers: dict[int, Answer] = {}
        self._fetched = threading.Event()
        self._read = threading.Event()
        self._closed = False
        self._until_s = 0.0

    @property
    def fetched(self) -> bool:
        """Whether no rank is asked any more: all have answered, or the time is over."""
        return self._fetched.is_set() or self._monotonic() >= self._until_s

    @property
    def done(self) -> bool:
        """Whether the answers are read, too."""
        return self._read.is_set()

    def start(self) -> None:
        """Begin to ask; without any server, as in scripts without torch, all is done at once."""
        paths = {rank: os.path.join(path, SOCKET) for rank, path in self._directories.items()}
        self._paths = {rank: path for rank, path in paths.items() if os.path.lexists(path)}
        for rank in set(paths) - set(self._paths):
            version, problem = about(self._directories[rank])
            self._answers[rank] = Answer(trouble=problem or NO_SERVER, torch=version)
        if not self._paths:
            self._fetched.set()
            self._read.set()
            return
        # A little more than the thread takes: it finds out itself who did not answer.
        self._until_s = self._monotonic() + self._timeout_s + 0.1
        try:
            threading.Thread(target=self._run, name="collectives", daemon=True).start()
        except RuntimeError as error:
            # No thread left (ulimit -u): the records are missing, and no more.
            self._answers |= {rank: Answer(trouble=f"not asked: {error}") for rank in self._paths}
            self._fetched.set()
            self._read.set()

    def close(self) -> None:
        """Ask no further; what has not been read is not waited for."""
        self._closed = True

    def answers(self) -> dict[int, Answer]:
        """Return what there is, by local rank."""
        late = Answer(trouble=f"{NO_ANSWER} within {duration(self._timeout_s)}")
        return {rank: self._answers.get(rank, late) for rank in self._directories}

    # On the thread

    def _run(self) -> None:
        try:
            raw = self._ask_all()
            self._answers |= {rank: replace(one, data=None, trouble=one.trouble or UNREAD) for rank, one in raw.items()}
            self._fetched.set()
            while raw and not self._closed:
                rank, answer = raw.popitem()
                self._answers[rank] = read(answer)
        finally:
            self._fetched.set()
            self._read.set()

    def _ask_all(self) -> dict[int, Answer]:
        found = ask(self._paths, self._timeout_s)
        for rank, answer in found.items():
            version, problem = about(self._directories[rank])
            trouble = problem or answer.trouble
            found[rank] = Answer(None, trouble, version, answer.took_s, answer.data)
        return found


def read(answer: Answer) -> Answer:
    """Return an answer with its document read."""
    if answer.data is None:
        return answer
    try:
        trace = flight.read(answer.data, "its recorder's document")
    except BadFile as error:
        return Answer(None, one_line(str(error), 200), answer.torch, answer.took_s)
    return Answer(trace, None, answer.torch, answer.took_s)


def about(directory: str) -> tuple[str | None, str | None]:
    """Return the version of a rank's torch and why it has no server, as the rank has written down."""
    try:
        fd = os.open(os.path.join(directory, ABOUT), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None, None
    try:
        lines = os.read(fd, 4096).decode("utf-8", "replace").split("\n")
    except OSError:
        return None, None
    finally:
        os.close(fd)
    version, problem = (one_line(line, 300) for line in (*lines, "", "")[:2])
    return version or None, problem or None


def ask(paths: dict[int, str], timeout_s: float, monotonic: Callable[[], float] = time.monotonic) -> dict[int, Answer]:
    """Ask all servers at once; return the answers, not read yet, after at most that time.

    Args:
        paths: the sockets, by local rank.
    """
    began_s = monotonic()
    with selectors.DefaultSelector() as selector:
        requests = [_Request(rank, path, selector) for rank, path in paths.items()]
        for request in requests:
            request.begin(HANDLERS)
        while any(not one.over for one in requests):
            left_s = began_s + timeout_s - monotonic()
            if left_s <= 0:
                break
            again = [one for one in requests if one.connecting]
            for key, _ in selector.select(min(left_s, 0.01) if again else left_s):
                key.data.on_ready(monotonic() - began_s)
            for one in again:
                one.connect()
        for one in requests:
            one.give_up(f"{NO_ANSWER} within {duration(timeout_s)}")
    return {one.rank: one.answer for one in requests}


class _Request:
    """One request to one server; nothing in it waits."""

    def __init__(self, rank: int, path: str, selector: selectors.BaseSelector) -> None:
        self.rank = rank
        self.answer = Answer()
        self.over = self.connecting = False
        self._path = path
        self._selector = selector
        self._socket: socket.socket | None = None
        self._handlers: Sequence[str] = ()
        self._unsent = b""
        self._data = bytearray()

    def begin(self, handlers: Sequence[str]) -> None:
        """Connect; ask for the first of these handlers, for the next one if there is none of that name."""
        self._handlers = handlers
        text = (
            f"POST /handler/{handlers[0]} HTTP/1.1\r\nHost: ftslurm\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        self._unsent, self._data = text.encode(), bytearray()
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        except OSError as error:
            self._end(Answer(trouble=f"cannot be asked: {error.strerror}"))
            return
        self.connect()

    def connect(self) -> None:
        """Try to connect; a server whose queue is full is tried again."""
        assert self._socket is not None
        try:
            self._socket.connect(self._path)
        except OSError as error:
            self.connecting = error.errno == errno.EAGAIN
            if not self.connecting:
                gone = error.errno in (errno.ENOENT, errno.ECONNREFUSED)
                self._end(Answer(trouble=NO_SERVER if gone else f"cannot be asked: {error.strerror or error}"))
            return
        self.connecting = False
        self._selector.register(self._socket, selectors.EVENT_WRITE, self)

    def on_ready(self, since_s: float) -> None:
        """Send or receive; `since_s`: seconds since the beginning."""
        assert self._socket is not None
        try:
            if self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
                if not self._unsent:
                    self._selector.modify(self._socket, selectors.EVENT_READ, self)
                return
            part = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(Answer(trouble=f"its server broke the connection: {error.strerror}"))
            return
        self._data += part
        if len(self._data) > LIMIT:
            self._end(Answer(trouble=f"its recorder's document is larger than {size(LIMIT)}: fewer entries fit"))
        elif not part or self._is_complete():
            self._receive(since_s)

    def give_up(self, trouble: str) -> None:
        """End it, if it is not over."""
        if not self.over:
            self._end(Answer(trouble=trouble))

    def _is_complete(self) -> bool:
        head, found, _ = self._data[:4096].partition(b"\r\n\r\n")
        length = _length(bytes(head)) if found else None
        return length is not None and len(self._data) - len(head) - 4 >= length

    def _receive(self, since_s: float) -> None:
        head, _, body = bytes(self._data).partition(b"\r\n\r\n")
        status = head.split(b"\r\n")[0].split(b" ")
        code = status[1].decode("ascii", "replace") if len(status) > 1 else "?"
        length = _length(head)
        if code == "404" and len(self._handlers) > 1:
            handlers = self._handlers[1:]
            self._close()
            self.begin(handlers)
        elif code != "200":
            text = one_line(body[:300].decode("utf-8", "replace"), 120)
            self._end(Answer(trouble=f"its server answers {code}{f': {text}' if text else ''}"))
        elif length is not None and len(body) < length:
            self._end(Answer(trouble="its server broke the connection"))
        else:
            self._end(Answer(data=body if length is None else body[:length], took_s=round(since_s, 6)))

    def _end(self, answer: Answer) -> None:
        self.answer, self.over, self.connecting = answer, True, False
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            try:
                self._selector.unregister(self._socket)
            except (KeyError, ValueError):
                pass
            self._socket.close()
            self._socket = None


def _length(head: bytes) -> int | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit() and len(value) < 12:
            return int(value)
    return None
