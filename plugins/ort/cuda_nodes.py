"""Convert the nodes of our operators to the form of the library's CUDA kernels for ONNX Runtime.

Such a node is in the domain `intaglio.cuda` and brings everything for its launch, so that the library needs no
compiler, and no knowledge of the operators:

1. its first inputs are the kernel's cubin, which may be empty, and its PTX, for the driver that does not load the
   cubin: constants of uint8 that all nodes of the operator share. ONNX Runtime keeps them in host memory,
2. its other inputs and its attributes are the operator's, without inputs that the attributes make it ignore,
3. every output is present, used or not,
4. `kernel` is the kernel's name, and `launch` the numbers of its launch: see `programs`.

A node with a shape or a kernel that is not known is unchanged, and runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from intaglio.errors import EngineError, GraphError
from intaglio.plugins import constant_folding
from intaglio.plugins.contract import Operator
from intaglio.plugins.cuda.compiler import Images, built_for, images_for
from intaglio.plugins.cuda.launching.expressions import length
from intaglio.plugins.cuda.launching.programs import launch_program
from intaglio.plugins.nodes import add_outputs, lengths, read, tensors
from intaglio.plugins.registry import CUDA_DOMAIN, DOMAIN


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
    operator, inputs, complete = read(node)
    _check_constants(operator, inputs)
    kernel, numbers = launch_program(operator, tensors(operator, inputs, length), complete, built_for(sm))
    if operator.folder not in images:
        forms = images_for(operator.folder, sm)._asdict().items()
        prefix = f"{CUDA_DOMAIN}/{operator.folder}"
        images[operator.folder] = [_constant(node, f"{prefix}.{form}", content) for form, content in forms]
    described = operator.outputs([None if value is None else lengths(value) for value in inputs], complete)
    node.resize_inputs(len(inputs) + len(Images._fields))
    for index, value in enumerate([*images[operator.folder], *inputs]):
        node.replace_input_with(index, value)
    add_outputs(node, described, {spec.name: value for spec, value in zip(operator.inputs, inputs, strict=True)})
    node.attributes["kernel"] = ir.AttrString("kernel", kernel)
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
