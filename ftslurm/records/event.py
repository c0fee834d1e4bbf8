"""The record that a command was started for an event of the run, so that no other process starts it again."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass


@dataclass(frozen=True)
class EventRecord:
    """Written before the command starts; the process that has written it starts the command.

    Attributes:
        event: its name, see `ftslurm.hooks.events`.
        round: 0: the attempt as a whole.
        node: where the command runs.
        nonce: of the process that starts it.
        time_ns: when, by that node's clock.
        text: of the event, one line.
    """

    event: str
    attempt: str
    round: int
    node: str
    nonce: str
    time_ns: int
    text: str

    SCHEMA, VERSION = "ftslurm/event", 1
