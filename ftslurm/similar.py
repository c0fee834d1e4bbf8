"""Which known word a misspelt one was meant to be (pure)."""

from __future__ import annotations

from collections.abc import Iterable

MOST_EDITS = 2


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return which of the known words was probably meant; None: none is close enough.

    An abbreviation of one word alone, as argparse takes them, is close.
    """
    words = list(known)
    longer = [other for other in words if len(word) > MOST_EDITS + 2 and other.startswith(word)]
    if len(longer) == 1:
        return longer[0]
    number, best = min(((edits(word, other), other) for other in words), default=(MOST_EDITS + 1, ""))
    # Of a short word, two edits make any other one.
    return best if number <= min(MOST_EDITS, (len(best.strip("-")) - 1) // 2) else None


def edits(one: str, other: str) -> int:
    """Return the number of letters to insert, remove, replace, or swap with their neighbour, to make `other`."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            best = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before, last = last, row
    return last[-1]
