"""The client's functions, called in this process as in a rank's."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ftslurm
from ftslurm.monitor import client, heartbeat_page
from ftslurm.monitor.heartbeat_page import HeartbeatPage, SectionSlot
from ftslurm.monitor.link import MAX_REPORTS
from ftslurm.monitor.message import ClientMessage, MalformedMessage, Timer, parse
from ftslurm.monitor.pipe import Pipe
from ftslurm.monitor.section import NOT_OPEN, OPENED_TWICE
from ftslurm.monitor.timeouts import Learned, Spans, Timeouts, to_env


class Agent:
    """What the agent sees of this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pipe = Pipe(str(directory / "node"))

    @property
    def mark(self) -> HeartbeatPage:
        found = heartbeat_page.read(self.directory)
        assert found is not None
        return found

    def section(self, name: str) -> SectionSlot:
        return next(section for section in self.mark.sections if section.name == name)

    def heard(self) -> list[tuple[str, str, str]]:
        received = [parse(line) for line in self.pipe.read()]
        assert all(isinstance(each, ClientMessage) and (each.rank, each.pid) == (3, os.getpid()) for each in received)
        return [
            (each.kind, each.what, each.name) for each in received if not isinstance(each, (MalformedMessage, Timer))
        ]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "_agent": None,
        "_connected": False,
        "_known": {},
        "_loaded": None,
        "_beat": client._first_beat,
        "_step": client._first_step,
    }.items():
        monkeypatch.setattr(client, name, value)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    made = Agent(tmp_path)
    monkeypatch.setenv("FTSLURM_RECORD_DIR", str(tmp_path))
    monkeypatch.setenv("FTSLURM_PIPE", made.pipe.path)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("FTSLURM_TIMEOUTS", raising=False)
    forget(monkeypatch)
    yield made
    made.pipe.close()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTSLURM_RECORD_DIR", raising=False)
    forget(monkeypatch)


def everything() -> None:
    """Call every function once."""
    ftslurm.heartbeat()
    ftslurm.progress(1)
    with ftslurm.section("a", timeout=5):
        pass
    ftslurm.start_section("b")
    ftslurm.end_section("b")
    ftslurm.end_section("b")
    ftslurm.end_all_sections()
    ftslurm.set_timeouts(heartbeat=1, sections={"a": 3})
    ftslurm.load_state_dict(ftslurm.state_dict())
    ftslurm.workload_finished()


def test_every_function_is_exported() -> None:
    names = "heartbeat section start_section end_section end_all_sections progress workload_finished set_timeouts"
    for name in [*names.split(), "state_dict", "load_state_dict"]:
        assert getattr(ftslurm, name) is getattr(client, name)


@pytest.mark.usefixtures("alone")
def test_outside_an_agent_all_functions_do_nothing(tmp_path: Path) -> None:
    def function() -> int:
        return 3

    everything()
    assert ftslurm.section("x")(function) is function
    assert list(tmp_path.iterdir()) == []


def test_a_record_directory_that_is_gone_is_logged_once_and_harms_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FTSLURM_RECORD_DIR", str(tmp_path / "gone"))
    forget(monkeypatch)
    everything()
    everything()
    assert capfd.readouterr().err.count("ftslurm: this rank cannot be watched: FileNotFoundError") == 1


def test_heartbeats_and_steps_stand_in_the_mark(agent: Agent) -> None:
    for step in range(3):
        ftslurm.heartbeat()
        ftslurm.progress(step)
    assert agent.mark.beats.number == 3
    assert agent.mark.progress is not None
    assert agent.mark.progress.last_step == 2
    assert agent.heard() == []


def test_progress_alone_does_not_opt_in(agent: Agent) -> None:
    ftslurm.progress(1)
    assert not agent.mark.opted_in
    ftslurm.heartbeat()
    assert agent.mark.opted_in


@pytest.mark.parametrize("step", [2**63, "x", None, math.nan, object()])
def test_a_step_that_is_none_is_ignored(agent: Agent, step: Any) -> None:
    ftslurm.progress(4)
    ftslurm.progress(step)
    assert agent.mark.progress is not None
    assert agent.mark.progress.marks >= 1


