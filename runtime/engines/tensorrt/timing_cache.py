"""TensorRT's kernel timings, kept between builds: a second build on the same machine takes a fraction of the time.

The file is `$XDG_CACHE_HOME/intaglio/<library>-<version>-sm<SM>.timing` (`~/.cache/intaglio/...` by default).
TensorRT-RTX does not time kernels during builds and needs no such file.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from intaglio.errors import StorageError
from intaglio.files.atomic import atomic_write
from intaglio.files.hashes import cache_directory


def location(library: str, sm: int) -> Path:
    """The file with the timings for `library`, such as "tensorrt 11.4.0.106", and a compute capability."""
    return cache_directory() / f"{library.replace(' ', '-')}-sm{sm}.timing"


def attach(config: Any, path: Path) -> None:
    """Attach the timings at `path` to an `IBuilderConfig`, or an empty cache if it does not accept them."""
    try:
        stored = path.read_bytes()
    except OSError:
        stored = b""
    cache = config.create_timing_cache(stored) if stored else None
    if cache is None or not config.set_timing_cache(cache, False):
        config.set_timing_cache(config.create_timing_cache(b""), False)


def keep(config: Any, path: Path) -> None:
    """Store the timings of a finished build at `path`; failure to do so only makes the next build slower."""
    cache = config.get_timing_cache()
    if cache is None:
        return
    with contextlib.suppress(OSError, StorageError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, bytes(cache.serialize()))
