"""Trace a decoder of `transformers` to a graph with our inputs and outputs, its weights still unread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir
import torch
from onnx_ir.passes.common import (
    ClearMetadataAndDocStringPass,
    CommonSubexpressionEliminationPass,
    RemoveUnusedNodesPass,
    ShapeInferencePass,
)
from onnx_ir.tensor_adapters import from_torch_dtype
from onnxscript import optimizer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from intaglio.exporters.decoders.caches import ShapeCache
from intaglio.exporters.decoders.operators import as_nodes
from intaglio.exporters.decoders.traced.experts import expand
from intaglio.exporters.decoders.traced.module import TracedDecoder
from intaglio.exporters.decoders.traced.replaced import replace_modules
from intaglio.exporters.decoders.traced.rotations import Rotations
from intaglio.exporters.decoders.traced.weights import TracedWeights
from intaglio.exporters.writing.graph_writer import OPSET
from intaglio.exporters.writing.traced_graph import fake_parameters, module_outputs, name_nodes, quiet
from intaglio.exporters.writing.weights import Rounding
from intaglio.runtime.sessions.step import BATCH, CAPACITY, LOGITS, PAST, PRESENT, STEP, TOKENS, WANTED, cache_names

GRAPH = "decoder"  # the graph's name
FOLDED = 1024  # elements of a constant; weights are not folded
EXAMPLE = {BATCH: 2, TOKENS: 3, CAPACITY: 16, WANTED: 2}  # a size of 1 would be taken as a constant

Shapes = dict[int, tuple[int, int, int]]  # of the layers with a cache: heads, dim of a key, dim of a value


@dataclass
class TracedGraph:
    """The graph, the value that every module returns, in execution order, and the caches."""

    model: ir.Model
    layers: dict[str, str]
    caches: Shapes
    rounding: Rounding  # of the weights, complete once they are written
    unused: list[str]  # paths of parameters that the graph does not read


def trace(module: TracedDecoder, dtype: torch.dtype) -> TracedGraph:
    """Trace `module`, whose parameters are `DeferredTensor`s and are consumed."""
    with quiet():
        fake = FakeTensorMode(allow_non_fake_inputs=True)  # buffers, such as frequencies, keep their values
        parameters = fake_parameters(module, dtype, fake)
        rotations = Rotations(module)
        with rotations.watched(), fake, _returns(module) as returned:
            caches = cache_shapes(module)
        module.cached = sorted(caches)
        replace_modules(module)
        with as_nodes(), rotations.replaced():
            model = _export(module, caches, dtype, fake)
    weights = TracedWeights(model, parameters, from_torch_dtype(dtype))
    expand(model, weights.expert)
    weights.attach()
    optimizer.optimize(model, output_size_limit=FOLDED)
    CommonSubexpressionEliminationPass()(model)
    RemoveUnusedNodesPass()(model)
    ShapeInferencePass()(model)
    name_nodes(model, GRAPH)
    layers = {path: value for path, value in module_outputs(model, module).items() if returned[path] == 1}
    ClearMetadataAndDocStringPass()(model)  # stack traces: longer than the graph, and full of this machine's paths
    return TracedGraph(model, layers, caches, weights.rounding, weights.unused)


@contextmanager
def _returns(module: TracedDecoder) -> Iterator[Counter[str]]:
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


def cache_shapes(module: TracedDecoder) -> Shapes:
    """The caches that `module` writes, seen by running it on two sequences of three tokens."""
    cache = ShapeCache()
    ids = torch.zeros(2, 3, dtype=torch.int64)
    with torch.no_grad():
        module.logits_at(ids, ids, torch.ones(2, 3, 3, dtype=torch.bool), ids[:, 0], ids[:, :2], cache)
    return cache.shapes


def _export(module: TracedDecoder, caches: Shapes, dtype: torch.dtype, fake: FakeTensorMode) -> ir.Model:
    sizes = {name: torch.export.Dim(name) for name in EXAMPLE}
    names = cache_names(len(caches))
    with fake:
        example = [
            torch.zeros([EXAMPLE[str(axis)] for axis in spec.shape], dtype=getattr(torch, spec.dtype)) for spec in STEP
        ]
        batch, capacity = EXAMPLE[BATCH], EXAMPLE[CAPACITY]
        for layer in module.cached:
            heads, *widths = caches[layer]
            example += [torch.zeros(batch, heads, capacity, width, dtype=dtype) for width in widths]
    shapes = [{index: sizes[str(axis)] for index, axis in enumerate(spec.shape)} for spec in STEP]
    past = tuple({0: sizes[BATCH], 2: sizes[CAPACITY]} for _ in names)
    program = torch.onnx.export(
        module,
        tuple(example),
        dynamo=True,
        opset_version=OPSET,
        input_names=[*(spec.name for spec in STEP), *(PAST + name for name in names)],
        output_names=[LOGITS, *(PRESENT + name for name in names)],
        dynamic_shapes=(*shapes, past),
        optimize=False,  # done later, once the weights are attached
        verbose=False,
    )
    assert program is not None
    return program.model
