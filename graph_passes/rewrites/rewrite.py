"""What a rewrite is: where it looks, and what it finds there. It changes nothing; `Canonicalize` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir


@dataclass(frozen=True)
class NewConstant:
    """A constant that the graph does not have yet; `name` is a wish."""

    name: str
    array: npt.NDArray[np.generic]


@dataclass(frozen=True)
class Match:
    """`output` equals one node: its operator, its inputs and its attributes."""

    output: ir.Value
    op_type: str
    inputs: tuple[ir.Value | NewConstant, ...]
    attributes: dict[str, Any]


@dataclass
class Found:
    """What was found at a node: a match, and reasons why a candidate there was left, in whole or in part."""

    match: Match | None = None
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rewrite:
    """One formula and the operator that stands for it."""

    name: str
    anchors: tuple[str, ...]  # the types of the nodes at which `find` looks
    opset: int  # the first that has the operator
    find: Callable[[ir.Node], Found]
