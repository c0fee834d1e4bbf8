"""Call back when a module has been imported in a worker: `after_import`.

An entry of ``sys.meta_path`` that finds nothing. Python asks it at each import of a module that is not loaded yet, and
it looks whether a module that is waited for has been loaded since. So nothing is wrapped or replaced: module, spec and
loader are Python's own, no frame of this file is on the stack while the module runs, and a failed import that is tried
again counts when it succeeds. In return the call comes at the *next* import of any module; ``import torch`` goes on
with hundreds of them after each one that ftslurm waits for.

The entry stands just before Python's finder of files: it is asked least there, and the first and the last entry stay
what they are. It costs 0.2 microseconds per import, and leaves the list when nothing is waited for any more.

Imports nothing that is not built in: what is in ``sys.modules`` here is there for the user's program, too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the module below `signal`, which would bring `enum` along
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_MODULE = type(sys)
_OF_FAULTS = {_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT}

_awaited: dict[str, list[Callable[[], object]]] = {}

problem: str | None = None
"""The first exception of a callback, for debugging; None: there was none."""


def after_import(module_name: str, callback: Callable[[], object]) -> None:
    """Call `callback` once when that module has been imported: now, or at the first import after its own.

    It is called in the thread that imports, whose signals are blocked meanwhile. Other modules may be half imported
    then, such as the package around that module, so it should take what it needs from ``sys.modules``. An exception in
    it ends with it: the script goes on, as do other callbacks. A forked child waits for nothing: it is not the rank.
    """
    _awaited.setdefault(module_name, []).append(callback)
    _call_loaded()
    if _awaited and _ENTRY not in sys.meta_path:
        sys.meta_path.insert(_place(), _ENTRY)


class _Entry:
    """The entry of ``sys.meta_path``. Without `except`: it would catch what a signal handler of the user raises."""

    __slots__ = ()

    def find_spec(self, _name: str, _path: object = None, _target: object = None) -> None:
        """Find nothing, but notice what was imported before."""
        for name in tuple(_awaited):
            if name in sys.modules:
                _call_loaded()
                break
        if not _awaited:
            _leave()

    def __repr__(self) -> str:
        return "<notices imports for ftslurm, finds nothing>"


_ENTRY = _Entry()


def _call_loaded() -> None:
    for name in tuple(_awaited):
        if _is_loaded(sys.modules.get(name)):
            # Taken by one thread only, and gone before the imports of the callback itself come here.
            for callback in _awaited.pop(name, ()):
                _call(name, callback)


def _is_loaded(module: object) -> bool:
    """Whether it has been executed. Reads no attribute: that would load one of `importlib.util.LazyLoader`."""
    kind = type(module)
    if module is None or kind.__name__ == "_LazyModule":
        return False
    if not issubclass(kind, _MODULE):
        return True  # an object that the module has put in its place
    spec = _MODULE.__getattribute__(module, "__dict__").get("__spec__")
    return not getattr(spec, "_initializing", False)


def _call(name: str, callback: Callable[[], object]) -> None:
    global problem
    # What a handler of the user raises is for the script, and would end here.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - _OF_FAULTS)
    try:
        callback()
    except Exception as error:
        problem = problem or f"after the import of {name}: {type(error).__name__}: {error}"[:300]
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _place() -> int:
    names = [getattr(entry, "__name__", None) for entry in sys.meta_path]
    return names.index("PathFinder") if "PathFinder" in names else 0


def _leave() -> None:
    # A new list: whoever goes through the old one now, this import or another thread's, would pass over an entry.
    sys.meta_path = [entry for entry in sys.meta_path if entry is not _ENTRY]


os.register_at_fork(after_in_child=_awaited.clear)
