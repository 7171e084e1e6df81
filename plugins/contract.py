"""The interface of an operator's `spec.py`: signature, checks, shapes, the NumPy reference, and the function body."""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError
from intaglio.plugins.operator_inputs import Array, Given, Shape, check_inputs, given
from intaglio.plugins.signature import Attribute, By, Group, Input, Like, Output, Signature

if TYPE_CHECKING:
    import onnx_ir as ir

    from intaglio.plugins.function_body import FunctionBody

T = TypeVar("T")

# Of `body`: names of types, as their modules take long to import.
Body: TypeAlias = "FunctionBody"
Values: TypeAlias = "Sequence[ir.Value | None]"
Results: TypeAlias = "list[ir.Value]"

# For each input what is known of it, or its shape: None for one left out, a shape also where it is unknown.
Inputs = Sequence[Given | None]
Shapes = Sequence[Shape | None]
Attributes = Mapping[str, Any]  # complete, but for `complete` and `reference`

# Kind of an attribute -> the class of its values (NumPy scalars included), and its name in messages.
KINDS: dict[type, tuple[type[Any], str]] = {
    int: (numbers.Integral, "an integer"),
    float: (numbers.Real, "a number"),
    str: (str, "a string"),
}


@dataclass(frozen=True)
class Made:
    """An output of a node, with a dtype and a shape of numbers, symbols, or None if unknown.

    `like`: the name of the input whose dtype it has, where several are possible; `dtype` is then the first of them.
    """

    name: str
    dtype: str
    shape: Shape
    like: str | None = None


class Operator(ABC):
    """A custom operator: one object per kind, in `OPS`."""

    signature: ClassVar[Signature]

    @property
    def name(self) -> str:
        """The `op_type` of its nodes."""
        return self.signature.name

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The declared inputs, in order."""
        return self.signature.inputs

    @property
    def groups(self) -> tuple[Group, ...]:
        """The optional inputs that come together."""
        return self.signature.groups

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """The declared attributes, in order."""
        return self.signature.attributes

    @property
    def folder(self) -> str:
        """The folder below `plugins` that holds this operator's spec and kernels."""
        return type(self).__module__.split(".")[-2]

    @abstractmethod
    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """The outputs for checked inputs (None for one left out) and complete attributes."""

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """The shape of every output; by default there is one, with the shape of the first input."""
        return [inputs[0] or ()]

    @abstractmethod
    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """The same in standard ONNX operators, added to `graph`; bit-identical to the reference."""

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """Multiplications and additions of the products of one run, for inputs of these shapes; 0 without products."""
        return 0

    def outputs(self, shapes: Shapes, attributes: Attributes) -> list[Made]:
        """All possible outputs of a node, for inputs of these shapes and complete attributes."""
        made = zip(self.signature.outputs, self.shapes(shapes, attributes), strict=True)
        return [self._made(output, shape, attributes) for output, shape in made]

    def _made(self, output: Output, shape: Shape, attributes: Attributes) -> Made:
        if isinstance(output.dtype, By):
            return Made(output.name, output.dtype.dtypes[attributes[output.dtype.attribute]], shape)
        like = output.dtype.input if isinstance(output.dtype, Like) else None
        return Made(output.name, self.signature.dtypes(output)[0], shape, like)

    def reference(self, inputs: Sequence[Array | None], attributes: Attributes) -> list[Array]:
        """The outputs in NumPy: the definition that every kernel is tested against.

        Optional inputs at the end may be left out. Raises `GraphError` for inputs that do not match the spec, and for
        attributes that are unknown, missing or out of range.
        """
        complete = self.complete(attributes)
        padded = self.padded(inputs)
        self.check(list(map(given, padded)), complete)
        return self.compute(*padded, **complete)

    def padded(self, inputs: Sequence[T | None]) -> list[T | None]:
        """`inputs` padded with None for those left out at the end. Raises `GraphError` for too many."""
        if len(inputs) > len(self.inputs):
            raise GraphError(f"{self.name}: {len(inputs)} inputs, expected at most {len(self.inputs)}.")
        return [*inputs, *[None] * (len(self.inputs) - len(inputs))]

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Raise `GraphError` for inputs that do not match the spec; unknown shapes and dtypes match.

        `inputs`: one for each of the operator's, None for one left out; `attributes`: complete.
        """
        try:
            check_inputs(self.inputs, [group.names for group in self.groups], inputs)
        except GraphError as error:
            raise GraphError(f"{self.name}: {error}") from error

    def complete(self, attributes: Attributes) -> dict[str, Any]:
        """`attributes` checked, with defaults for missing ones; floats are rounded to float32."""
        known = {attribute.name for attribute in self.attributes}
        if unknown := sorted(set(attributes) - known - HOST_ATTRIBUTES):
            raise GraphError(f"{self.name}: no attribute {', '.join(unknown)}. It has: {', '.join(sorted(known))}.")
        return {attribute.name: self._value(attribute, attributes) for attribute in self.attributes}

    def _value(self, attribute: Attribute, attributes: Attributes) -> int | float | str:
        value: Any = attributes.get(attribute.name, attribute.default)
        values, expected = KINDS[attribute.kind]
        if value is None:
            raise GraphError(f"{self.name}: attribute {attribute.name} is missing.")
        if not isinstance(value, values):
            raise GraphError(f"{self.name}: {attribute.name}={value!r}, expected {expected}.")
        if attribute.choices and value not in attribute.choices:
            choices = ", ".join(map(repr, attribute.choices))
            raise GraphError(f"{self.name}: {attribute.name}={value!r}, expected one of {choices}.")
        return float(np.float32(value)) if attribute.kind is float else attribute.kind(value)


# Attributes that TensorRT's parser needs on a plugin node; our operators ignore them.
HOST_ATTRIBUTES = {"plugin_namespace", "plugin_version"}


def broadcast(*shapes: Shape) -> Shape:
    """NumPy's broadcasting of shapes that may hold symbols: a symbol wins over 1, a number over a symbol."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_widest(lengths) for lengths in zip(*padded, strict=True))


def _widest(lengths: tuple[int | str | None, ...]) -> int | str | None:
    numbers = [length for length in lengths if isinstance(length, int) and length != 1]
    if numbers:
        return numbers[0]
    return next((length for length in lengths if length != 1), 1)


def integers(array: Array | None) -> npt.NDArray[np.int64]:
    """`array` in 64 bits, to compute with."""
    assert array is not None
    return array.astype(np.int64)


def with_bits(values: npt.NDArray[np.int64], bits: int) -> Array:
    """Values that were limited to `bits`: 8 as int8, 16 and 32 as int32."""
    return values.astype(np.int8 if bits == 8 else np.int32)
