"""Clock of the time in which a process could observe others: its own stalls and outages do not count (pure)."""

from __future__ import annotations

from collections.abc import Callable


class ObservedTime:
    """Clock of the time in which this observer could observe: its own stalls and failed observations do not count.

    While a full disk refuses writes but serves reads, no node can publish; counting that time would make all nodes
    silent at once. So a failed observation discards the time counted since this observer's last successful write.

    Args:
        now: monotonic clock, seconds.
        prompt_s: the longest interval between two calls of `note` that counts; in a longer one the observer was
            stalled, stopped or suspended. `note` is called at each filesystem call, so an observation of thousands of
            files, each read promptly, counts.
    """

    def __init__(self, now: Callable[[], float], prompt_s: float) -> None:
        self._now = now
        self._prompt_s = prompt_s
        self._last = now()
        self._counted_s = 0.0
        self._proven_s = 0.0
        self._failing_since: float | None = None

    @property
    def outage_s(self) -> float:
        """Time (seconds by the clock) since an observation last succeeded; 0.0 if the last one did."""
        return 0.0 if self._failing_since is None else self._now() - self._failing_since

    def succeeded(self, wrote: bool) -> None:
        """End a successful observation.

        Args:
            wrote: it wrote to the filesystem, so the time until now counts permanently.
        """
        if wrote:
            self._proven_s = self._counted_s
        self._failing_since = None

    def failed(self) -> None:
        """End an observation that failed."""
        self._counted_s = self._proven_s
        if self._failing_since is None:
            self._failing_since = self._last

    def note(self) -> float:
        """Record that the observer is running; return the seconds counted so far."""
        now = self._now()
        gap = now - self._last
        if 0.0 < gap <= self._prompt_s:
            self._counted_s += gap
        self._last = now
        return self._counted_s
