"""The layers that a run has finished, in a folder beside its output, for `--resume` after the run was killed.

The folder belongs to one run: to a checkpoint, a recipe with its options, and the data of its passes. Each layer is a
file of arrays, written atomically; a damaged one does not count.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError, one_line, storage_errors
from intaglio.files.atomic import atomic_file, atomic_write

OPTION = "--resume"
SUFFIX = ".intaglio-resume"
RUN = "run.json"
LAYER = ".npz"


@dataclass(frozen=True)
class FinishedLayers:
    """The finished layers of one pass in `folder`; None: nothing is kept. `number` is the place of the pass."""

    folder: Path | None = None
    number: int = 0
    found: int = 0  # layers of all passes that an earlier run has left

    def of_pass(self, number: int) -> Self:
        """Those of the pass at `number` in the recipe."""
        return replace(self, number=number)

    def __contains__(self, layer: str) -> bool:
        """Whether a layer is finished; one whose file is damaged is not."""
        try:
            self.read(layer)
        except UsageError:
            return False
        return True

    def read(self, layer: str) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a finished layer. Raises `UsageError` if there are none."""
        path = self._path(self.folder or Path(), layer)
        try:
            if self.folder is None:
                raise FileNotFoundError
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                return dict(stored)
        except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
            raise UsageError(f"{OPTION}: {path} cannot be read ({one_line(error)}). Delete its folder.") from error

    def put(self, layer: str, **arrays: npt.NDArray[Any]) -> None:
        """Keep the arrays of a layer. Raises `StorageError`."""
        if self.folder is not None:
            with atomic_file(self._path(self.folder, layer)) as partial, partial.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)

    def _path(self, folder: Path, layer: str) -> Path:
        digest = hashlib.sha256(layer.encode()).hexdigest()[:32]  # names may contain characters that paths may not
        return folder / f"{self.number}-{digest}{LAYER}"


NOTHING_FINISHED = FinishedLayers()


@contextmanager
def kept_beside(output: Path, run: Mapping[str, object]) -> Iterator[FinishedLayers]:
    """Yield the finished layers of the run that makes `output`; they are removed when the block succeeds.

    `run`: everything that the layers depend on, as JSON values. Raises `UsageError` if the folder has the layers of
    another run, or another process uses it.
    """
    folder = output.absolute().with_name(f".{output.name}{SUFFIX}")
    try:
        with storage_errors(folder):
            folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise UsageError(f"{OPTION}: {folder} is no folder of layers ({error.strerror}). Delete it.") from error
    try:
        _lock(folder, descriptor)
        _check(folder, run)
        yield FinishedLayers(folder, found=len(list(folder.glob(f"*{LAYER}"))))
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _lock(folder: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"{OPTION}: another process uses {folder}. Wait for its end, or choose another output."
        ) from error
    except OSError:
        pass  # a file system without locks


def _check(folder: Path, run: Mapping[str, object]) -> None:
    """Record `run` in a new folder; raise `UsageError` if an old one is of another run."""
    expected = msgspec.json.decode(msgspec.json.encode(run), type=dict[str, Any])
    try:
        found = msgspec.json.decode((folder / RUN).read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        atomic_write(folder / RUN, msgspec.json.format(msgspec.json.encode(run), indent=2))
        return
    except (OSError, msgspec.MsgspecError):
        found = {}
    differing = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    if differing:
        raise UsageError(
            f"{OPTION}: {folder} holds the finished layers of another run, which differs in: {', '.join(differing)}. "
            "Delete it, choose another output, or repeat that run."
        )
