"""What an agent's process waits for."""

from __future__ import annotations

import os
import time

from ftslurm.agent.waiting import Waiting


def test_sources_that_are_ready_or_closed_at_the_other_end_are_reported() -> None:
    waiting = Waiting()
    (a_r, a_w), (b_r, b_w), (c_r, c_w) = os.pipe(), os.pipe(), os.pipe()
    for fd, source in ((a_r, "a"), (b_r, "b"), (c_r, "c"), (None, "none"), (-1, "disabled")):
        waiting.listen(fd, source)
    os.write(a_w, b"x")
    os.close(b_w)
    waiting.wait(None)
    assert sorted(map(str, waiting.ready)) == ["a", "b"]
    waiting.forget("a")
    os.close(b_r)
    waiting.forget("b")
    waiting.wait(-1)
    assert waiting.ready == []
    for fd in (a_r, a_w, c_r, c_w):
        os.close(fd)


def test_a_wait_does_not_end_before_its_time() -> None:
    began = time.monotonic()
    Waiting().wait(0.0015)
    assert time.monotonic() - began >= 0.0015
