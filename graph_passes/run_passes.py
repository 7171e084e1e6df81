"""Run the passes of a recipe on a graph, one after the other."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import onnx_ir as ir

from intaglio.bundle.bundle import MODEL, Manifest, PassRecord, tensor_spec
from intaglio.bundle.effect import Effect
from intaglio.display.progress import step
from intaglio.graph_passes.calibration.calibrate import RECORD
from intaglio.graph_passes.checker import check
from intaglio.graph_passes.contract import Pass, PassInputs
from intaglio.graph_passes.graphs import Names, all_nodes, all_values, infer_shapes
from intaglio.graph_passes.weight_share import WeightShare, weight_share
from intaglio.plugins import custom_operators
from intaglio.plugins.packed_matmul.narrow_weights import narrow_again, widen_weights
from intaglio.processes.threads import bounded
from intaglio.version import __version__


@dataclass(frozen=True)
class Rewritten:
    """A graph after the passes, the record of each pass, and the compressed fraction of the weights.

    `share` is None if no pass compresses weights.
    """

    model: ir.Model
    records: list[PassRecord]
    share: WeightShare | None


def run_passes(passes: Sequence[Pass], model: ir.Model, inputs: PassInputs, threads: int | None = None) -> Rewritten:
    """Run `passes` on `model`, in order, and check the result.

    `inputs` has the inputs of all passes; `threads`: maximum number of threads. Raises their exceptions, and
    `GraphError` for a graph that ONNX's checker rejects.
    """
    for graph_pass in passes:
        graph_pass.prepare(inputs)
    # Passes that change weights find those of 16 bits in float32.
    changing = any(each.effect is not Effect.EXACT for each in passes)
    widened = widen_weights(model) if changing else {}
    records, asked, share = [], set[str](), None
    with bounded(threads):
        for number, graph_pass in enumerate(passes):
            of_pass = dataclasses.replace(inputs, finished=inputs.finished.of_pass(number))
            model, counts = graph_pass(model, of_pass)
            options = {**dataclasses.asdict(graph_pass), **counts.facts}
            records.append(PassRecord(graph_pass.name, options, counts.rewritten, counts.reasons, counts.layers))
            asked |= counts.asked
            if graph_pass.compresses_weights:
                share = weight_share(model, asked)  # before a later pass inlines the operators
    narrow_again(model, widened, Names(model).new)
    with step("checking"):
        infer_shapes(model)
        check(model, "the passes produced", "Leave a pass out.")
    return Rewritten(model, records, share)


def manifest_after(
    old: Manifest, model: ir.Model, records: list[PassRecord], graph: str = MODEL, others: Sequence[str] = ()
) -> Manifest:
    """Return the manifest after the graph in the file `graph` was rewritten: model.onnx, or the encoder's.

    `others`: our operators in the bundle's other graphs.
    """
    values = {value.name for value in all_values(model)}
    part = old if graph == MODEL else old.encoder
    assert part is not None
    changed: dict[str, Any] = {
        "inputs": tuple(tensor_spec(value) for value in model.graph.inputs if not value.is_initializer()),
        "outputs": tuple(tensor_spec(value) for value in model.graph.outputs),
        "layers": {path: value for path, value in part.layers.items() if value in values},
    }
    if graph == MODEL:
        changed |= {name: list(changed[name]) for name in ("inputs", "outputs")}
        changed |= {"dtype": _weight_dtype(model) or old.dtype}
    else:
        changed = {"encoder": msgspec.structs.replace(part, **changed)}
    return msgspec.structs.replace(
        old,
        created_by=f"intaglio {__version__}",
        passes=[*old.passes, *records],
        custom_operators=sorted({*custom_operators(all_nodes(model)), *others}),
        calibration=model.meta.get(RECORD, old.calibration),
        engines=[],
        **changed,
    )


def _weight_dtype(model: ir.Model) -> str | None:
    """Return the most frequent dtype of the weights, by number of elements: a floating-point one, or int8."""
    elements: Counter[str] = Counter()
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and (tensor.dtype.is_floating_point() or tensor.dtype == ir.DataType.INT8):
            elements[tensor.dtype.numpy().name] += tensor.size
    return max(elements, key=lambda name: elements[name], default=None)
