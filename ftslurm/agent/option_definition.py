"""What defines one option of `ftslurm run`, and a group of options."""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        flags: short forms first.
        read: parses the value, given the option's name as used and the text, or raises `UsageError`.
        default: the value if it is not given.
        metavar: form of the value; empty for a switch, which has none.
        help: one line.
        field_name: field of the group that it sets; empty: the option's name.
    """

    flags: tuple[str, ...]
    read: Callable[[str, str], Any]
    default: Any
    metavar: str
    help: str
    field_name: str = ""

    @property
    def name(self) -> str:
        """The long form without its dashes."""
        return self.flags[-1].lstrip("-").replace("-", "_")

    @property
    def field(self) -> str:
        """The field of the group that it sets."""
        return self.field_name or self.name

    @property
    def variable(self) -> str:
        """The environment variable that sets it, too."""
        return f"FTSLURM_{self.name.upper()}"

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return not self.metavar


@dataclass(frozen=True)
class Group:
    """A group of options.

    Attributes:
        title: heading in `--help`.
        name: field of `RunOptions`.
        make: makes the group of its options' values.
        options: in the order of `--help`.
    """

    title: str
    name: str
    make: Callable[..., Any]
    options: tuple[Option, ...]
