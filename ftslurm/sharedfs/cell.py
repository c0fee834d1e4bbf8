"""The fenced cell: a compare-and-swap on a shared directory that is safe without locks.

A value's generations are files `<token>.json`. A new one is written under a temporary name and then given its final
name by `link(2)`, which fails if the name is taken, on every filesystem measured (NFSv3, NFSv4.2, GlusterFS, CephFS,
MooseFS, local). A lost reply makes a successful `link` appear failed, so after an error the nonce inside the file
identifies the winner. A generation's name is never removed, since it fences out a delayed writer; its value may be
(`retire`).

With `rename` two writers could win, and a lock file alone loses updates on NFS, because its holder may read a stale
file. A lock in addition to the link would add calls to each change and save none: writers compete only when an attempt
begins or a lease is taken, and the loser merely reads the winning value.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable

from ftslurm.dataclasses import dataclass
from ftslurm.records.codec import BadFile, decode, encode
from ftslurm.sharedfs.filesystem import DEFAULT_READ_LIMIT, FileSystem
from ftslurm.sharedfs.publish import create_temporary, publish, random_nonce, remove_temporary

SCHEMA, VERSION = "ftslurm/cell", 1
HINT = "current"
KEPT = 16
"""Older generations may be retired: no reader with access to the directory is that far behind."""
RETIRED = "an old generation whose value was removed"
_OPEN, _END = b'"value":', b"}\n"


@dataclass(frozen=True)
class Versioned:
    """A value of the cell and its fencing token (1 is the first; it only grows)."""

    value: bytes
    token: int


@dataclass(frozen=True)
class Generation:
    """A generation's file: the nonce of its author, and its value; None if it was retired."""

    nonce: str
    value: bytes | None


