"""A full disk prints one line with the disk and its free space, in every library; a real one is mounted."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from intaglio.errors import StorageError, UsageError, storage_errors
from intaglio.files.atomic import atomic_directory, atomic_file
from intaglio.runtime import build

ROOM = 256 << 10  # bytes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "none", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def safetensors(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(1 << 20, np.float32)}, folder / "x.safetensors")


def tokenizers(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    words = {f"{'w' * 60}{number}": number for number in range(20_000)}
    Tokenizer(models.WordLevel(words, unk_token="w")).save(str(folder / "tokenizer.json"))  # noqa: S106


def torch(folder: Path) -> None:
    import torch

    torch.save({"x": torch.zeros(1 << 20)}, folder / "x.pt")


def numpy(folder: Path) -> None:
    with (folder / "x").open("wb") as file:
        np.zeros(1 << 20, np.float32).tofile(file)


@pytest.mark.parametrize("write", [safetensors, tokenizers, torch, numpy], ids=lambda write: write.__name__)
def test_full_disk_prints_one_line_for_every_library(write: object, disk: Path) -> None:
    with pytest.raises(StorageError) as refused, atomic_directory(disk / "out") as folder:
        write(folder)  # type: ignore[operator]
    message = str(refused.value)
    assert message.startswith(f"cannot write {disk / 'out'}: No space left on device; needs more than ")
    assert f"{disk} has " in message and "bytes free" in message and "\n" not in message
    assert not list(disk.iterdir())


def test_file_that_does_not_fit_is_removed(disk: Path) -> None:
    with pytest.raises(StorageError, match="No space left on device"), atomic_file(disk / "out") as path:
        path.write_bytes(bytes(2 * ROOM))
    assert not list(disk.iterdir())


def test_other_errors_are_not_reported_as_full_disk(disk: Path) -> None:
    with pytest.raises(ValueError, match="ours"), atomic_directory(disk / "out"):
        raise ValueError("ours")
    with pytest.raises(UsageError), atomic_directory(disk / "out"):
        raise UsageError("ours")


def test_unreadable_file_is_not_reported_as_unwritable(tmp_path: Path) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "source" / "model.safetensors"))
    with pytest.raises(PermissionError, match="source"), atomic_directory(tmp_path / "output"):
        raise denied
    for name in (tmp_path / "output", tmp_path / "output" / "model.onnx", tmp_path):
        with pytest.raises(StorageError, match=r"cannot write .*output"), storage_errors(tmp_path / "output"):
            raise PermissionError(errno.EACCES, "Permission denied", str(name))


def test_disk_full_while_building_an_engine_prints_one_line(tiny_bundle: Path, disk: Path) -> None:
    room = sum(-(-file.stat().st_size // 4096) * 4096 for file in tiny_bundle.rglob("*") if file.is_file()) + (40 << 10)
    subprocess.run(["mount", "-o", f"remount,size={room}", str(disk)], check=True)
    shutil.copytree(tiny_bundle, disk / "bundle")
    before = sorted(disk.rglob("*"))
    with pytest.raises(StorageError, match=r"cannot write .*engines: No space left on device"):
        build(disk / "bundle", "ort-cpu")
    assert sorted(disk.rglob("*")) == before
