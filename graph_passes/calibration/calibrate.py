"""Calibrate: observe the activations of a floating-point graph on real inputs, for later passes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import onnx_ir as ir

from intaglio import interrupts
from intaglio.bundle.bundle import Calibration
from intaglio.bundle.effect import Effect
from intaglio.bundle.model_file import save
from intaglio.display.progress import track
from intaglio.errors import GraphError
from intaglio.executors.executor import Executor
from intaglio.executors.kept import close_kept
from intaglio.graph_passes.calibration.activation_statistics import KEY, Statistics
from intaglio.graph_passes.calibration.data import count_tokens
from intaglio.graph_passes.calibration.observation import Observed, observe
from intaglio.graph_passes.calibration.observing import ObservingPass
from intaglio.graph_passes.calibration.real_tokens import Length
from intaglio.graph_passes.calibration.stretch import Stretch
from intaglio.graph_passes.calibration.thresholds import Method, threshold
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.graphs import Names, all_nodes, has_subgraphs, infer_shapes
from intaglio.graph_passes.quantize_dequantize.region import activations
from intaglio.plugins import DOMAIN
from intaglio.plugins.nodes import lengths
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.text.inputs import MASK

FEW_TOKENS = 2048  # with fewer, ranges are too narrow for other texts
RECORD = "calibration"  # in `ir.Model.meta`: the `Calibration` for the manifest
MEMORY = 1 << 30  # bytes of activations in memory at a time
PRODUCTS = {"MatMul", "Gemm", "Conv"}
FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE}  # what NumPy has
QUANTISED = {
    "ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul",
    "QuantizeLinear",
}  # fmt: skip


@dataclass(frozen=True)
class Calibrate(ObservingPass):
    """Run the graph on calibration data and store `Statistics` in `meta` of the observed values; rewrite nothing.

    1. Observed: the floating-point inputs of the graph, and all outputs of its nodes that depend on embeddings or on
       these inputs (see `activations`), not what is computed from positions and masks alone.
    2. Padding positions, according to the input `attention_mask`, are ignored.
    3. Not observed: values inside the bodies of If, Loop and Scan, and values whose dtype is unknown.

    `method` and `percentile` choose the threshold (`thresholds.py`), `bins` is the size of a histogram, `samples` the
    maximum number of texts, and `batch` the maximum number per run; memory may reduce it. Raises `GraphError` for a
    graph that is quantised already or computes products in float16, and for a NaN or infinite activation.
    """

    name: ClassVar[str] = "calibrate"
    uses_executor: ClassVar[bool] = True
    effect: ClassVar[Effect] = Effect.EXACT
    method: Method = "absmax"
    percentile: float = 99.99
    bins: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.percentile <= 100:
            raise GraphError(f"calibrate: percentile {self.percentile}: expected more than 0, at most 100.")
        if self.bins not in (256, 512, 1024, 2048, 4096, 8192, 16384):
            raise GraphError(f"calibrate: bins {self.bins}: expected a power of two from 256 to 16384.")

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        """Observe `model` on the calibration data."""
        data = inputs.calibration
        _refuse_quantised(model)
        infer_shapes(model)
        _refuse_float16(model)
        values = _observable(model, counts)
        batches, used = data.load(self.samples, self.batch)
        size = sum(_bytes(model, values, batches))
        if size > MEMORY and self.batch > 1:
            batches, used = data.load(self.samples, max(1, self.batch * MEMORY // size))
        statistics = {value: Statistics(self.method, self.percentile, self.bins) for value in values}
        _observe(model, statistics, batches, inputs.executor)
        for value in values:
            value.meta[KEY] = statistics[value]
        tokens = count_tokens(batches)
        thresholds = {str(value.name): float(f"{threshold(statistics[value], 8):.6g}") for value in values}
        model.meta[RECORD] = Calibration(data.path.name, used.sha256, used.samples, tokens, self.method, thresholds)
        counts.rewritten = {"activations observed": len(values), "samples": used.samples}
        if tokens:
            counts.add("tokens", tokens)
        if 0 < tokens < FEW_TOKENS:
            counts.leave(
                f"{tokens} tokens are few, values outside their range will be clipped: give about 64 paragraphs"
            )
        if inputs.manifest is None or (inputs.manifest.decoder is None and inputs.manifest.audio is None):
            # a decoder's chunks have no padding, and recordings are run one by one
            _note_padding(mask_axes(model), counts)


def _note_padding(axes: Sequence[Length] | None, counts: Counts) -> None:
    """Note why padding could not be ignored. `axes`: those of the mask."""
    if axes is None:
        counts.leave(f"the graph has no input {MASK} of two axes: padding, if any, was observed too")
    elif isinstance(axes[1], int):
        counts.leave(f"{MASK} has a fixed length, so axes cannot be told apart: padding was observed too")


def _observe(
    model: ir.Model,
    statistics: dict[ir.Value, Statistics],
    batches: Sequence[dict[str, Array]],
    executor: Executor,
) -> None:
    """Run every batch and add all of the given activations, in groups that fit into memory."""
    axes = mask_axes(model)
    values = list(statistics)
    for group in _groups(values, _bytes(model, values, batches)):
        observed = [Observed.of(value, statistics[value]) for value in group]
        with _saved(model, [value for value in group if not value.is_graph_input()]) as directory:
            stretch = executor.share(Stretch(directory, spinning=True))
            tasks = ((stretch, feeds, observed, axes) for feeds in batches)
            try:
                for found in track(executor.map(observe, tasks), Calibrate.name, total=len(batches)):
                    for value, each in zip(group, found, strict=True):
                        statistics[value].merge(each)
            finally:
                close_kept()


def _refuse_quantised(model: ir.Model) -> None:
    found = {node.op_type for node in all_nodes(model) if node.domain == DOMAIN or node.op_type in QUANTISED}
    if found:
        raise GraphError(
            f"calibrate: the graph is already quantised ({', '.join(sorted(found))}), expected a floating-point one. "
            "Start from the bundle that this one was compressed from."
        )


def _refuse_float16(model: ir.Model) -> None:
    """Refuse float16 products: their scales and equalised weights would lose half of their digits for no gain."""
    for node in all_nodes(model):
        if node.op_type in PRODUCTS and node.domain == "" and node.outputs[0].dtype == ir.DataType.FLOAT16:
            raise GraphError(
                f"calibrate: {node.op_type} {node.name!r} computes in float16, expected float32. Compress the float32 "
                "bundle (intaglio export --dtype float32). After int8-qdq, --recipe float16 converts the rest."
            )


def _observable(model: ir.Model, counts: Counts) -> list[ir.Value]:
    """Return the activations to observe, in the order of the graph."""
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    depending, observable = set(inputs), [value for value in inputs if _is_float_tensor(value)]
    following = activations(model)
    for node in model.graph:
        if depending.isdisjoint(node.inputs) and not has_subgraphs(node):
            continue
        if has_subgraphs(node):
            counts.leave(f"the values inside {node.op_type} {node.name!r} are not observed")
        for value in node.outputs:
            if not value.name:
                continue  # an unused optional output
            depending.add(value)
            if value.dtype is None:
                counts.leave(f"the dtype of {value.name!r} at {node.op_type} is not known")
            elif _is_float_tensor(value) and value in following:
                observable.append(value)
    return observable


def _is_float_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype in FLOATS


def mask_axes(model: ir.Model) -> Sequence[Length] | None:
    """Return the names of the two axes of the attention mask; None if the graph has no such input."""
    for value in model.graph.inputs:
        if value.name == MASK and (axes := lengths(value)) is not None and len(axes) == 2:
            return axes
    return None


def _bytes(model: ir.Model, values: Sequence[ir.Value], batches: Sequence[dict[str, Array]]) -> list[int]:
    """Return the bytes of each value in the largest batch.

    Axes that are not those of the graph's inputs are measured in a run: guessed, a second of sound would count as
    16,000 frames.
    """
    actual: dict[Length, int] = {}
    for value in model.graph.inputs:
        for axis, name in enumerate(lengths(value) or []):
            longest = max((batch[str(value.name)].shape[axis] for batch in batches if value.name in batch), default=1)
            actual[name] = max(longest, actual.get(name, 1))
    shapes: dict[ir.Value, Sequence[int]] = {}
    for value in values:
        known = [name if isinstance(name, int) else actual.get(name, 0) for name in lengths(value) or [0]]
        if 0 not in known:
            shapes[value] = known
    largest = max(batches, key=lambda batch: sum(array.size for array in batch.values()))
    shapes |= _measured(model, [value for value in values if value not in shapes], largest)
    return [math.prod(shapes[value]) * int((value.dtype or ir.DataType.FLOAT).itemsize) for value in values]


def _measured(model: ir.Model, values: Sequence[ir.Value], feeds: dict[str, Array]) -> dict[ir.Value, Sequence[int]]:
    """Return the shapes of `values` in one run, which need not be in memory together."""
    if not values:
        return {}
    names = Names(model)
    nodes = [ir.Node("", "Shape", [value], num_outputs=1) for value in values]
    for node, value in zip(nodes, values, strict=True):
        node.outputs[0].name = names.new(f"{value.name}_shape")
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([None])
    model.graph.extend(nodes)
    try:
        with (
            _saved(model, [node.outputs[0] for node in nodes]) as directory,
            OnnxRuntimeEngine(directory / "model.onnx") as engine,
            interrupts.deferred(),
        ):
            arrays = engine.run(feeds)
    finally:
        model.graph.remove(nodes, safe=True)
    return {value: arrays[str(node.outputs[0].name)].tolist() for node, value in zip(nodes, values, strict=True)}


def _groups(values: Sequence[ir.Value], sizes: Sequence[int]) -> list[list[ir.Value]]:
    """Split `values` into consecutive groups of at most `MEMORY` bytes each, or of one larger value."""
    groups: list[list[ir.Value]] = []
    held = 0
    for value, size in zip(values, sizes, strict=True):
        if not groups or held + size > MEMORY:
            groups.append([])
            held = 0
        groups[-1].append(value)
        held += size
    return groups


@contextmanager
def _saved(model: ir.Model, values: Sequence[ir.Value]) -> Iterator[Path]:
    """Yield a temporary folder with the graph, with `values` as its outputs.

    What `values` do not depend on is left out, as ONNX Runtime would compute it.
    """
    graph = model.graph
    needed = ir.convenience.extract(graph, list(graph.inputs), list(values) or list(graph.outputs))
    cut = ir.Model(needed, ir_version=model.ir_version, functions=list(model.functions.values()))
    with scratch_directory("calibrate") as directory:
        save(cut, directory / "model.onnx", external_above=0)
        yield directory
