"""After a kill at any moment, outputs are complete, and the next process removes the leftovers."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.files import atomic, hashes
from intaglio.processes import temporary

HOLD = """
import sys
from pathlib import Path
from intaglio.processes.temporary import temporary_directory
with temporary_directory(Path(sys.argv[1]), ".out.") as directory:
    (directory / "file").write_text("x")
    print(directory, flush=True)
    sys.stdin.read()
"""
# Replaces a directory of two equal files repeatedly, each time with the next number.
REPLACE = """
import sys
from pathlib import Path
from intaglio.files import atomic
from intaglio.processes import temporary
if sys.argv[2] == "rename":
    atomic._exchange = lambda one, other: False
target = Path(sys.argv[1])
number = int((target / "one").read_text() or 0) if target.exists() else 0
while True:
    number += 1
    with atomic.atomic_directory(target, force=True) as directory:
        for name in ("one", "bundle.json"):
            (directory / name).write_text(str(number))
    print(number, flush=True)
"""
# Creates temporary directories concurrently with other processes, and looks for dead ones each time.
CROWD = """
import sys
from pathlib import Path
from intaglio.files import atomic
from intaglio.processes import temporary
for _ in range(300):
    temporary._swept.clear()
    with temporary.temporary_directory(Path(sys.argv[1]), ".out.") as directory:
        (directory / "file").write_text("x")
        assert (directory / "file").read_text() == "x"
"""
PARENT = """
import sys
from intaglio.processes import children
children.run("sleeper", sys.argv[1])
"""
SLEEPER = """
import os, sys, time
from pathlib import Path
Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def work_in(place: Path) -> None:
    """The cleanup of the next command in a folder."""
    temporary._swept.clear()
    with temporary.temporary_directory(place, ".out."):
        pass


def test_leftovers_of_a_killed_process_are_removed_by_the_next_one(tmp_path: Path) -> None:
    process = start(HOLD, tmp_path)
    directory = Path(line(process))
    kill(process)
    assert (directory / "file").exists()
    work_in(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_work_folder_of_a_living_process_is_kept(tmp_path: Path) -> None:
    process = start(HOLD, tmp_path)
    directory = Path(line(process))
    work_in(tmp_path)
    assert (directory / "file").read_text() == "x"
    process.communicate("")
    assert list(tmp_path.iterdir()) == []


def test_unrelated_files_are_kept(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / f".out.abcdefgh{temporary.SUFFIX}").symlink_to(precious)
    (tmp_path / f".out.abcdefgi{temporary.SUFFIX}").write_text("a file")
    (tmp_path / f".out.short{temporary.SUFFIX}").mkdir()
    (tmp_path / ".out.abcdefgh.tmp").mkdir()
    (tmp_path / f".out.abcdefgh{temporary.SUFFIX}.kept").mkdir()
    before = sorted(tmp_path.iterdir())
    work_in(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_concurrent_cleanups_do_not_interfere(tmp_path: Path) -> None:
    crowd = [start(CROWD, tmp_path) for _ in range(3)]
    for process in crowd:
        process.communicate()
    assert [process.returncode for process in crowd] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["exchange", "rename"])
def test_kill_at_any_moment_leaves_the_old_or_the_new_output(how: str, tmp_path: Path) -> None:
    moments, target = random.Random(how), tmp_path / "out"
    for _ in range(6):
        process = start(REPLACE, target, how)
        number = int(line(process))
        time.sleep(moments.uniform(0, 0.05))
        kill(process)
        atomic.restore(target)
        content = (target / "one").read_text()
        assert (target / "bundle.json").read_text() == content
        assert int(content) >= number
    work_in(tmp_path)
    assert list(tmp_path.iterdir()) == [target]


def test_backed_up_bundle_of_a_dead_process_is_found(tiny_bundle_copy: Path) -> None:
    aside = atomic._aside(tiny_bundle_copy)
    tiny_bundle_copy.rename(aside)
    Bundle.open(tiny_bundle_copy)
    assert not aside.exists()


def test_backed_up_checkpoint_of_a_dead_process_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    aside = atomic._aside(folder)
    folder.rename(aside)
    assert Checkpoint.open(str(folder)).folder == folder
    assert not aside.exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.ENOSYS])
def test_two_renames_replace_an_unsupported_exchange(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        def renameat2(self, *arguments: object) -> int:
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: Library())
    target = tmp_path / "b"
    target.mkdir()
    (target / "bundle.json").write_text("old")
    with atomic.atomic_directory(target, force=True) as temporary:
        (temporary / "bundle.json").write_text("new")
    assert (target / "bundle.json").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("path", ["/", "..", "nul\0", "x" * 300, "no/such/place"])
def test_paths_that_cannot_have_a_backup_find_none(path: str) -> None:
    atomic.restore(Path(path))


def test_directories_are_exchanged_atomically(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not atomic._exchange(tmp_path / "one", tmp_path / "other"):
        pytest.skip("this file system cannot")
    assert (tmp_path / "one" / "other").exists() and (tmp_path / "other" / "one").exists()


def test_longest_allowed_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    atomic.atomic_write(path, b"x")
    with atomic.atomic_directory(tmp_path / ("ü" * 110)):
        pass
    assert path.read_bytes() == b"x"


def test_child_process_ends_with_a_killed_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    parent = start(PARENT, tmp_path / "pid")
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert parent.poll() is None
        time.sleep(0.01)
    child = int((tmp_path / "pid").read_text())
    kill(parent)
    for _ in range(500):
        if not _runs(child):
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child went on")


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_cache_directory_does_not_exist_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert not hashes.cache_directory().exists()
