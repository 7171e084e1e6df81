"""Convert the nodes of our operators to the form of the library's CUDA kernels for ONNX Runtime.

Such a node is in the domain `intaglio.cuda` and brings everything for its launch, so that the library needs no
compiler, and no knowledge of the operators:

1. its first inputs are the kernel's cubin, which may be empty, and its PTX, for the driver that does not load the
   cubin: constants of uint8 that all nodes of the operator share. ONNX Runtime keeps them in host memory,
2. its other inputs and its attributes are the operator's, without inputs that the attributes make it ignore,
3. every output is present, used or not,
4. `kernel` is the kernel's name, and `launch` the numbers of the launch: threads of a block on three axes; the number
   of inputs and the rank of each, -1 for one left out; the number of outputs and their ranks; and a program in postfix
   order (`expressions.Step`). From the lengths of the inputs it computes those of the outputs, the blocks of the grid
   on three axes, the bytes of dynamic shared memory, and the kernel's scalars. It also checks every length that the
   kernel relies on.

A node with a shape or a kernel that is not known is unchanged, and runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.errors import EngineError, GraphError
from intaglio.plugins import constant_folding
from intaglio.plugins.contract import Operator
from intaglio.plugins.cuda.compiler import Images, built_for, images_for
from intaglio.plugins.cuda.launching.expressions import Step, length, program
from intaglio.plugins.cuda.launching.geometry import Launch, Length, Tensor
from intaglio.plugins.cuda.launching.launches import launch
from intaglio.plugins.cuda.launching.output_shapes import output_shapes
from intaglio.plugins.nodes import add_outputs, attributes, lengths, operator_of, tensors, used_inputs
from intaglio.plugins.registry import CUDA_DOMAIN, DOMAIN
from intaglio.plugins.signature import ANY, OR_ONE, Input


def use_cuda_kernels(model: ir.Model, sm: int, images_for: Callable[[str, int], Images] = images_for) -> dict[str, str]:
    """Convert the nodes of `model`, in place, for GPUs of `sm`; return the nodes that stay on the CPU, and why.

    `images_for`: an operator's compiled kernels. Raises `MissingExtraError` if they cannot be compiled.
    """
    left: dict[str, str] = {}
    for graph in model.graphs():
        images: dict[str, list[ir.Value]] = {}
        for node in [node for node in graph if node.domain == DOMAIN]:
            try:
                _convert(node, sm, images, images_for)
            except (EngineError, GraphError) as error:
                left[node.name or f"with output {node.outputs[0].name}"] = str(error)
    if any(node.domain == CUDA_DOMAIN for graph in model.graphs() for node in graph):
        model.opset_imports[CUDA_DOMAIN] = 1
    return left


def _convert(
    node: ir.Node, sm: int, images: dict[str, list[ir.Value]], images_for: Callable[[str, int], Images]
) -> None:
    operator = operator_of(node)
    complete = operator.complete(attributes(node))
    inputs = used_inputs(operator, node, complete)
    _check_constants(operator, inputs)
    given = tensors(operator, inputs, length)
    made = launch(operator.folder, given, complete, built_for(sm))
    shapes = output_shapes(operator, [each and each.shape for each in given], complete)
    numbers = _numbers(made, given, shapes, _requirements(operator, given, shapes, complete))
    if operator.folder not in images:
        forms = images_for(operator.folder, sm)._asdict().items()
        prefix = f"{CUDA_DOMAIN}/{operator.folder}"
        images[operator.folder] = [_constant(node, f"{prefix}.{form}", content) for form, content in forms]
    described = operator.outputs([None if value is None else lengths(value) for value in inputs], complete)
    node.resize_inputs(len(inputs) + len(Images._fields))
    for index, value in enumerate([*images[operator.folder], *inputs]):
        node.replace_input_with(index, value)
    add_outputs(node, described, {spec.name: value for spec, value in zip(operator.inputs, inputs, strict=True)})
    node.attributes["kernel"] = ir.AttrString("kernel", made.entry)
    node.attributes["launch"] = ir.AttrInt64s("launch", numbers)
    node.domain = CUDA_DOMAIN


def _check_constants(operator: Operator, inputs: Sequence[ir.Value | None]) -> None:
    """Raise `GraphError` if the kernel reads memory where an input points that is not a constant."""
    for spec, value in zip(operator.inputs, inputs, strict=True):
        if value is not None and spec.known_values and constant_folding.known(value, None) is None:
            raise GraphError(f"{operator.name}: {spec.name} ({value.name}) is computed. Make it a constant.")


def _constant(node: ir.Node, name: str, content: bytes) -> ir.Value:
    tensor = ir.tensor(np.frombuffer(content, np.uint8), name=name)
    shape = ir.Shape([len(content)])
    made = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    assert node.graph is not None
    node.graph.register_initializer(made)
    return made


def _numbers(
    made: Launch, inputs: Sequence[Tensor | None], outputs: Sequence[Sequence[Length]], checks: Sequence[int]
) -> list[int]:
    """The attribute `launch`."""
    ranks = [-1 if each is None else len(each.shape) for each in inputs]
    results = [*(each for shape in outputs for each in shape), *made.grid, made.shared_bytes, *made.scalars]
    return [
        *made.block,
        *(len(ranks), *ranks),
        *(len(outputs), *map(len, outputs)),
        *checks,
        *(number for result in results for number in program(result)),
    ]


def _requirements(
    operator: Operator,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Sequence[Length]],
    attributes: Mapping[str, Any],
) -> list[int]:
    """The part of the program that checks the inputs' lengths by the signature, and those that the graph states.

    Raises `GraphError` for ranks that do not match. A factor's axis is the last of the output, or 1.
    """
    result = outputs[0]
    known: dict[str, Length] = {name: value for name, value in attributes.items() if isinstance(value, int)}
    checks: list[int] = []
    for index, (spec, tensor) in enumerate(zip(operator.inputs, inputs, strict=True)):
        if tensor is None:
            continue
        named = spec.axes[1:] if spec.axes[0] == ANY else spec.axes
        leading = len(tensor.shape) - len(named)
        for axis, each in enumerate(tensor.shape):
            if isinstance(each, int):
                checks += [*program(each), Step.REQUIRE, index, axis]
        for axis, name in enumerate(named, leading):
            if name.endswith(OR_ONE):
                checks += [*program(result[-1]), Step.REQUIRE_OR_ONE, index, axis]
            elif name in known:
                checks += [*program(known[name]), Step.REQUIRE, index, axis]
            else:
                known[name] = tensor.shape[axis]
        if spec.axes[0] == ANY:
            expected = result[: len(result) - len(named)]
            target = list(_target(spec, expected, known))
            step = Step.REQUIRE_OR_ONE if spec.broadcast_to else Step.REQUIRE
            if leading > len(target) or (leading < len(target) and not spec.broadcast_to):
                raise GraphError(f"{operator.name}: {spec.name} has {leading} leading axes, expected {len(target)}.")
            for axis, each in enumerate(target[len(target) - leading :]):
                checks += [*program(each), step, index, axis]
    return checks


def _target(spec: Input, outputs: Sequence[Length], known: Mapping[str, Length]) -> Iterator[Length]:
    """The lengths that the leading axes of an input have, or broadcast to."""
    for name in spec.broadcast_to or (ANY,):
        if name == ANY:
            yield from outputs
        else:
            yield known[name]
