"""A stretch of a graph as a task: it is opened once in each process, and run batch after batch."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.engine import Array, Engine
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine

Contents = dict[str, npt.NDArray[np.uint8]]


class Stretch:
    """The folder of a model.onnx with its weights. Pickled, it is the content of the files: nodes share no folder."""

    def __init__(self, folder: Path, spinning: bool = False, contents: Contents | None = None, key: str = ""):
        """`contents`: of the files, where `folder` belongs to another machine. `key` tells stretches apart.

        `spinning`: as of `OnnxRuntimeEngine`.
        """
        self.folder, self.spinning, self.contents = folder, spinning, contents
        self.key = key or uuid.uuid4().hex

    def __reduce__(self) -> tuple[Callable[..., Stretch], tuple[Path, bool, Contents, str]]:
        contents = self.contents or {path.name: np.fromfile(path, np.uint8) for path in self.folder.iterdir()}
        return Stretch, (self.folder, self.spinning, contents, self.key)


class _Open:
    """The engine of this process, of the stretch `key`."""

    key = ""
    engine: Engine
    resources = ExitStack()


def run_stretch(stretch: Stretch, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of `stretch` by name; it stays open until another one is run."""
    if _Open.key != stretch.key:
        close_stretch()
        folder = stretch.folder
        if stretch.contents is not None:
            folder = _Open.resources.enter_context(scratch_directory("stretch"))
            for name, content in stretch.contents.items():
                content.tofile(folder / name)
        _Open.engine = _Open.resources.enter_context(
            OnnxRuntimeEngine(folder / "model.onnx", spinning=stretch.spinning)
        )
        _Open.key = stretch.key
    return _Open.engine.run(feeds)


def close_stretch() -> None:
    """Close the engine of this process, if one is open."""
    _Open.key = ""
    _Open.resources.close()
