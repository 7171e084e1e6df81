"""A directory gets folders and files beside its others, or does not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from intaglio.files.atomic import atomic_update


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


OLD = {"a/1/x": "a1", "a/config": "old", "b/1/x": "b1", "index": "old"}
NEW = {"a/2/x": "a2", "a/2/deep/y": "a2", "a/config": "new", "b/2/x": "b2", "c/1/x": "c1", "index": "new"}


def test_folders_are_added_and_files_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(target, OLD)
    kept = (target / "a" / "1").stat().st_ino
    with atomic_update(target) as folder:
        write(folder, NEW)
        assert contents(target) == OLD
    assert contents(target) == OLD | NEW and (target / "a" / "1").stat().st_ino == kept
    assert list(tmp_path.iterdir()) == [target]


def test_failure_while_writing_leaves_the_target(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(target, OLD)
    with pytest.raises(ZeroDivisionError), atomic_update(target) as folder:
        write(folder, NEW)
        raise ZeroDivisionError
    assert contents(target) == OLD and list(tmp_path.iterdir()) == [target]


def test_failure_while_moving_takes_back_what_was_moved(tmp_path: Path) -> None:
    """A folder is in the place of the last file, when the others have been moved."""
    target = tmp_path / "target"
    write(target, OLD | {"z/x": "z"})
    with pytest.raises(OSError, match="z"), atomic_update(target) as folder:
        write(folder, NEW | {"z": "a file"})
    assert contents(target) == OLD | {"z/x": "z"}
    assert not (target / "a" / "2").exists() and not (target / "c").exists()
    assert list(tmp_path.iterdir()) == [target]
