"""Trace an encoder to an ONNX graph with its weights still unread.

The module is traced with fake tensors in place of its parameters: tracing needs shapes and dtypes, not values.
The graph's initializers then refer to the real parameters, which a mapped checkpoint has not read yet. If the export
asks for another dtype, they are cast only when they are written out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from onnx_ir.tensor_adapters import TorchTensor, from_torch_dtype

from intaglio.bundle.bundle import Axis, TensorSpec
from intaglio.exporters.decoders.operators import as_nodes
from intaglio.exporters.decoders.traced.replaced import replace_modules
from intaglio.exporters.encoders.masks import short_masks
from intaglio.exporters.files.computed_tensor import FloatTensor
from intaglio.exporters.files.safetensors_file import MappedTensor
from intaglio.exporters.writing.optimizing import optimize
from intaglio.exporters.writing.traced_graph import (
    fake_mode,
    fake_parameters,
    module_outputs,
    name_nodes,
    quiet,
    scopes,
    to_onnx,
)
from intaglio.exporters.writing.weights import Rounding, in_file, weight

OPSET = 23  # the first with Attention and RMSNormalization; has Gelu and LayerNormalization as single operators
EXAMPLE = {"batch": 2, "sequence": 16}  # of the inputs that are traced; a size of 1 would be taken as a constant
GRAPH = "encoder"  # the graph's name


@dataclass
class Traced:
    """The graph, and the value returned by every module that computes something, in execution order."""

    model: ir.Model
    layers: dict[str, str]
    rounding: Rounding  # of the weights, complete once they are written


def token_inputs(names: Sequence[str]) -> list[TensorSpec]:
    """The inputs of a model that reads texts: int64 [batch, sequence]."""
    return [TensorSpec(name, "int64", ("batch", "sequence")) for name in names]


def trace(
    module: torch.nn.Module,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    weights: Mapping[str, FloatTensor],
    axes: Mapping[str, Axis],
    dtype: torch.dtype,
    frames: tuple[int, int] | None = None,
) -> Traced:
    """Trace `module`, from `inputs` to `outputs`, to opset 23, with the axes `batch` and `sequence` symbolic.

    `weights` are the tensors that the module was built from. The module's parameters are consumed: afterwards
    only the graph refers to them. `frames`: of a model whose axis is `samples`, those from one frame to the next, and
    those of one frame. It is traced with whole frames, as else the lengths behind its convolutions are expressions that
    take long to compare; the graph computes lengths from those of its values, and takes any number of samples.
    """
    with quiet():
        fake = fake_mode()
        real = fake_parameters(module, dtype, fake)
        lengths = {name: min(size, axes[name].maximum or size) for name, size in EXAMPLE.items() if name in axes}
        sizes = {name: torch.export.Dim(name, max=axes[name].maximum) for name in lengths}
        if frames is not None:
            stride, shortest = frames
            sizes["samples"] = stride * torch.export.Dim("steps") + shortest
            lengths["samples"] = stride * EXAMPLE["sequence"] + shortest
        replace_modules(module.get_submodule("model"))
        with short_masks(), as_nodes():
            model = to_onnx(module, inputs, outputs, sizes, lengths, fake, OPSET, variadic=len(inputs))
        rounding = Rounding()
        in_files = {_place(each.tensor): each for each in weights.values() if isinstance(each, MappedTensor)}
        for name, value in model.graph.initializers.items():
            if name in real:
                tensor = real.pop(name)
                mapped = in_files.get(_place(tensor))
                value.const_value = weight(tensor, mapped, name, from_torch_dtype(dtype), rounding)
        traced = list(model.graph.initializers.values())
        optimize(model)
        for value in traced:
            if not value.is_initializer():  # folded away, but the optimizer's caches would keep it in memory
                value.const_value = None
        for name, value in model.graph.initializers.items():
            if isinstance(value.const_value, TorchTensor):
                mapped = in_files.get(_place(value.const_value.raw))
                value.const_value = in_file(mapped, name) if mapped else value.const_value
    _name_weights(model)
    name_nodes(model, GRAPH)
    layers = module_outputs(model, module)
    ClearMetadataAndDocStringPass()(model)  # stack traces: longer than the graph, and full of this machine's paths
    return Traced(model, layers, rounding)


def _place(tensor: torch.Tensor) -> tuple[int, torch.Size, torch.dtype]:
    """What a tensor is in memory: the first part of another, such as a joined projection, begins where it does."""
    return tensor.data_ptr(), tensor.shape, tensor.dtype


def _name_weights(model: ir.Model) -> None:
    """Name weights that were transposed while tracing after their module: `<module>.weight_transposed`, `_2`, ..."""
    named: Counter[str] = Counter()
    for node in model.graph:
        within = scopes(node)
        if node.op_type != "MatMul" or not within or len(node.inputs) != 2:
            continue
        weight = node.inputs[1]
        if weight is not None and weight.is_initializer() and str(weight.name).startswith("val_"):
            name = f"{within[-1]}.weight_transposed"
            named[name] += 1
            weight.name = name if named[name] == 1 else f"{name}_{named[name]}"
