"""Compiled kernels, kept in the user's cache directory under a hash of all their dependencies."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

from intaglio.errors import StorageError
from intaglio.files.atomic import atomic_write
from intaglio.files.hashes import cache_directory
from intaglio.plugins.cuda.launching.geometry import PLUGINS


def key(folder: str, *others: object) -> str:
    """A hash of a `kernel.cu`, every header it may include, and `others`: options, versions.

    It does not depend on where they lie: another installation or checkout need not compile the same kernels again.
    """
    digest = hashlib.sha256(repr(others).encode())
    kernels, shared = PLUGINS / folder, PLUGINS / "cuda"
    read = [(PLUGINS, PLUGINS / "integer_math.h"), (kernels, kernels / "kernel.cu")]
    read += [(kernels, path) for path in sorted(kernels.glob("*.h"))]
    read += [(directory, path) for directory in (kernels, shared) for path in sorted(directory.rglob("*.cuh"))]
    for directory, path in read:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(directory)} {len(data)}\n".encode() + data)
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
