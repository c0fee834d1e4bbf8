"""Records that an agent has kept on its node are removed by a later start of the same user, by their age."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ftslurm.leftovers import KEPT_S, remove_kept

NOW = time.time()


def kept(base: Path, name: str, days: float, prefix: str | None = None) -> Path:
    path = base / f"{prefix or f'ftslurm-{os.getuid()}-kept-'}{name}"
    (path / "rounds").mkdir(parents=True)
    (path / "rounds" / "error.json").write_text("{}")
    os.utime(path, (NOW - days * 86400, NOW - days * 86400))
    return path


def test_old_ones_are_removed_and_nothing_else(tmp_path: Path) -> None:
    old, young = kept(tmp_path, "0123abcd", 8), kept(tmp_path, "0123abce", 6)
    others = [
        kept(tmp_path, "0123abcd", 8, f"ftslurm-{os.getuid() + 1}-kept-"),
        kept(tmp_path, "mine", 8),
        kept(tmp_path, "0123abcd", 8, "kept-"),
    ]
    assert KEPT_S == 7 * 86400
    remove_kept([str(tmp_path), str(tmp_path / "missing")], NOW)
    assert not old.exists()
    assert [path.exists() for path in (young, *others)] == [True] * 4


def test_a_link_in_its_place_or_inside_leads_nowhere(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").touch()
    os.utime(target, (0, 0))
    base = tmp_path / "base"
    base.mkdir()
    link = base / f"ftslurm-{os.getuid()}-kept-0123abcd"
    link.symlink_to(target)
    inside = kept(base, "0123abce", 8)
    (inside / "rounds" / "link").symlink_to(target)
    os.utime(inside, (0, 0))
    remove_kept([str(base)], NOW)
    assert link.is_symlink() and not inside.exists()
    assert (target / "file").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_another_users_stays(tmp_path: Path) -> None:
    path = kept(tmp_path, "0123abcd", 8)
    os.chown(path, 12345, 12345)
    os.utime(path, (0, 0))
    remove_kept([str(tmp_path)], NOW)
    assert path.exists()
