"""`dataclass`, `field`, `replace` and `asdict` as of the standard library's `dataclasses`, without its start-up time.

Importing the original costs 10 ms (it needs `inspect`), and each class 0.7 ms, because six methods are compiled for it:
half of an agent's start. Here a class costs 0.02 ms; its `__init__` is compiled when the first instance is made.

A type checker sees the original. The original's functions (`dataclasses.replace`, `fields`, `is_dataclass`) take these
classes too. Not supported, because not used: inheritance, `order`, `slots`, `kw_only`, `InitVar`, `ClassVar`,
`__post_init__`, `init=False`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import asdict, dataclass, field, replace
else:
    from ftslurm.lean_dataclasses import asdict, dataclass, field, replace

__all__ = ["asdict", "dataclass", "field", "replace"]
