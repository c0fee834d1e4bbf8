"""What became of the ranks of a run that was to stop, as text: which left and saved, and which never asked (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ftslurm.records.stop import StopVote
from ftslurm.text import plural, ranges


def departure(votes: Sequence[StopVote], world_size: int) -> str:
    """``all 4 ranks left at step 43``, ``rank 0 left at step 43, saved by rank 0; ranks 1-3 never called should_stop``.

    Args:
        votes: the nodes' last answers.
        world_size: number of the round's ranks.

    Returns:
        Empty if no rank has left, nor trained on.
    """
    left = sorted(rank for vote in votes for rank in vote.left)
    if not left:
        return training_on(votes)
    complete = len(left) == world_size
    text = f"{'all ' if complete else ''}{plural(world_size, 'rank') if complete else _ranks(left)} left{place(votes)}"
    saved = sorted(rank for vote in votes for rank in vote.saved)
    if saved:
        text += f", saved by {_ranks(saved)}"
    if going_on := training_on(votes):
        text += f"; {going_on}"
    unasked = unasked_ranks(votes)
    return f"{text}; {_ranks(unasked)} never called should_stop" if unasked else text


def training_on(votes: Sequence[StopVote]) -> str:
    """``ranks 0-3 trained on after should_stop had returned True``; empty if none did."""
    ranks = sorted(rank for vote in votes for rank in vote.trained_on)
    return f"{_ranks(ranks)} trained on after should_stop had returned True" if ranks else ""


def have_all_left(votes: Sequence[StopVote], world_size: int) -> bool:
    """Return whether each rank of the round has left by `should_stop`."""
    return sum(len(vote.left) for vote in votes) == world_size


def unasked_ranks(votes: Sequence[StopVote]) -> list[int]:
    """Return the ranks that have never called `should_stop`."""
    return sorted(rank for vote in votes for rank in vote.unasked)


def place(votes: Sequence[StopVote]) -> str:
    """`` at step 43``, `` between steps 43 and 50``; empty without steps."""
    steps = sorted({vote.step for vote in votes if (vote.left or vote.trained_on) and vote.step is not None})
    if len(steps) > 1:
        return f" between steps {steps[0]} and {steps[-1]}"
    return f" at step {steps[0]}" if steps else ""


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"
