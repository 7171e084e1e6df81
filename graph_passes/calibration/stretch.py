"""A stretch of a graph as a task: it is opened once in each process, and run batch after batch.

Processes that run it import this module, which therefore needs no library of graphs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError
from intaglio.executors.kept import kept
from intaglio.graph_passes.calibration.real_tokens import Length, axes_of, real_parts
from intaglio.graph_passes.calibration.second_moments import products_of
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.engine import Array, Engine
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine

Contents = dict[str, npt.NDArray[np.uint8]]
Floats = npt.NDArray[np.float32]


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


@dataclass(frozen=True)
class Tokens:
    """Which rows of the activation `name` are tokens. `stated`: its lengths in the graph; `axes`: those of the mask."""

    name: str
    mask: npt.NDArray[np.bool_] | None
    axes: Sequence[Length] | None
    stated: Sequence[Length] | None

    def of(self, array: Array) -> Floats:
        """Return the rows [tokens, channels] of the activation's values that are not padding. Raises `GraphError`."""
        numbers: Floats = array.astype(np.float32, copy=False)
        if not np.isfinite(numbers).all():
            raise GraphError(
                f"the activation {self.name!r} is NaN or infinite on the calibration data, expected finite "
                "numbers. Fix the model or the data; a float16 graph may overflow where the float32 one does not."
            )
        parts: Iterable[npt.NDArray[np.float32 | np.float64]] = [numbers]
        if self.mask is not None and self.axes is not None:
            parts = real_parts(numbers, axes_of(numbers, self.stated, self.mask, self.axes), self.mask)
        flat = [part.reshape(-1, part.shape[-1]) for part in parts]
        return np.concatenate(flat).astype(np.float32, copy=False)


def run_batch(
    stretch: Stretch,
    outputs: Sequence[str],
    tokens: Tokens,
    parts: Sequence[slice],
    names: Sequence[str],
    *feeds: Array,
) -> tuple[Any, ...]:
    """Run `stretch` with the inputs `names`; return its `outputs`, and the products of `parts` of one's columns."""
    results = run_stretch(stretch, dict(zip(names, feeds, strict=True)))
    rows = tokens.of(results[tokens.name]) if parts else None
    products = [products_of(rows[:, part.start :], part.stop - part.start) for part in parts if rows is not None]
    return *(results[name] for name in outputs), products
