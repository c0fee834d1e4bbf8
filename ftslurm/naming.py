"""Modules that bear the name of the one function they are about, and can be called as that function.

``from ftslurm.report import gather`` gives the function when it is the first to ask, but the module once somebody has
imported ``ftslurm.report.gather``: the import system puts it there (importlib's documentation, "Submodules"). Both must
do the same.
"""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*arguments, **named)


def call_by_name(module: str) -> None:
    """Let ``module`` (its ``__name__``) be called as the function that bears its name."""
    sys.modules[module].__class__ = _Callable
