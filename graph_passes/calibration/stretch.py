"""A stretch of a graph as a task: it is opened once in each process, and run batch after batch."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from intaglio.executors.kept import kept
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


@contextmanager
def _opened(stretch: Stretch) -> Iterator[Engine]:
    with ExitStack() as resources:
        folder = stretch.folder
        if stretch.contents is not None:
            folder = resources.enter_context(scratch_directory("stretch"))
            _write(stretch.contents, folder)
        engine = resources.enter_context(OnnxRuntimeEngine(folder / "model.onnx", spinning=stretch.spinning))
        del stretch  # and the contents, which the engine has
        yield engine


def _write(contents: Contents, folder: Path) -> None:
    for name, content in contents.items():
        content.tofile(folder / name)


def run_stretch(stretch: Stretch, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of `stretch` by name; it stays open in this process, see `kept`."""
    return kept(_opened, stretch, key=stretch.key).run(feeds)
