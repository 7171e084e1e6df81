"""A graph on ONNX Runtime with the weights of one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from intaglio.bundle.bundle import TensorSpec
from intaglio.bundle.model_file import outline
from intaglio.errors import EngineError, one_line
from intaglio.extras import load
from intaglio.plugins import custom_operators
from intaglio.plugins import ort as kernels
from intaglio.processes.threads import usable_threads
from intaglio.runtime.engines.engine import Array, Engine
from intaglio.runtime.engines.onnxruntime.engine import DTYPES, EXTERNAL_DATA_FOLDER
from intaglio.runtime.engines.onnxruntime.exact_products import keep_activations
from intaglio.runtime.engines.onnxruntime.partial_graph import needed, reduce
from intaglio.runtime.engines.onnxruntime.provider import open_session


class LayeredEngine(Engine):
    """An .onnx file, cut at the values `cuts`, such as the outputs of its blocks.

    Each part is opened when it runs, and closed afterwards. A part has the nodes that its values are computed from, up
    to earlier cuts: values shared by all layers, such as a mask, are computed in each. Unknown cuts are ignored. It
    takes more time than an `OnnxRuntimeEngine` that is exact, and gives the same numbers, as the nodes are the same.
    Our own operators need the compiled library.
    """

    def __init__(self, path: Path, cuts: Sequence[str], outputs: Collection[str] | None = None):
        model = outline(path, located=True)
        keep_activations(model)
        if outputs is not None:
            reduce(model, outputs)
        produced = {name for node in model.graph.node for name in node.output}
        self._path = path
        self._registers = bool(custom_operators(model.graph.node))
        self._parts = _parts(model, [cut for cut in cuts if cut in produced])
        initialized = {tensor.name for tensor in model.graph.initializer}
        self.inputs = tuple(_spec(value) for value in model.graph.input if value.name not in initialized)
        self.outputs = tuple(_spec(value) for value in model.graph.output)
        self.axes = {}

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        values: dict[str, Any] = dict(feeds)
        for part in self._parts:
            session = self._open(part)
            given = {value.name: values[value.name] for value in session.get_inputs()}
            names = [value.name for value in session.get_outputs()]
            try:
                values.update(zip(names, session.run(names, given), strict=True))
            except Exception as error:
                raise EngineError(f"ONNX Runtime failed: {one_line(error)}") from error
        return {spec.name: values[spec.name] for spec in self.outputs}

    def _open(self, part: bytes) -> Any:
        onnxruntime = load("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised
        options.intra_op_num_threads = usable_threads()
        options.enable_cpu_mem_arena = False
        for name, value in (
            ("session.disable_prepacking", "1"),  # a second copy of the weights, for one run
            ("session.intra_op.allow_spinning", "0"),
            (EXTERNAL_DATA_FOLDER, str(self._path.parent)),
        ):
            options.add_session_config_entry(name, value)
        if self._registers:
            kernels.register(options)
        return open_session(self._path, part, options, "ort-cpu")

    def close(self) -> None:
        """See `Engine`; nothing is open between runs."""


def _parts(model: onnx.ModelProto, cuts: Sequence[str]) -> list[bytes]:
    """The models that compute the cuts, in order, and the outputs of `model` beside those that they belong to."""
    order = {name: index for index, name in enumerate(cuts)}
    wanted: dict[int, list[str]] = {}
    given: dict[int, dict[str, None]] = {}
    for name in [*cuts, *(value.name for value in model.graph.output if value.name not in order)]:
        used = (needed(model.graph, [name], order)[1] & order.keys()) - {name}
        place = max((order[cut] + 1 for cut in used), default=0)
        wanted.setdefault(place, []).append(name)
        given.setdefault(place, {}).update(dict.fromkeys(used))
    parts = []
    for place in sorted(wanted):
        part = onnx.ModelProto()
        part.CopyFrom(model)
        reduce(part, wanted[place], given[place])
        parts.append(part.SerializeToString())
    return parts


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    lengths = (each.dim_value if each.HasField("dim_value") else each.dim_param for each in kind.shape.dim)
    return TensorSpec(
        value.name,
        DTYPES.get(dtype, dtype),
        tuple(length if length != "" else f"{value.name}_{axis}" for axis, length in enumerate(lengths)),
    )