def test_a_section_is_open_while_it_is(agent: Agent) -> None:
    with ftslurm.section("data") as section:
        assert agent.section("data").opened_ns > 0
        with ftslurm.section("inner"):
            assert agent.section("inner").opened_ns > agent.section("data").opened_ns
    assert (agent.section("data").opened_ns, agent.section("inner").opened_ns) == (0, 0)
    assert agent.section("data").longest_ns > agent.section("inner").longest_ns > 0
    with section:
        assert agent.section("data").opens == 2
    assert agent.mark.out_longest_ns > 0
    assert agent.heard() == []


def test_an_exception_closes_its_section_and_goes_on(agent: Agent) -> None:
    with pytest.raises(KeyError), ftslurm.section("data"):
        raise KeyError
    assert agent.section("data").opened_ns == 0


def test_opening_twice_is_reported_once_and_the_outer_one_stays_open(agent: Agent) -> None:
    for _ in range(3):
        with ftslurm.section("data"):
            opened = agent.section("data").opened_ns
            with ftslurm.section("data"):
                pass
            ftslurm.start_section("data")
            assert agent.section("data").opened_ns == opened
        assert agent.section("data").opened_ns == 0
    assert agent.heard() == [("misuse", OPENED_TWICE, "data")]
    assert agent.mark.misused == 6


def test_closing_what_is_not_open_is_reported(agent: Agent) -> None:
    ftslurm.end_section("data")
    ftslurm.end_section("never")
    assert agent.heard() == [("misuse", NOT_OPEN, "data"), ("misuse", NOT_OPEN, "never")]


def test_all_sections_are_closed_at_once(agent: Agent) -> None:
    ftslurm.start_section("a")
    ftslurm.start_section("b")
    ftslurm.end_all_sections()
    ftslurm.end_all_sections()
    assert [section.opened_ns for section in agent.mark.sections] == [0, 0]
    ftslurm.start_section("a")
    assert agent.section("a").opened_ns > 0
    assert agent.heard() == []


def test_functions_run_in_their_section_of_every_kind(agent: Agent) -> None:
    def is_open() -> bool:
        return agent.section("work").opened_ns > 0

    @ftslurm.section("work")
    def plain(a: int, *, b: int) -> tuple[int, bool]:
        """Say it."""
        return a + b, is_open()

    @ftslurm.section("work")
    async def later() -> bool:
        await asyncio.sleep(0)
        return is_open()

    @ftslurm.section("work")
    def generate() -> Iterator[bool]:
        yield is_open()

    assert not is_open()
    assert plain(1, b=2) == (3, True)
    assert (plain.__name__, plain.__doc__) == ("plain", "Say it.")
    assert asyncio.run(later())
    assert list(generate()) == [True]
    assert not is_open()
    assert agent.section("work").opens == 3
    assert agent.heard() == []


@pytest.mark.parametrize("name", ["", "x" * 41, "ü" * 21, "a\0b", "\udcff", None, 3])
def test_a_name_that_cannot_be_one_is_reported_and_harmless(agent: Agent, name: Any) -> None:
    for _ in range(2):
        with ftslurm.section(name):
            assert agent.mark.sections == ()
            assert agent.mark.unlisted == 1
    assert agent.mark.unlisted == 0
    assert [kind for kind, *_ in agent.heard()] == ["misuse"]
    unhashable: Any = ["x"]
    with ftslurm.section(unhashable):
        pass


def test_more_sections_than_slots_are_reported_once_and_count_as_open(agent: Agent) -> None:
    for i in range(heartbeat_page.SLOTS + 10):
        ftslurm.start_section(f"section {i}")
    assert len(agent.mark.sections) == heartbeat_page.SLOTS
    assert agent.mark.unlisted == 10
    ftslurm.start_section(f"section {heartbeat_page.SLOTS + 1}")
    for i in range(heartbeat_page.SLOTS + 10):
        ftslurm.end_section(f"section {i}")
    assert agent.mark.unlisted == 0
    what = f"more than {heartbeat_page.SLOTS} names of sections: further ones are not watched"
    assert agent.heard() == [("misuse", what, ""), ("misuse", OPENED_TWICE, f"section {heartbeat_page.SLOTS + 1}")]


