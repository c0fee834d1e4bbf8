"""Which steps of a script's optimizers count, and when nothing is claimed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_client import Agent, forget

import ftslurm
from ftslurm.monitor import optimizer_steps
from ftslurm.monitor.optimizer_steps import TAKES_OVER, WATCHED_FROM, counter, own_count


class Parameter:
    """What stands for one of torch's."""


class Optimizer:
    """What stands for one of torch's: the hook looks at nothing else of it."""

    def __init__(self, steps: object = None) -> None:
        frozen, weight = Parameter(), Parameter()
        self.param_groups = [{"params": [frozen, weight]}]
        self.state = {} if steps is None else {weight: {"step": steps}}


class Torch:
    """A torch that calls its hook, and whose compiler can be made to look at it."""

    def __init__(self) -> None:
        self.compiles = self.captures = False
        self.compiler = SimpleNamespace(is_compiling=lambda: self.compiles)
        self.Tensor = type("Tensor", (int,), {"device": SimpleNamespace(type="cpu")})
        self.cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: self.captures)

    def step(self, optimizer: object, number: int = 1) -> None:
        for _ in range(number):
            optimizer_steps._hook(optimizer, (), {})


class Counted:
    """The numbers of the counted steps, and the heartbeats."""

    def __init__(self, first: int = 1) -> None:
        self.steps: list[int] = []
        self.beats = 0
        self.on_step = counter(self._beat, self.steps.append, first)

    def _beat(self) -> None:
        self.beats += 1


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    made = Torch()
    monkeypatch.setattr(optimizer_steps, "_torch", made)
    monkeypatch.setattr(optimizer_steps, "_on_step", optimizer_steps._first)
    monkeypatch.setattr(optimizer_steps, "_withdraw", None)
    monkeypatch.setattr(optimizer_steps, "problem", None)
    monkeypatch.setitem(__import__("sys").modules, "torch.cuda", made.cuda)
    return made


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    made = Agent(tmp_path)
    monkeypatch.setenv("FTSLURM_RECORD_DIR", str(tmp_path))
    monkeypatch.setenv("FTSLURM_PIPE", made.pipe.path)
    monkeypatch.setenv("LOCAL_RANK", "3")
    forget(monkeypatch)
    yield made
    made.pipe.close()


def test_each_step_of_the_only_optimizer_counts(torch: Torch) -> None:
    counted, optimizer = Counted(), Optimizer()
    for _ in range(30):
        counted.on_step(optimizer)
    assert counted.steps == list(range(1, 31))


def test_of_several_optimizers_the_first_one_counts_and_all_are_heartbeats(torch: Torch) -> None:
    """One per parameter, stepped in the backward pass; or a generator beside its discriminator."""
    counted, parts = Counted(), [Optimizer() for _ in range(300)]
    for _ in range(WATCHED_FROM):
        for each in parts:
            counted.on_step(each)
    assert counted.steps == list(range(1, WATCHED_FROM + 1))
    # From the step with which the watch begins, which is the first optimizer's.
    assert counted.beats == 300


@pytest.mark.parametrize("empty_groups", [False, True], ids=["stage 1", "stage 3"])
def test_an_optimizer_that_steps_one_group_after_the_other_makes_one_step_with_all(
    torch: Torch, empty_groups: bool
) -> None:
    """As DeepSpeed's ZeRO does: of the other groups, torch's optimizer sees nothing, or that they are empty."""
    counted, optimizer = Counted(first=81), Optimizer()
    weights = [Parameter() for _ in range(300)]
    for _ in range(WATCHED_FROM):
        for now in weights:
            groups = weights if empty_groups else [now]
            optimizer.param_groups = [{"params": [weight] if weight is now else []} for weight in groups]
            counted.on_step(optimizer)
    assert counted.steps == list(range(81, 81 + WATCHED_FROM))
    assert counted.beats == 300


def test_an_optimizer_that_gets_other_parameters_counts_on(torch: Torch) -> None:
    """The first ones are gone at once, or are frozen, and the model still holds them."""
    counted, optimizer = Counted(), Optimizer()
    for _ in range(3):
        optimizer.param_groups = [{"params": [Parameter()]}]
        counted.on_step(optimizer)
    assert counted.steps == [1, 2, 3]
    frozen = optimizer.param_groups
    optimizer.param_groups = [{"params": []}]
    for _ in range(TAKES_OVER + 1):
        counted.on_step(optimizer)
    assert frozen and counted.steps == [1, 2, 3, 4, 5]


def test_another_optimizer_counts_when_the_first_has_long_not_stepped(torch: Torch) -> None:
    counted, first, second = Counted(), Optimizer(), Optimizer()
    for _ in range(5):
        counted.on_step(first)
        for _ in range(TAKES_OVER - 1):
            counted.on_step(second)
    assert counted.steps == [1, 2, 3, 4, 5]
    counted.on_step(second)
    counted.on_step(second)
    counted.on_step(first)
    assert counted.steps == [1, 2, 3, 4, 5, 6, 7]


