"""Compiled kernels, kept in the user's cache directory under a hash of all their dependencies."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

from intaglio.errors import StorageError
from intaglio.files import atomic_write, cache_directory
from intaglio.plugins.cuda.geometry import PLUGINS


def key(folder: str, *others: object) -> str:
    """A hash of a `kernel.cu`, every header it may include, and `others`: options, versions."""
    digest = hashlib.sha256(repr(others).encode())
    directories = (PLUGINS / folder, PLUGINS / "cuda")
    headers = [path for directory in directories for path in sorted(directory.rglob("*.cuh"))]
    for path in (PLUGINS / folder / "kernel.cu", PLUGINS / "integer_math.h", *headers):
        data = path.read_bytes()
        digest.update(f"{path} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:32]


def location(name: str) -> Path:
    """The path of `name` in the cache."""
    return cache_directory() / "kernels" / name


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """The content of the cache's file `name`; created by `make` if missing, or if the cache cannot be written."""
    path = location(name)
    with contextlib.suppress(OSError):
        return path.read_bytes()
    data = make()
    with contextlib.suppress(OSError, StorageError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, data)
    return data
