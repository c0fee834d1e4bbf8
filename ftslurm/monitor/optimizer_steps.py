"""Steps and heartbeats of a script that reports none: each step of its optimizer is both.

By torch's global hook for optimizers, ``torch.optim.optimizer.register_optimizer_step_post_hook``. It sees each
`Optimizer.step` of this process that runs in Python: of torch's own optimizers and of classes derived from them, also
within FSDP, DeepSpeed, Lightning, accelerate, GradScaler. Of a compiled one, or one in a CUDA graph, it would see some
steps and not the next; then all is withdrawn, and nothing claimed.

The counts mean what an optimizer did since this start, not the script's steps: see `ftslurm.records.round`.
"""

from __future__ import annotations

import os
import sys
from _weakref import ref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OPTIMIZER = "torch.optim.optimizer"
WATCHED_FROM = 20
"""The heartbeats begin with this step. Fewer may be all that is seen: the warm-up before a CUDA graph is captured, a
first phase, a test of the batch size."""
LISTED_WITH = 2
"""With this step the rank lists its imports, see `ftslurm.monitor.imports`."""
TAKES_OVER = 100
"""Another optimizer is counted when it has made so many steps since the last one of that which was counted."""

problem: str | None = None
"""Why it was given up, for debugging; None: it was not."""


def watch() -> None:
    """Register the hook. To be called when `OPTIMIZER` has been imported, see `ftslurm.import_hook`."""
    global _torch
    _torch = sys.modules["torch"]
    # Half imported now, but that is its first line. Before 2.1 there is no `torch.compiler.is_compiling`.
    if tuple(map(int, _torch.__version__.split(".")[:2])) >= (2, 1):
        sys.modules[OPTIMIZER].register_optimizer_step_post_hook(_hook)


def _hook(optimizer: Any, _args: object, _kwargs: object) -> None:
    if _torch.compiler.is_compiling():
        # Not a step, but a look at the code, which torch then runs without this function.
        _compiled()
    else:
        _on_step(optimizer)


def _compiled() -> bool:
    _give_up("the step of an optimizer is compiled")
    return True


# For torch's compiler: to be called while it looks, and not part of what it compiles (torch.compiler.assume_constant_
# result, which would import the compiler).
_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _first(optimizer: Any) -> None:
    """Connect at the first step, not at the import of torch: this may be a launcher, and the rank its child."""
    global _on_step, _withdraw
    try:
        from ftslurm.monitor import client, heartbeat_page

        link = client.report_automatically(_stop)
        if link is None:
            _stop()
            return
        words = link.words
        warmup_steps = link.asked.warmup_steps if link.asked else 0
        words[heartbeat_page.AUTOMATIC] = 1
        _withdraw = lambda: heartbeat_page.withdraw_automatic(words)  # noqa: E731
        beat, step = heartbeat_page.beater(words, warmup_steps), heartbeat_page.stepper(words)
        _on_step = _guarded(counter(beat, step, own_count(optimizer) or 1))
    except Exception as error:
        _swallow(error)
        return
    _on_step(optimizer)


def counter(beat: Callable[[], None], step: Callable[[int], None], first: int) -> Callable[[Any], None]:
    """Return a function that is called with the optimizer of each step, and counts those of one optimizer.

    That is the first one to step: each optimizer of a model in parts (one per parameter, generator and discriminator)
    steps once or so per training step. When it is gone, or another one has made `TAKES_OVER` steps without it, that one
    is counted from there on. Any optimizer's step is a heartbeat.

    One that steps part of its parameters at a time is as many optimizers: DeepSpeed's ZeRO shows torch's optimizer one
    parameter group after the other (`_optimizer_step` in `deepspeed.runtime.zero`).

    Args:
        beat, step: store a heartbeat, and a step of this number.
        first: the number of the first step.
    """
    counted: Callable[[], Any] = lambda: None  # noqa: E731
    part: Callable[[], Any] = counted
    others: dict[tuple[int, int], int] = {}
    number, made = first - 1, 0

    def on_step(optimizer: Any) -> None:
        nonlocal counted, part, number, made
        steps_for = _part(optimizer)
        if steps_for is not part() or optimizer is not counted():
            if counted() is not None and part() is not None:
                stepper = id(optimizer), id(steps_for)
                passed = others[stepper] = others.get(stepper, 0) + 1
                if passed < TAKES_OVER:
                    if made >= WATCHED_FROM:
                        beat()
                    return
            counted, part = ref(optimizer), ref(steps_for)
        if others:
            others.clear()
        number += 1
        made += 1
        step(number)
        if made == LISTED_WITH:
            _list_imports()
        if made >= WATCHED_FROM:
            beat()
        elif _is_captured():
            _give_up("the steps of an optimizer are part of a CUDA graph")

    return on_step


def _part(optimizer: Any) -> Any:
    """Return what tells the parameters that an optimizer steps now: the first of them, or itself if it shows none."""
    try:
        groups = optimizer.param_groups
        if first := groups[0]["params"]:
            return first[0]
        for group in groups:
            for parameter in group["params"]:
                return parameter
    except (AttributeError, LookupError, TypeError):
        pass  # A wrapper need not have them.
    return optimizer


def _list_imports() -> None:
    if path := os.environ.get("FTSLURM_IMPORTS"):
        from ftslurm.monitor.imports import write_list

        write_list(path)


def own_count(optimizer: Any) -> int | None:
    """Return how many steps the optimizer has made by its own count, which a checkpoint restores; None: it has none.

    Adam and its kin count the steps of each parameter, as a number or a tensor. One on a device is not read, that would
    wait for the device; nor one of another class, such as DTensor, that might wait for other ranks.
    """
    try:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                count = optimizer.state[parameter]["step"] if parameter in optimizer.state else None
                if count is None:
                    continue
                if type(count) not in (int, float) and not (
                    type(count) is _torch.Tensor and count.device.type == "cpu"
                ):
                    return None
                number = int(count)
                return number if 0 < number < 2**53 else None
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        pass  # An optimizer may keep anything there.
    return None


def _is_captured() -> bool:
    cuda = sys.modules.get("torch.cuda")
    try:
        return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()
    except RuntimeError:
        return False  # The error of an earlier kernel, which the script's own next call raises, too.


def _guarded(function: Callable[[Any], None]) -> Callable[[Any], None]:
    def on_step(optimizer: Any) -> None:
        try:
            function(optimizer)
        except Exception as error:
            _swallow(error)

    return on_step


def _swallow(error: Exception) -> None:
    """Give up for an error of ftslurm's own; raise one that a signal handler of the user raised meanwhile."""
    from ftslurm.monitor import client

    client._swallow(error)
    _give_up(f"{type(error).__name__}: {error}"[:300])


def _give_up(why: str) -> None:
    global problem
    problem = problem or why
    withdraw = _withdraw
    _stop()
    if withdraw is not None:
        withdraw()


def _stop() -> None:
    """Count no more. The hook stays: torch may be going through its hooks just now."""
    global _on_step, _withdraw
    _on_step, _withdraw = _nothing, None


def _nothing(optimizer: Any) -> None:
    """`_on_step` of a process that is no rank, or whose script reports by itself."""


_torch: Any = None
_on_step: Callable[[Any], None] = _first
_withdraw: Callable[[], None] | None = None

# A child is not its rank, and the words that it would write are its parent's.
os.register_at_fork(after_in_child=_stop)
