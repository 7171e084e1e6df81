"""OPERATORS: our trainable operators, with the functions of their `training.py` on torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from torch import Tensor

from intaglio.plugins import OPS
from intaglio.plugins.operator_inputs import Array
from intaglio.plugins.training_arithmetic import Attributes, Parameter
from intaglio.training.integer.straight_through import StraightThroughArithmetic

Function = Callable[[Sequence[Tensor | None], Attributes], list[Tensor]]
Parameters = Callable[[Mapping[str, Array], Attributes], list[Parameter]]


def _modules() -> dict[str, ModuleType]:
    """The module `training` of each operator that has one, by the operator's name."""
    names = {operator.name: f"intaglio.plugins.{operator.folder}.training" for operator in OPS.values()}
    return {operator: import_module(name) for operator, name in names.items() if find_spec(name) is not None}


# Both take complete attributes. The functions take one input for each of the operator's, None for a missing one, and
# return its outputs; the others take the constant inputs.
OPERATORS: dict[str, Function] = {
    operator: partial(module.straight_through, StraightThroughArithmetic()) for operator, module in _modules().items()
}
PARAMETERS: dict[str, Parameters] = {
    operator: module.parameters for operator, module in _modules().items() if hasattr(module, "parameters")
}
