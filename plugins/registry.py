"""OPS: the one explicit list of the custom operators that this version knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

DOMAIN = "intaglio"
VERSION = 1


class Operator(Protocol):
    """What the `spec.py` of an operator's folder provides."""

    name: str

    def reference(
        self, inputs: Sequence[npt.NDArray[np.generic]], attributes: Mapping[str, Any]
    ) -> list[npt.NDArray[np.generic]]:
        """The outputs in NumPy: the definition that every kernel is tested against."""
        ...


OPS: dict[str, Operator] = {}


def custom_operators(nodes: Iterable[onnx.NodeProto | ir.Node]) -> list[str]:
    """The names of the operators of our domain among `nodes`, sorted."""
    return sorted({node.op_type for node in nodes if node.domain == DOMAIN})