def test_misuses_without_end_do_not_fill_the_pipe(agent: Agent) -> None:
    for i in range(500):
        ftslurm.section(f"{i}" * 50)
    assert len(agent.heard()) == MAX_REPORTS
    assert agent.mark.misused == 500


def test_a_sections_own_timeout_is_reported_when_it_changes(agent: Agent) -> None:
    for timeout in (5, 5, 5, 7.5, math.inf):
        with ftslurm.section("data", timeout):
            assert agent.section("data").timeout_s == timeout
    with ftslurm.section("data"):
        assert agent.section("data").timeout_s == math.inf
    assert agent.heard() == [("timeouts", "", "")] * 3


@pytest.mark.parametrize("timeout", [0, -1, math.nan, "5", True])
def test_a_timeout_that_is_none_is_reported_and_leaves_what_was(agent: Agent, timeout: Any) -> None:
    ftslurm.section("data", timeout=9)
    with ftslurm.section("data", timeout=timeout):
        assert agent.section("data").timeout_s == 9
    ftslurm.set_timeouts(heartbeat=timeout)
    assert agent.mark.heartbeat_s is None
    assert [kind for kind, *_ in agent.heard()] == ["timeouts", "misuse", "misuse"]


def test_timeouts_of_this_rank_are_set_at_once(agent: Agent) -> None:
    ftslurm.set_timeouts(heartbeat=30, initial=math.inf, sections={"data": 5}, out_of_section=60)
    found = agent.mark
    assert (found.heartbeat_s, found.initial_s, found.out_of_section_s) == (30, math.inf, 60)
    assert agent.section("data") == SectionSlot("data", 0, 0, 0, 5)
    ftslurm.set_timeouts(heartbeat=30)
    ftslurm.set_timeouts()
    assert agent.heard() == [("timeouts", "", "")]
    ftslurm.set_timeouts(heartbeat=31)
    assert agent.mark.initial_s == math.inf
    assert agent.heard() == [("timeouts", "", "")]


def test_what_did_not_get_into_the_pipe_is_counted_and_reported_later(agent: Agent) -> None:
    os.unlink(agent.pipe.path)
    with ftslurm.section("data", timeout=5):
        pass
    assert agent.mark.dropped == 1
    agent.pipe.check()
    with ftslurm.section("data"):
        pass
    assert agent.heard() == [("timeouts", "", "")]
    with ftslurm.section("data"):
        pass
    assert agent.heard() == []


