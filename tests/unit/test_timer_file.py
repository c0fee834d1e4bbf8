"""What torch's file timer finds in a rank's environment: what torch's agent hands on, out of other launchers' way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.monitor.timer_file import ENABLE, FILE, TimerFile


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("inherited", [{}, {ENABLE: "1"}])
def test_each_rank_has_a_name_of_its_own_for_the_pipe_and_nothing_else(pipe: Path, inherited: dict[str, str]) -> None:
    file = TimerFile(inherited, str(pipe))
    names = [file.environment(local_rank) for local_rank in (0, 1)]
    assert [set(one) for one in names] == [{FILE}, {FILE}]
    assert names[0] != names[1]
    assert all(Path(one[FILE]).samefile(pipe) for one in names)


@pytest.mark.parametrize(
    "inherited", [{ENABLE: "0"}, {ENABLE: ""}, {ENABLE: "true"}, {FILE: "/mine"}, {FILE: "/mine", ENABLE: "0"}]
)
def test_an_environment_that_switches_timers_off_or_serves_them_is_left_alone(
    pipe: Path, inherited: dict[str, str]
) -> None:
    file = TimerFile(inherited, str(pipe))
    assert file.environment(0) == {}
    assert file.serve() is None
    assert os.listdir(pipe.parent) == ["pipe"]


def test_what_a_launcher_in_a_rank_took_over_comes_back_when_it_is_gone(pipe: Path) -> None:
    file = TimerFile({}, str(pipe))
    name = file.environment(0)[FILE]
    # As torch's FileTimerServer does.
    os.remove(name)
    os.mkfifo(name)
    file.restore()
    assert not Path(name).samefile(pipe)
    os.remove(name)
    file.restore()
    assert Path(name).samefile(pipe)


def test_the_next_round_does_not_find_what_a_killed_launcher_left(pipe: Path) -> None:
    file = TimerFile({}, str(pipe))
    name = file.environment(0)[FILE]
    os.remove(name)
    os.mkfifo(name)
    assert Path(file.environment(0)[FILE]).samefile(pipe)


@pytest.mark.parametrize("before", ["nothing", "pipe", "link"])
def test_a_path_that_the_user_has_chosen_leads_to_the_pipe_until_the_end(
    pipe: Path, tmp_path: Path, before: str
) -> None:
    place = tmp_path / "mine"
    if before == "pipe":
        os.mkfifo(place)
    elif before == "link":
        place.symlink_to("/nowhere")
    file = TimerFile({ENABLE: "1", FILE: str(place)}, str(pipe))
    assert file.environment(0) == {}
    assert file.serve() is None
    assert place.samefile(pipe)
    file.withdraw()
    assert not os.path.lexists(place)


def test_a_file_of_the_users_is_not_removed_for_a_pipe(pipe: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    file = TimerFile({ENABLE: "1", FILE: str(tmp_path / "mine")}, str(pipe))
    assert "expected a path for a pipe, found another file" in str(file.serve())
    file.withdraw()
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_path_that_cannot_be_made_is_reported(pipe: Path) -> None:
    file = TimerFile({ENABLE: "1", FILE: str(pipe / "below")}, str(pipe))
    assert "Not a directory" in str(file.serve())