class FencedCell:
    """One value in the directory `path`, which only a writer that has its newest token can change.

    A value is a JSON text, and so is its file; the cell does not parse it.

    Args:
        fs: the filesystem.
        path: an existing directory that holds nothing else.
        nonce: source of names for temporaries and of authorship marks.
    """

    def __init__(self, fs: FileSystem, path: str, nonce: Callable[[], str] = random_nonce) -> None:
        self._fs = fs
        self._path = path
        self._nonce = nonce
        self._known = 0

    def get(self) -> Versioned | None:
        """Return the newest value, or None if none was ever set.

        Raises:
            OSError: the directory cannot be read.
            BadFile: the newest generation is damaged; the text names it.
        """
        self._fs.refresh(self._path)
        token = max(self._known, self._existing_token())
        found = False
        value: bytes | None = None
        while True:
            try:
                value = self._read(token + 1)[1]
            except FileNotFoundError:
                break
            found = True
            token += 1
        if not token:
            return None
        if not found:
            value = self._read(token)[1]
        if value is None:
            raise OSError(errno.ESTALE, "later generations are not visible yet", self._file(token))
        self._known = token
        return Versioned(value, token)

    def get_newer(self, token: int, thorough: bool = True) -> Versioned | None:
        """Return the newest value if it is newer than `token`, else None.

        Args:
            token: the caller's newest token.
            thorough: refresh the directory and do not rely on the hint. Otherwise only the hint is read, one call: it
                may be delayed, or outdated if the writer died before it updated it.
        """
        self._known = max(self._known, token)
        # The number alone: a client that opened that generation before it existed may still cache its absence.
        if not thorough and token and self._hinted_token() <= token:
            return None
        self._fs.refresh(self._path)
        if self._existing_token() <= token and not self._exists(token + 1):
            return None
        newest = self.get()
        return newest if newest is not None and newest.token > token else None

    def set(self, value: bytes, token: int | None) -> tuple[Versioned, bool]:
        """Publish `value` as the successor of `token` (None: as the first), unless another writer did.

        Returns:
            The newest value read and whether it is this writer's: exactly one writer gets True for a token.

        Raises:
            OSError: it is unknown whether it was published; call `get` before the next attempt.
            BadFile: the existing generation is damaged.
        """
        new = (token or 0) + 1
        nonce = self._nonce()
        temporary = create_temporary(
            self._fs, self._file(new), write_generation(value, new, nonce), durable=True, nonce=nonce
        )
        try:
            won = self._link(temporary, new, nonce)
        finally:
            remove_temporary(self._fs, temporary)
        if not won:
            newest = self.get()
            if newest is None:
                raise BadFile(f"{self._path}: generation {new} exists but is not visible")
            return newest, False
        self._known = max(self._known, new)
        self._write_hint(new)
        return Versioned(value, new), True

    def retire(self, token: int) -> None:
        """Remove the value of generation `token`, unless it is one of the KEPT newest; its name stays.

        The states of a large world over a long run would add up to gigabytes. If the removal fails, the value stays.
        """
        if not 0 < token <= self._known - KEPT:
            return
        try:
            nonce, value = self._read(token)
            if value is not None:
                # The nonce is kept: its author may still be waiting for the reply to the link.
                publish(
                    self._fs, self._file(token), _content(b"null", token, nonce, {"retired": True}), nonce=self._nonce
                )
        except (OSError, BadFile):
            pass

    def _link(self, temporary: str, token: int, nonce: str) -> bool:
        try:
            return self._link_once(temporary, token, nonce)
        except OSError:
            # It failed, or it was done and this client caches the name's absence: a second link bypasses that cache.
            return self._link_once(temporary, token, nonce)

    def _link_once(self, temporary: str, token: int, nonce: str) -> bool:
        try:
            self._fs.link(temporary, self._file(token))
        except OSError as error:
            self._fs.refresh(self._path)
            try:
                return self._read(token)[0] == nonce
            except FileNotFoundError:
                # The name does not exist: the call really failed.
                raise error from None
        return True

    def _write_hint(self, token: int) -> None:
        # Only a hint: readers check for later generations, so losing it or moving it back costs only a few reads.
        try:
            publish(self._fs, os.path.join(self._path, HINT), b"%d\n" % token, nonce=self._nonce)
        except OSError:
            pass

    def _hinted_token(self) -> int:
        """Return the token in the hint, 0 without one."""
        try:
            text = self._fs.read(os.path.join(self._path, HINT), 64)
        except OSError:
            return 0
        return int(text) if text.strip().isdigit() else 0

    def _existing_token(self) -> int:
        """Return a token that certainly existed, 0 if there is none."""
        token = self._hinted_token()
        if token and (token <= self._known or self._exists(token)):
            return token
        if self._known:
            return 0
        return max((int(name[:12]) for name in self._fs.listdir(self._path) if _is_generation(name)), default=0)

    def _exists(self, token: int) -> bool:
        try:
            self._read(token)
        except FileNotFoundError:
            return False
        except BadFile:
            return True
        return True

    def _read(self, token: int) -> tuple[str, bytes | None]:
        """Return a generation's nonce and its value, None if it was retired."""
        path = self._file(token)
        generation = read_generation(self._fs.read(path, DEFAULT_READ_LIMIT), path, token)
        return generation.nonce, generation.value

    def _file(self, token: int) -> str:
        return os.path.join(self._path, f"{token:012d}.json")


def write_generation(value: bytes, token: int, nonce: str) -> bytes:
    """Return the content of a generation's file: one JSON text if `value` is one."""
    return _content(value, token, nonce, {})


def read_generation(data: bytes, where: str, token: int) -> Generation:
    """Return the parts of a generation's file; the value itself is not parsed.

    Raises:
        BadFile: it is not generation `token` of a cell; one line with `where`.
    """
    header, _, rest = data.partition(b"\n")
    plain = not header.endswith(_OPEN) or not rest.endswith(_END)
    # A newer format, or a formatted copy, has another layout, but is JSON too.
    fields = decode(data if plain else header + b"null}", where, SCHEMA, VERSION)
    if fields.get("token") != token or not isinstance(fields.get("nonce"), str):
        raise BadFile(f"{where}: {wrong_token(fields.get('token'), token)}")
    retired = fields.get("retired") is True
    value = json.dumps(fields.get("value")).encode() + b"\n" if plain else rest[: -len(_END)]
    return Generation(str(fields["nonce"]), None if retired else value)


def wrong_token(found: object, token: int) -> str:
    """Return as text that a generation's file has the name of another one."""
    return f"its header names token {found!r:.80}, expected {token}"


def _content(value: bytes, token: int, nonce: str, more: dict[str, bool]) -> bytes:
    header = encode({"schema": SCHEMA, "version": VERSION, "token": token, "nonce": nonce, **more})
    return header.rstrip(b"}\n") + b"," + _OPEN + b"\n" + value + _END


def _is_generation(name: str) -> bool:
    # isdigit alone would accept a superscript two as a digit.
    return len(name) == 17 and name.endswith(".json") and name.isascii() and name[:12].isdigit()