def test_a_full_pipe_drops_and_counts(agent: Agent) -> None:
    fd = os.open(agent.pipe.path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(fd, b"x" * 4095 + b"\n")
    except BlockingIOError:
        os.close(fd)
    everything()
    assert agent.mark.dropped > 0
    assert agent.mark.finished


def test_nothing_is_written_into_a_file_in_the_pipes_place(agent: Agent) -> None:
    os.unlink(agent.pipe.path)
    Path(agent.pipe.path).write_text("precious")
    everything()
    assert Path(agent.pipe.path).read_text() == "precious"
    assert agent.mark.dropped > 0


def test_a_finished_workload_stays_finished(agent: Agent) -> None:
    ftslurm.workload_finished()
    ftslurm.heartbeat()
    assert agent.mark.finished
    assert agent.heard() == [("finished", "", "")]


def test_many_threads_use_sections_and_heartbeats_at_once(agent: Agent) -> None:
    stuck: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(300):
                with ftslurm.section(f"own {number}"), ftslurm.section("common"):
                    ftslurm.heartbeat()
                with ftslurm.section(f"new {i % 60}"):
                    ftslurm.progress(i)
        except BaseException as problem:
            stuck.append(problem)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stuck == []
    found = agent.mark
    names = [section.name for section in found.sections]
    assert len(names) == len(set(names)) == heartbeat_page.SLOTS
    assert [section.name for section in found.sections if section.opened_ns] == []
    assert found.unlisted == 0
    with ftslurm.section("common"):
        assert agent.section("common").opened_ns > 0


# Learned time-outs in checkpoints


def test_without_anything_learned_the_state_is_empty(agent: Agent) -> None:
    assert ftslurm.state_dict() == {"version": 1, "timeouts": {}}
    assert agent.mark.opted_in is False


def test_the_state_is_what_the_run_has_learned_and_what_this_rank_has_measured(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = Learned(Spans(100, 200, {"data": 300}, 400), 3)
    monkeypatch.setenv("FTSLURM_TIMEOUTS", to_env(Timeouts(), learned))
    assert ftslurm.state_dict() == {
        "version": 1,
        "timeouts": {"initial_s": 100, "heartbeat_s": 200, "sections": {"data": 300}, "out_of_section_s": 400},
        "rounds": 3,
    }
    ftslurm.heartbeat()
    words: Any = client._agent and client._agent.words
    words[heartbeat_page.BEAT_LONGEST] = 200 * 10**9
    state = ftslurm.state_dict()
    assert state["timeouts"]["heartbeat_s"] == 1000
    assert state["timeouts"]["initial_s"] == 100


def test_a_loaded_state_holds_where_nothing_else_was_asked_for(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Timeouts(heartbeat_s=11, sections={"asked": 12})
    learned = Learned(Spans(initial_s=500, out_of_section_s=5), 1)
    monkeypatch.setenv("FTSLURM_TIMEOUTS", to_env(asked, learned))
    ftslurm.section("own", timeout=13)
    sections = {"asked": 100, "own": 100, "loaded": 100}
    timeouts = {"initial_s": 100, "heartbeat_s": 100, "out_of_section_s": 100, "sections": sections}
    agent.heard()
    ftslurm.load_state_dict({"version": 1, "timeouts": timeouts, "rounds": 2})
    found = agent.mark
    assert (found.initial_s, found.heartbeat_s, found.out_of_section_s) == (500, None, 100)
    assert {section.name: section.timeout_s for section in found.sections} == {"own": 13, "loaded": 100}
    assert agent.heard() == [("timeouts", "", "")]
    state = ftslurm.state_dict()
    assert (state["timeouts"]["initial_s"], state["timeouts"]["out_of_section_s"]) == (500, 100)


@pytest.mark.usefixtures("alone")
def test_a_state_passes_unharmed_through_a_run_without_an_agent() -> None:
    state = {"version": 1, "timeouts": {"heartbeat_s": 100.0}, "rounds": 4}
    ftslurm.load_state_dict(state)
    assert ftslurm.state_dict() == state


@pytest.mark.parametrize(
    "state",
    [
        None,
        3,
        [],
        {},
        {"version": 2},
        {"version": 1, "timeouts": 3},
        {"version": 1, "timeouts": {"heartbeat_s": "x"}},
        {"version": 1, "timeouts": {"sections": {"x" * 50: 3}}},
    ],
)
def test_a_wrong_state_is_ignored_and_reported(agent: Agent, state: Any, capfd: pytest.CaptureFixture[str]) -> None:
    ftslurm.load_state_dict(state)
    printed = capfd.readouterr().err
    assert printed.startswith("ftslurm: load_state_dict: ignored, the state is not one of ours: ")
    assert printed.count("\n") == 1
    assert agent.heard() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"asked": {"heartbeat_s": "x"}}'])
def test_a_wrong_environment_leaves_the_client_working(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("FTSLURM_TIMEOUTS", text)
    everything()
    assert agent.mark.beats.number == 1


def test_what_a_signal_handler_of_the_users_raises_in_the_middle_of_a_call_is_not_swallowed(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler(number: int, frame: object) -> None:
        raise RuntimeError("told to stop")

    def beat() -> None:
        signal.raise_signal(signal.SIGUSR1)

    ftslurm.heartbeat()
    monkeypatch.setattr(client, "_beat", beat)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(RuntimeError, match="told to stop"):
            ftslurm.heartbeat()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_wait_within_ftslurm_is_excused_and_opts_in_to_nothing(agent: Agent) -> None:
    client.excuse(5.0)
    assert agent.mark.excused_ns > time.monotonic_ns()
    assert not agent.mark.opted_in


def test_a_wait_without_an_agent_is_nothing(alone: None) -> None:
    client.excuse(5.0)
