"""The contract of a rewrite: its anchors and its matches. It does not change the graph; `Canonicalize` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir


@dataclass(frozen=True)
class NewConstant:
    """A constant that is not in the graph yet; `name` is a suggestion."""

    name: str
    array: npt.NDArray[np.generic]


@dataclass(frozen=True)
class Match:
    """`output` can be computed by one node with this operator, inputs and attributes."""

    output: ir.Value
    op_type: str
    inputs: tuple[ir.Value | NewConstant, ...]
    attributes: dict[str, Any]


@dataclass
class Found:
    """The result at a node: a match, and the reasons why candidates were left, completely or partly."""

    match: Match | None = None
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rewrite:
    """A formula and the operator that replaces it."""

    name: str
    anchors: tuple[str, ...]  # the types of the nodes that `find` is called with
    opset: int  # the first opset with the operator
    find: Callable[[ir.Node], Found]
