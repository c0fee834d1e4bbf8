"""The rank's side of the record of its collectives: torch's own recorder, and torch's own server for it.

`arm` is called before the user's code. When ``torch.distributed`` has been imported, it sets the size of torch's flight
recorder and starts torch's control-plane server (`torch.distributed.elastic.control_plane`) on a Unix socket in the
rank's record directory, which only this user can enter. Its threads are C++: they answer while the rank holds the
interpreter's lock, or waits in a collective. What cannot be had costs nothing, and a file beside the socket says why.

Imports nothing that is not built in: what is in ``sys.modules`` here is there for the user's program, too.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SOCKET, ABOUT, DUMP = "collectives.sock", "collectives.txt", "recorder.json"
"""Names in the rank's record directory: the socket, what is known about it, a document that the rank has left."""
TORCH_DUMP = "torch_trace_rank_"
"""Beginning of the name of torch's own file there; torch adds the rank."""
VARIABLE = "FTSLURM_COLLECTIVES"
"""The path of the socket, by the agent; without it, there is no server."""
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Torch's variables for the recorder's number of entries: the name today, and that of older versions."""
DUMP_PLACES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Torch's variables for where it writes its own file, today's and the older one."""
DUMP_WANTED = "TORCH_NCCL_DUMP_ON_TIMEOUT"
ENTRIES = "2000"
"""What newer versions of torch record by default: 3.6 MB of a rank's memory once it is full (measured, torch 2.13)."""
LONGEST = 107
"""Bytes of a socket's path. Source: unix(7), sun_path; the last byte is zero."""
DUMP_LIMIT = 4 * 1024 * 1024
GROUPS = "ftslurm_groups"
"""Key that is added to a document that a rank leaves: the ranks of the groups by their names."""
variables: dict[str, str] = {}
"""What this module has set in the environment; of the script's own settings it is none."""
_CORES = 9
"""A pool of threads that is as large as the machine: with so many cores it has the 8 threads of its smallest size."""


def arm() -> None:
    """Start the server as soon as torch.distributed has been imported in this process; not in its children."""
    path = os.environ.get(VARIABLE)
    if path:
        from ftslurm.import_hook import after_import

        pid = os.getpid()
        after_import("torch.distributed", lambda: serve(path) if os.getpid() == pid else None)


def serve(path: str) -> None:
    """Enable torch's recorder and start torch's server on that socket, or write down why not."""
    version = str(getattr(sys.modules.get("torch.version"), "__version__", ""))
    module = sys.modules.get("torch._C._distributed_c10d")
    try:
        problem = _problem(module, path)
        if problem is None:
            _set_variables(module, os.path.dirname(path))
            _start(module, path)
    except Exception as error:
        problem = f"torch's server cannot be started: {type(error).__name__}: {error}"
    _write_about(os.path.join(os.path.dirname(path), ABOUT), version, problem or "")


def _problem(module: Any, path: str) -> str | None:
    if module is None:
        return "this torch is built without torch.distributed"
    if not hasattr(module, "_WorkerServer"):
        return "this torch has no control-plane server"
    length = len(os.fsencode(path))
    if length > LONGEST:
        return f"the path of its socket is too long ({length} bytes, at most {LONGEST}): set a shorter TMPDIR"
    return None


def _set_variables(module: Any, directory: str) -> None:
    # A newer torch warns of the old names.
    newer = hasattr(module, "_dump_fr_trace_json")
    variables.clear()
    if not any(name in os.environ for name in SIZES):
        variables[SIZES[not newer]] = ENTRIES
    if not any(name in os.environ for name in (*DUMP_PLACES, DUMP_WANTED)):
        # A user who wants these files finds them where torch says.
        variables[DUMP_PLACES[not newer]] = os.path.join(directory, TORCH_DUMP)
    os.environ.update(variables)


def _start(module: Any, path: str) -> None:
    """Start the server without a trace in the output, and without a thread per core.

    Its threads stay on the core that they begin on; those of another rank of the node on another one.
    """
    mask = os.sched_getaffinity(0)
    if len(mask) > _CORES:
        os.sched_setaffinity(0, {sorted(mask)[int(os.environ.get("LOCAL_RANK") or 0) % len(mask)]})
    try:
        server = _quietly(lambda: module._WorkerServer(path, -1))
    finally:
        if len(mask) > _CORES:
            os.sched_setaffinity(0, mask)
    # Never freed: its end would wait for its threads, and a rank that hangs while it ends is to be seen, too.
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def _quietly(start: Any) -> Any:
    """Call `start` without the one line that it writes to stderr; any other line is passed on."""
    try:
        kept = os.dup(2)
        caught = os.memfd_create("ftslurm-stderr")
    except (OSError, AttributeError):
        return start()
    try:
        os.dup2(caught, 2)
        try:
            return start()
        finally:
            os.dup2(kept, 2)
            text = os.pread(caught, 1 << 16, 0)
            lines = [line for line in text.splitlines(keepends=True) if b"Server listening to UNIX" not in line]
            os.write(2, b"".join(lines)) if lines else None
    finally:
        os.close(caught)
        os.close(kept)


def _write_about(path: str, version: str, problem: str) -> None:
    text = " ".join(version.split()) + "\n" + " ".join(problem.split()) + "\n"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, text.encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)
    except OSError:
        pass  # The agent then says that it knows nothing of the rank's torch.


def leave(directory: str) -> None:
    """Leave the recorder's document in a rank's record directory, for an agent that finds the process gone.

    Called while an exception ends the rank. Raises what goes wrong.
    """
    module = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(module, "_dump_fr_trace_json", None) or getattr(module, "_dump_nccl_trace_json", None)
    if dump is None or not os.environ.get(VARIABLE):
        return
    data = dump()
    data = data.encode() if isinstance(data, str) else data
    if b'"entries":[{' not in data or len(data) > DUMP_LIMIT:
        return
    data = _with_groups(data)
    temporary = os.path.join(directory, f"{DUMP}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    os.replace(temporary, os.path.join(directory, DUMP))


def _with_groups(document: bytes) -> bytes:
    """Return the recorder's document with the members of the groups: with gloo, the recorder does not know them."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        world = c10d._world  # type: ignore[union-attr]
        # A group of which this rank is no member has ranks, but no name.
        named = [(str(name), world.pg_group_ranks.get(group)) for group, name in world.pg_names.items()]
        members = {name: [int(rank) for rank in ranks] for name, ranks in named if ranks}
        everybody = max(map(len, members.values()))
        # All ranks are the members of the largest group; thousands would each list thousands.
        known = {name: ranks for name, ranks in members.items() if name.isalnum() and len(ranks) < everybody}
        text = ",".join(f'"{name}":{ranks}' for name, ranks in known.items())
    except Exception:
        return document  # The names are torch's own, and may change.
    head, end, _ = document.rpartition(b"}")
    added = head + b',"%s":{%s}' % (GROUPS.encode(), text.encode()) + end
    return added if end and len(added) <= DUMP_LIMIT else document
