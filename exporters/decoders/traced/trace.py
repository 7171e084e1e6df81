"""Trace a decoder of `transformers` to a graph with our inputs and outputs, its weights still unread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import (
    ClearMetadataAndDocStringPass,
    CommonSubexpressionEliminationPass,
    RemoveUnusedNodesPass,
    ShapeInferencePass,
)
from onnx_ir.tensor_adapters import from_torch_dtype
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from intaglio.bundle.bundle import TensorSpec
from intaglio.bundle.model_file import count_weights
from intaglio.exporters.decoders.caches import Shapes
from intaglio.exporters.decoders.experts import expand
from intaglio.exporters.decoders.operators import as_nodes
from intaglio.exporters.decoders.traceable_decoder import DecoderModule, DraftedModule, EarlyExitModule
from intaglio.exporters.decoders.traced.exits import add_branches, add_exit
from intaglio.exporters.decoders.traced.grouped import keep_codes
from intaglio.exporters.decoders.traced.products import split_gemm
from intaglio.exporters.decoders.traced.replaced import replace_modules
from intaglio.exporters.decoders.traced.reshapes import state_shapes
from intaglio.exporters.decoders.traced.rotations import Rotations
from intaglio.exporters.decoders.traced.rows import keep_axes
from intaglio.exporters.decoders.traced.tabled import keep_tables
from intaglio.exporters.decoders.traced.weights import TracedWeights
from intaglio.exporters.writing.graph_writer import OPSET
from intaglio.exporters.writing.optimizing import optimize
from intaglio.exporters.writing.traced_graph import (
    fake_mode,
    fake_parameters,
    module_outputs,
    name_nodes,
    quiet,
    to_onnx,
)
from intaglio.exporters.writing.weights import Rounding
from intaglio.runtime.sessions.step import (
    BATCH,
    CAPACITY,
    DRAFTED,
    DRAFTING,
    IMAGE_TOKENS,
    PAST,
    PRESENT,
    STEP,
    TOKENS,
    WANTED,
    cache_names,
)

GRAPH = "decoder"  # the graph's name
READ_LATER = (ir.ExternalTensor, ir.LazyTensor)  # the tensors of weights
# A size of 1 would be taken as a constant.
EXAMPLE = {BATCH: 2, TOKENS: 3, CAPACITY: 16, WANTED: 2, DRAFTING: 2, IMAGE_TOKENS: 5}


@dataclass
class TracedGraph:
    """The graph, the value that every module returns, in execution order, and the caches."""

    model: ir.Model
    layers: dict[str, str]
    caches: Shapes
    rounding: Rounding  # of the weights, complete once they are written
    unused: list[str]  # paths of parameters that the graph does not read
    parameters: int | None  # their number, if some are codes of a quantised checkpoint
    decoded: list[str]  # names of quantised weights that are looked up, and stay in floating point


def trace(module: DecoderModule, dtype: torch.dtype) -> TracedGraph:
    """Trace `module`, whose parameters are `DeferredTensor`s and are consumed."""
    with quiet():
        fake = fake_mode()
        parameters = fake_parameters(module, dtype, fake)
        rotations = Rotations(module)
        with rotations.watched(), fake, returns(module) as returned:
            caches = module.cache_shapes()
        module.cached = sorted(caches)
        replace_modules(module)
        with as_nodes(), rotations.replaced():
            model = export_step(module, caches, dtype, fake)
    return finish(model, GRAPH, module, caches, TracedWeights(model, parameters, from_torch_dtype(dtype)), returned)


def finish(
    model: ir.Model,
    name: str,
    module: torch.nn.Module,
    caches: Shapes,
    weights: TracedWeights,
    returned: Mapping[str, int],
) -> TracedGraph:
    """Attach the weights to the traced `model`, and make it the graph `name` of a bundle.

    `returned`: of `returns`.
    """
    expand(model, weights.expert)
    split_gemm(model)
    weights.attach()
    count = count_weights(model) if weights.grouped or weights.tabled else None
    decoded = keep_codes(model, weights.grouped)
    keep_tables(model, weights.tabled)
    _optimize(model)
    ShapeInferencePass()(model)
    keep_axes(model)
    state_shapes(model)
    add_exit(model)
    add_branches(model)
    RemoveUnusedNodesPass()(model)
    name_nodes(model, name)
    layers = {path: value for path, value in module_outputs(model, module).items() if returned[path] <= 1}
    weights.narrow()
    ClearMetadataAndDocStringPass()(model)  # stack traces: longer than the graph, and full of this machine's paths
    return TracedGraph(model, layers, caches, weights.rounding, weights.unused, count, decoded)


def _optimize(model: ir.Model) -> None:
    """Fold constants and what is computed twice; weights of equal numbers, such as those of new norms, stay apart."""
    graph = model.graph
    count = len(graph.outputs)
    # No pass merges outputs.
    graph.outputs.extend(each for each in graph.initializers.values() if isinstance(each.const_value, READ_LATER))
    optimize(model)
    del graph.outputs[count:]
    CommonSubexpressionEliminationPass()(model)


@contextmanager
def returns(module: torch.nn.Module) -> Iterator[Counter[str]]:
    """The tensors that each module returns inside this block, by its path.

    Of one that returns several, such as cosines and sines, the graph does not tell which value is computed last.
    """
    returned = Counter[str]()
    hooks = [
        each.register_forward_hook(lambda _, inputs, output, path=path: returned.update({path: len(_tensors(output))}))
        for path, each in module.named_modules()
    ]
    try:
        yield returned
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(output: object) -> list[torch.Tensor]:
    return [each for each in tree_leaves(output) if isinstance(each, torch.Tensor)]


def export_step(
    module: DecoderModule,
    caches: Shapes,
    dtype: torch.dtype,
    fake: FakeTensorMode,
    further: Mapping[str, int] | None = None,
) -> ir.Model:
    """Trace a decoder, without weights; `further`: axes of its own inputs, with lengths to trace them with."""
    names = cache_names(len(caches))
    past = [
        TensorSpec(PAST + name, str(dtype).removeprefix("torch."), (BATCH, caches[layer][0], CAPACITY, width))
        for name, (layer, width) in zip(names, _widths(module.cached, caches), strict=True)
    ]
    lengths = {**EXAMPLE, **(further or {})}
    sizes: dict[str, Any] = {name: torch.export.Dim(name) for name in lengths}
    if isinstance(module, DraftedModule):
        sizes[DRAFTED] = len(module.drafts) * sizes[DRAFTING]
        lengths[DRAFTED] = len(module.drafts) * lengths[DRAFTING]
    outputs = module.outputs if not isinstance(module, EarlyExitModule) else module.outputs[:1]
    return to_onnx(
        module,
        [*STEP, *module.inputs, *past],
        [*outputs, *(PRESENT + name for name in names)],
        sizes,
        lengths,
        fake,
        OPSET,
        variadic=len(module.inputs) + len(past),
    )


def _widths(layers: Sequence[int], caches: Shapes) -> Iterator[tuple[int, int]]:
    """Layer and width of each cache, in the order of the graph's inputs."""
    return ((layer, width) for layer in layers for width in caches[layer][1:])
