"""The declaration of an operator, once for all backends: its name, inputs, attributes and outputs.

Each operator's folder has a `signature.py` with one `SIGNATURE`. `spec.py` computes by it, `plugins/nodes.py` checks
nodes by it, `plugins/trt` declares TensorRT's plugins from it, and `plugins/ort/schemas.py` writes it as C++ for ONNX
Runtime while Intaglio is being installed. So signatures import nothing but this file and each other, and this file
nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

ANY = "..."  # any number of axes
OR_ONE = "|1"  # after the name of a length that may be 1 as well
ONE_MORE = "+1"  # after the name of a length: one more than it

FLOATS = ("float32", "float16")

# A multiplier and its shift, which convert integers to another scale: q·multiplier / 2^shift.
SHIFTS = (0, 62)
FACTORS = ("multiplier", "shift")


@dataclass(frozen=True)
class Input:
    """An input: its name, the dtypes it may have, and its axes.

    `axes`: the names of its lengths, equal names being equal lengths in all inputs of one node, and a number being
    itself; "C|1" may be 1 too, "N+1" is one more than N, and a leading "..." means any axes before the others.
    `bounds`: the smallest and the largest value. `note`: further requirements, in words. `known_width`: GPUs support
    the node only if the last axis is a number, since it selects the CUDA kernel or its constants, or the kernel relies
    on it. `known_values`: ONNX Runtime runs it on GPUs only if it is a constant, since the kernel reads memory where it
    points. `weight`: it is the weight of a linear layer, with two axes; if the operator has an attribute K, that is the
    number of values in a row.
    `broadcast_to`: the axes for "..." broadcast to these, names of lengths or attributes, or "...": the output's; by
    default they are equal to the output's.
    """

    name: str
    dtypes: tuple[str, ...]
    axes: tuple[str, ...] = (ANY,)
    bounds: tuple[int, int] | None = None
    optional: bool = False
    note: str = ""
    known_width: bool = False
    known_values: bool = False
    weight: bool = False
    broadcast_to: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """Dtype, axes and bounds, as "int32 [C or 1], 0 to 62"."""
        axes = ", ".join(axis.replace(OR_ONE, " or 1") for axis in self.axes)
        bounds = "" if self.bounds is None else f", {self.bounds[0]} to {self.bounds[1]}"
        return f"{' or '.join(self.dtypes)} [{axes}]{bounds}{self.note and ', ' + self.note}"


def factors(axis: str, optional: bool = False, prefix: str = "") -> tuple[Input, Input]:
    """The inputs `multiplier` and `shift`, with one entry or one for each of `axis`."""
    multiplier = Input(f"{prefix}multiplier", ("int32",), (axis + OR_ONE,), optional=optional)
    return multiplier, Input(f"{prefix}shift", ("int32",), (axis + OR_ONE,), SHIFTS, optional)


@dataclass(frozen=True)
class Group:
    """Optional inputs that come together or not at all, by name.

    `after`: the first name of another group that is then required too. `instead_of`: that of one that must then be left
    out. `unused`: values of attributes, each of which makes a node ignore these inputs. `on_gpu`: whether kernels of
    GPUs take them.
    """

    names: tuple[str, ...]
    after: str | None = None
    instead_of: str | None = None
    unused: tuple[tuple[str, int | str], ...] = ()
    on_gpu: bool = True


@dataclass(frozen=True)
class Attribute:
    """An attribute: its name and kind, its default (None: required), and the allowed values."""

    name: str
    kind: type[int] | type[float] | type[str]
    default: int | float | str | None = None
    choices: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Like:
    """The dtype of an output: that of an input."""

    input: str


@dataclass(frozen=True)
class By:
    """The dtype of an output, selected by an integer attribute: one dtype for each of its values."""

    attribute: str
    dtypes: Mapping[int, str]


@dataclass(frozen=True)
class Output:
    """An output: its name, its dtype or the rule for it, and whether a node may leave it out."""

    name: str
    dtype: str | Like | By
    optional: bool = False


@dataclass(frozen=True)
class Signature:
    """An operator's name, inputs, outputs, attributes and groups, each in order.

    Every optional input is in a group, possibly alone. Raises ValueError for an inconsistent declaration.
    """

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    attributes: tuple[Attribute, ...] = ()
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        optional = sorted(each.name for each in self.inputs if each.optional)
        if sorted(name for group in self.groups for name in group.names) != optional:
            raise ValueError(f"{self.name}: groups {self.groups}, expected each optional input once: {optional}.")
        inputs, attributes = {each.name for each in self.inputs}, {each.name: each for each in self.attributes}
        for group in self.groups:
            _known(self.name, "attribute", [name for name, _ in group.unused], attributes)
            _known(self.name, "input", [each for each in (group.after, group.instead_of) if each], optional)
        for output in self.outputs:
            if isinstance(output.dtype, Like):
                _known(self.name, "input", [output.dtype.input], inputs)
            elif isinstance(output.dtype, By):
                _known(self.name, "attribute", [output.dtype.attribute], attributes)
                choices = attributes[output.dtype.attribute].choices
                _known(self.name, f"dtype of {output.name} for {output.dtype.attribute}", choices, output.dtype.dtypes)

    def input(self, name: str) -> Input:
        """The input of this name."""
        return next(each for each in self.inputs if each.name == name)

    def attribute(self, name: str) -> Attribute:
        """The attribute of this name."""
        return next(each for each in self.attributes if each.name == name)

    def dtypes(self, output: Output) -> tuple[str, ...]:
        """The dtypes that an output may have."""
        if isinstance(output.dtype, Like):
            return self.input(output.dtype.input).dtypes
        return tuple(dict.fromkeys(output.dtype.dtypes.values())) if isinstance(output.dtype, By) else (output.dtype,)


def _known(operator: str, what: str, wanted: Iterable[object], declared: Container[object]) -> None:
    for each in wanted:
        if each not in declared:
            raise ValueError(f"{operator}: no {what} {each!r} is declared.")


# Of integers limited to `bits`: those of 16 bits lie in int32 too.
BY_BITS = By("bits", {8: "int8", 16: "int32", 32: "int32"})
