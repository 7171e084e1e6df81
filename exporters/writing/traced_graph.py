"""What all traced graphs need: parameters without values, the trace, and nodes named after their modules."""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import _trace

from intaglio.bundle.bundle import TensorSpec
from intaglio.exporters.writing.lowering import single_trace

SCOPES = "pkg.torch.onnx.name_scopes"  # node metadata: the modules of the node, outermost first


def fake_mode() -> FakeTensorMode:
    """The mode in which parameters have no values; buffers, such as frequencies, keep theirs."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_parameters(module: torch.nn.Module, dtype: torch.dtype, fake: FakeTensorMode) -> dict[str, torch.Tensor]:
    """Replace every parameter by a fake one of `dtype`; return the real ones by name. Tied ones stay tied."""
    real: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    replaced: dict[int, torch.nn.Parameter] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in replaced:
                with fake:
                    empty = torch.empty(parameter.shape, dtype=dtype)
                replaced[id(parameter)] = torch.nn.Parameter(empty, requires_grad=False)
            owner._parameters[name] = replaced[id(parameter)]
    return real


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the tracer's progress and warnings off the terminal; errors are raised."""
    levels = {
        "onnxscript.optimizer._constant_folding": logging.ERROR,
        "onnx_ir.passes.common.initializer_deduplication": logging.ERROR,
        "torch.onnx": logging.ERROR,
        "torch._subclasses.fake_tensor": logging.CRITICAL,
        "torch.fx.experimental.symbolic_shapes": logging.CRITICAL,
    }
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            vars(_trace)["print"] = lambda *lines, **options: None  # which would write a whole graph to standard error
            yield
    finally:
        vars(_trace).pop("print", None)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def to_onnx(
    module: torch.nn.Module,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    sizes: Mapping[str, Any],
    lengths: Mapping[str, int],
    fake: FakeTensorMode,
    opset: int,
    variadic: int = 0,
) -> ir.Model:
    """Trace `module` to a graph with these inputs and outputs, without weights.

    sizes     the `torch.export.Dim` of each axis
    lengths   of the axes, in the inputs that are traced
    variadic  how many of the inputs, the last ones, its `forward` takes as `*arguments`
    """
    with fake:
        example = tuple(
            torch.zeros(
                [axis if isinstance(axis, int) else lengths[axis] for axis in spec.shape],
                dtype=getattr(torch, spec.dtype),
            )
            for spec in inputs
        )
    shapes = [
        {index: sizes[axis] for index, axis in enumerate(spec.shape) if not isinstance(axis, int)} for spec in inputs
    ]
    named = len(inputs) - variadic
    # Where in Python each node is from would take a sixth of the time of 12 layers, and nobody reads it.
    with single_trace(), mock.patch.object(torch.fx.config, "do_not_emit_stack_traces", True):
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            opset_version=opset,
            input_names=[spec.name for spec in inputs],
            output_names=list(outputs),
            dynamic_shapes=(*shapes[:named], tuple(shapes[named:])) if variadic else tuple(shapes),
            optimize=False,  # done later, once the weights are attached
            verbose=False,
        )
    assert program is not None
    for value, spec in zip(program.model.graph.inputs, inputs, strict=True):
        value.shape = ir.Shape(spec.shape)  # of axes that follow from others, too
    return program.model


def scopes(node: ir.Node) -> list[str]:
    """Paths of the modules that `node` was traced in, outermost first, without the root and the operator itself."""
    text = node.metadata_props.get(SCOPES)
    return list(ast.literal_eval(text))[1:-1] if text else []


def name_nodes(model: ir.Model, graph: str) -> None:
    """Name nodes, and the values they return, as `GraphWriter` does: `<module path>/<operator>`, then `_2`, `_3`, ...

    Nodes outside of any module are named after the `graph`. Outputs of the graph keep their names.
    """
    model.graph.name = graph
    counts: Counter[str] = Counter()
    for node in (each for outer in model.graph for each in (*inside(outer), outer)):
        name = f"{(scopes(node) or [graph])[-1]}/{node.op_type}"
        counts[name] += 1
        node.name = name if counts[name] == 1 else f"{name}_{counts[name]}"
        for index, value in enumerate(node.outputs):
            if not value.is_graph_output():
                value.name = node.name if len(node.outputs) == 1 else f"{node.name}_output_{index}"


def inside(node: ir.Node) -> list[ir.Node]:
    """The nodes in the branches of `node`."""
    branches = [each.as_graph() for each in node.attributes.values() if each.type == ir.AttributeType.GRAPH]
    return [each for branch in branches for each in branch]


def module_outputs(model: ir.Model, module: torch.nn.Module) -> dict[str, str]:
    """Module path -> the value computed last in it, for every module of the graph, in execution order.

    A module that computes it in a branch is left out: values of a branch are not visible from outside.
    """
    paths = {name for name, _ in module.named_modules()}
    last: dict[str, str] = {}
    for node in model.graph:
        for path in (path for each in inside(node) for path in scopes(each)):
            last.pop(path, None)
        for path in scopes(node):
            if path in paths and node.outputs[0].name:
                last.pop(path, None)
                last[path] = node.outputs[0].name
    return last
