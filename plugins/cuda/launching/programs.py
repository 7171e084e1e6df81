"""The launch of a node's kernel as numbers, for libraries of ours that know nothing of the operators.

launch_program.cpp runs them. They are: the threads of a block on three axes; the number of inputs and the rank of each,
-1 for one left out; the number of outputs and their ranks; and a program in postfix order (`expressions.Step`). From
the lengths of the inputs it computes those of the outputs, the blocks of the grid on three axes, the bytes of dynamic
shared memory, and the kernel's scalars. It also checks every length that the kernel relies on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from intaglio.errors import GraphError
from intaglio.plugins.contract import Operator
from intaglio.plugins.cuda.launching.expressions import Step, program
from intaglio.plugins.cuda.launching.geometry import Launch, Length, Tensor
from intaglio.plugins.cuda.launching.launches import alternatives, launch
from intaglio.plugins.cuda.launching.output_shapes import output_shapes
from intaglio.plugins.signature import ANY, ONE_MORE, OR_ONE, Input


def launch_program(
    operator: Operator, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], sm: int
) -> tuple[str, list[int]]:
    """The name of the kernel of a node for GPUs of `sm`, and the numbers of its launch.

    `inputs`: one for each of the operator's, None for one left out, with lengths from `expressions.length` where they
    are not known. Raises `GraphError` for ranks that do not match, `EngineError` for a node that no kernel supports.
    """
    made = launch(operator.folder, inputs, attributes, sm)
    return made.entry, _program(operator, inputs, attributes, made)


def alternative_programs(
    operator: Operator, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], sm: int
) -> list[list[int]]:
    """The numbers of other launches of the same kernel, which the GPU may run faster; arguments as above."""
    return [
        _program(operator, inputs, attributes, made) for made in alternatives(operator.folder, inputs, attributes, sm)
    ]


def _program(
    operator: Operator, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], made: Launch
) -> list[int]:
    """The numbers of a launch."""
    shapes = output_shapes(operator, [each and each.shape for each in inputs], attributes)
    return _numbers(made, inputs, shapes, _requirements(operator, inputs, shapes, attributes))


def _numbers(
    made: Launch, inputs: Sequence[Tensor | None], outputs: Sequence[Sequence[Length]], checks: Sequence[int]
) -> list[int]:
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
    return checks + _one_more(operator.inputs, inputs, known)


def _one_more(specs: Sequence[Input], inputs: Sequence[Tensor | None], known: Mapping[str, Length]) -> list[int]:
    """The checks of the axes that are one more than another of `known`."""
    checks: list[int] = []
    for index, (spec, tensor) in enumerate(zip(specs, inputs, strict=True)):
        if tensor is not None and spec.axes[-1].endswith(ONE_MORE):
            expected = known[spec.axes[-1].removesuffix(ONE_MORE)] + 1
            checks += [*program(expected), Step.REQUIRE, index, len(tensor.shape) - 1]
    return checks


def _target(spec: Input, outputs: Sequence[Length], known: Mapping[str, Length]) -> Iterator[Length]:
    """The lengths that the leading axes of an input have, or broadcast to."""
    for name in spec.broadcast_to or (ANY,):
        if name == ANY:
            yield from outputs
        else:
            yield known[name]
