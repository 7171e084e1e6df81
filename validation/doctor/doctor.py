"""The function `doctor`: everything that a report of a fault should say, and what is broken."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from intaglio import version
from intaglio.files.hashes import cache_directory
from intaglio.storage.cache import bundle_cache
from intaglio.validation.doctor.cuda import driver_problems
from intaglio.validation.doctor.kernels import Kernels, kernels
from intaglio.validation.doctor.machine import Gpus, System, gpus, system
from intaglio.validation.doctor.packages import Extra, Package, installed
from intaglio.validation.doctor.private import without_home


class Cache(msgspec.Struct, frozen=True):
    """Files that are kept between runs, and can be removed at any time."""

    path: str
    bytes: int


class Doctor(msgspec.Struct, frozen=True):
    """The result of `doctor`. Paths in the home directory begin with ~."""

    healthy: bool  # there are no problems
    version: str
    location: str
    problems: list[str]  # what is broken: a line each, with the fix
    notices: list[str]  # what works, and could work better
    system: System
    packages: list[Package]
    extras: list[Extra]
    kernels: Kernels
    gpus: Gpus
    caches: list[Cache]


def doctor() -> Doctor:
    """Examine this installation and this machine, without importing torch or TensorRT."""
    packages, library, devices = installed(), kernels(), gpus()
    problems = [*packages.problems, *library.problems, *([devices.problem] if devices.problem else [])]
    problems += driver_problems(devices)
    notices = []
    if library.library is None and not library.problems:
        notices.append(
            "no library of CPU kernels: Intaglio was installed without a C++ compiler, and its operators run several "
            "times slower. Install g++ or clang++, then: pip install --force-reinstall --no-deps intaglio"
        )
    return Doctor(
        not problems,
        version.__version__,
        without_home(Path(version.__file__).parent),
        problems,
        notices,
        system(),
        packages.packages,
        packages.extras,
        library,
        devices,
        _caches(),
    )


def _caches() -> list[Cache]:
    """What lies in Intaglio's cache directory, and the bundles fetched from addresses, with the sizes."""
    entries = []
    with contextlib.suppress(OSError):
        entries = sorted(cache_directory().iterdir())
    if (bundles := bundle_cache()).is_dir() and bundles not in entries:
        entries.append(bundles)
    return [Cache(without_home(entry), _bytes(entry)) for entry in entries]


def _bytes(entry: Path) -> int:
    """The size of a file, or of all files in a folder, without those that another process removes meanwhile."""
    files = [Path(folder, name) for folder, _, names in os.walk(entry) for name in names]
    total = 0
    for path in files if entry.is_dir() else [entry]:
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total
