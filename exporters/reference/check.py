"""Check an exported graph against the source model, in a separate process.

The file is opened as users will open it: by ONNX Runtime, in a process that never imported torch. The memory of the
check is freed when that process ends, so it does not add to the export's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.accuracy.default_bounds import INTEGER, Bounds
from intaglio.accuracy.metrics import cosine, max_abs
from intaglio.accuracy.padding import without_padding
from intaglio.errors import EngineError, UsageError
from intaglio.plugins import ort as kernels
from intaglio.processes import children
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.engine import Array, Engine
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.engines.onnxruntime.layered_engine import LayeredEngine
from intaglio.runtime.modalities.table import real_positions

Batch = dict[str, Array]  # name -> array
Floats = npt.NDArray[np.float32]
Request = TypeVar("Request")
REQUEST, ANSWER = "request.json", "answer.npz"  # between a check and its child process
WHOLE_UP_TO = 1 << 28  # bytes of a bundle; the weights of a larger one are opened layer by layer


def block_outputs(layers: Mapping[str, str], lists: Collection[str]) -> list[str]:
    """The values that the Transformer blocks return, in order: of all modules in the `lists` of blocks."""
    return [
        value for path, value in layers.items() if path.rpartition(".")[0] in lists and path.split(".")[-1].isdigit()
    ]


class Checked(msgspec.Struct):
    """The difference of one output from the source model's, over every real (unpadded) position."""

    max_abs: float
    cosine: float
    passed: bool
    limit: float  # upper bound of `max_abs`


def check_needed(graphs: str, by_layer: bool = False) -> UsageError:
    """The error for an export without its check; `graphs`: of what, such as "the graph of a BertModel is traced".

    `by_layer`: the check reads the weights layer by layer.
    """
    memory = "; the check has the weights of one layer in memory at a time" if by_layer else ""
    return UsageError(f"--no-check: {graphs}, which can go wrong without an error. Leave it out{memory}.")


def open_checked(model: Path, cuts: Sequence[str], outputs: Collection[str] | None = None) -> Engine:
    """Open the ONNX file `model` to compute exactly; see `keep_activations`.

    One with many weights is opened in parts, cut at the values `cuts`; see `LayeredEngine`.
    """
    size = sum(file.stat().st_size for file in model.parent.glob("*") if file.is_file())
    if cuts and size > WHOLE_UP_TO and kernels.operators():
        return LayeredEngine(model, cuts, outputs)
    return OnnxRuntimeEngine(model, outputs=outputs, exact=True)


def check_graph(model: Path, bounds: Bounds, feeds: list[Batch], expected: list[Batch]) -> dict[str, Checked]:
    """Run the ONNX file `model` on `feeds` and compare with `expected`.

    One entry of `feeds` and `expected` is a batch: input name -> array, output name -> array.
    """
    with scratch_directory("check") as folder:
        for index, batch in enumerate(feeds):
            np.savez(folder / f"feeds-{index}.npz", allow_pickle=False, **batch)
        _run_check("reference.check", model, folder)
        actual = [_load(folder / f"outputs-{index}.npz") for index in range(len(feeds))]
    masks = [real_positions(inputs, outputs) for inputs, outputs in zip(feeds, expected, strict=True)]
    return {name: _compare(name, bounds, masks, actual, expected) for name in expected[0]}


def check_sequences(
    module: str, path: Path, request: object, expected: Mapping[str, list[Floats]], bounds: Bounds
) -> dict[str, Checked]:
    """Let a child process, `module` of this package, run the graphs at `path` on `request`; compare with `expected`.

    `expected` maps the name of each output to float32 [..., width] for each sequence. The child calls `answer`.
    """
    with scratch_directory("check") as folder:
        (folder / REQUEST).write_bytes(msgspec.json.encode(request))
        _run_check(module, path, folder)
        found = _load(folder / ANSWER)
    return {name: compared(found[name], in_rows(arrays), bounds) for name, arrays in expected.items()}


def answer(request: type[Request], run: Callable[[Path, Request], Iterable[Mapping[str, list[Floats]]]]) -> None:
    """The child process of `check_sequences`: write the outputs that `run(path, request)` returns, batch by batch."""
    path, folder = map(Path, sys.argv[1:])
    outputs: dict[str, list[Floats]] = {}
    for batch in run(path, msgspec.json.decode((folder / REQUEST).read_bytes(), type=request)):
        for name, arrays in batch.items():
            outputs.setdefault(name, []).extend(arrays)
    np.savez(folder / ANSWER, allow_pickle=False, **{name: in_rows(arrays) for name, arrays in outputs.items()})


def in_rows(arrays: Iterable[Floats]) -> Floats:
    """The arrays, [..., width], as rows [rows, width] one after another."""
    return np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])


def _run_check(module: str, model: Path, folder: Path) -> None:
    """Run a module of this package in a child process. Raises `EngineError` when it fails."""
    try:
        children.run(f"intaglio.exporters.{module}", str(model), str(folder))
    except EngineError as error:
        raise EngineError(f"the exported graph does not run: {error}") from error


def _compare(
    name: str, bounds: Bounds, masks: list[Array | None], actual: list[Batch], expected: list[Batch]
) -> Checked:
    found, wanted = (
        np.concatenate([without_padding(batch[name], mask) for batch, mask in zip(side, masks, strict=True)])
        for side in (actual, expected)
    )
    return compared(found, wanted, bounds)


def compared(found: Array, wanted: Array, bounds: Bounds) -> Checked:
    """The difference of `found` from `wanted`, arrays of the same shape; those of integers are to be equal."""
    error, similarity = max_abs(found, wanted), cosine(found, wanted)
    bound = bounds.output if np.issubdtype(wanted.dtype, np.floating) else INTEGER
    limit = bound.limit(float(np.abs(wanted).max(initial=0.0)))
    alike = bounds.cosine is None or similarity >= bounds.cosine.value
    return Checked(error, similarity, error <= limit and alike, limit)


def _load(path: Path) -> Batch:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _run(model: Path, folder: Path) -> None:
    """The child: run every feeds-N.npz of `folder` through `model` into outputs-N.npz."""
    with OnnxRuntimeEngine(model) as engine:
        for path in sorted(folder.glob("feeds-*.npz")):
            outputs = engine.run(_load(path))
            np.savez(path.with_name(path.name.replace("feeds", "outputs")), allow_pickle=False, **outputs)


if __name__ == "__main__":
    _run(Path(sys.argv[1]), Path(sys.argv[2]))