def test_another_optimizer_counts_at_once_when_the_first_is_gone(torch: Torch) -> None:
    counted = Counted()
    for _ in range(3):
        optimizer = Optimizer()
        counted.on_step(optimizer)
        counted.on_step(optimizer)
        del optimizer
        gc.collect()
    assert counted.steps == [1, 2, 3, 4, 5, 6]


def test_an_optimizer_counts_on_where_its_own_count_stands(torch: Torch) -> None:
    assert own_count(Optimizer()) is None
    assert own_count(Optimizer(81)) == 81
    assert own_count(Optimizer(torch.Tensor(81))) == 81
    assert own_count(Optimizer(81.0)) == 81
    for odd in ("many", -3, 0, 2.0**60, float("nan"), [1], type("DTensor", (torch.Tensor,), {})(81)):
        assert own_count(Optimizer(odd)) is None
    assert own_count(object()) is None
    counted = Counted(first=81)
    counted.on_step(Optimizer())
    assert counted.steps == [81]


def test_a_count_on_a_device_is_not_read(torch: Torch) -> None:
    count = torch.Tensor(81)
    count.device = SimpleNamespace(type="cuda")
    assert own_count(Optimizer(count)) is None


def test_a_script_that_reports_nothing_has_its_optimizers_steps_in_the_page(torch: Torch, agent: Agent) -> None:
    optimizer = Optimizer(7)
    torch.step(optimizer, WATCHED_FROM - 1)
    page = agent.mark
    assert page.progress is None and page.optimizer_steps is not None
    assert (page.optimizer_steps.first_step, page.optimizer_steps.last_step) == (7, 7 + WATCHED_FROM - 2)
    assert page.beats.number == 0
    torch.step(optimizer, 3)
    assert agent.mark.beats.number == 3
    assert agent.mark.pace.intervals == WATCHED_FROM + 1


@pytest.mark.parametrize("call", ["progress", "heartbeat"])
def test_a_script_that_reports_by_itself_takes_over(torch: Torch, agent: Agent, call: str) -> None:
    optimizer = Optimizer()
    torch.step(optimizer, 50)
    report: Any = {"progress": lambda: ftslurm.progress(900), "heartbeat": ftslurm.heartbeat}[call]
    report()
    torch.step(optimizer, 50)
    report()
    page = agent.mark
    assert page.optimizer_steps is None
    if call == "progress":
        assert page.progress is not None and (page.progress.first_step, page.progress.marks) == (900, 2)
        # As without the optimizer's steps: to report steps starts no watch.
        assert (page.beats.number, page.pace.intervals) == (0, 1)
    else:
        assert (page.beats.number, page.progress, page.pace.intervals) == (2, None, 0)


@pytest.mark.parametrize("call", ["progress", "heartbeat"])
def test_a_script_that_has_reported_before_keeps_its_own_reports(torch: Torch, agent: Agent, call: str) -> None:
    {"progress": lambda: ftslurm.progress(900), "heartbeat": ftslurm.heartbeat}[call]()
    before = agent.mark
    torch.step(Optimizer(), 50)
    assert agent.mark == before


@pytest.mark.parametrize("how", ["compiles", "captures"])
def test_nothing_is_claimed_of_steps_that_python_will_not_see(torch: Torch, agent: Agent, how: str) -> None:
    """A compiled step, or one in a CUDA graph: what was seen until then is withdrawn, or a hang would be claimed."""
    optimizer = Optimizer()
    torch.step(optimizer, WATCHED_FROM + 5 if how == "compiles" else 5)
    assert agent.mark.optimizer_steps is not None
    setattr(torch, how, True)
    torch.step(optimizer)
    setattr(torch, how, False)
    torch.step(optimizer, 50)
    assert agent.mark.optimizer_steps is None
    assert (agent.mark.beats.number, agent.mark.pace.intervals) == (0, 0)
    assert optimizer_steps.problem is not None


def test_the_error_of_a_kernel_is_left_to_the_script(torch: Torch, agent: Agent) -> None:
    def raises() -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    torch.cuda.is_current_stream_capturing = raises
    torch.step(Optimizer(), 5)
    page = agent.mark
    assert page.optimizer_steps is not None and page.optimizer_steps.marks == 5


def test_an_error_of_its_own_ends_it_and_not_the_script(
    torch: Torch, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = Optimizer()
    torch.step(optimizer, 50)
    monkeypatch.setattr(optimizer_steps, "ref", None)
    torch.step(Optimizer(), TAKES_OVER + 5)
    assert optimizer_steps.problem == "TypeError: 'NoneType' object is not callable"
    assert agent.mark.optimizer_steps is None


def test_a_process_without_an_agent_counts_nothing(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTSLURM_RECORD_DIR", raising=False)
    forget(monkeypatch)
    torch.step(Optimizer(), 50)
    assert optimizer_steps._on_step is optimizer_steps._nothing and optimizer_steps.problem is None
