"""Graphs written as text, and their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest

Array = npt.NDArray[np.generic]


@pytest.fixture(scope="session")
def parse() -> Callable[..., ir.Model]:
    """A function: the body of a graph in ONNX text form and its weights -> a checked model."""

    def make(graph: str, weights: Mapping[str, Array] | None = None, opset: int = 23, domains: str = "") -> ir.Model:
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{domains}]> agraph {graph}')
        for name, array in (weights or {}).items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        onnx.checker.check_model(model, full_check=not domains)
        return ir.serde.deserialize_model(model)

    return make


@pytest.fixture(scope="session")
def compute() -> Callable[..., list[Array]]:
    """A function: a model and its inputs by name -> its outputs, by onnx.reference after a full check."""

    def run(model: ir.Model, check: bool = True, **feeds: Any) -> list[Array]:
        from onnx.reference import ReferenceEvaluator

        proto = ir.serde.serialize_model(model)
        if check:
            onnx.checker.check_model(proto, full_check=True)
        with np.errstate(all="ignore"):
            results: list[Array] = ReferenceEvaluator(proto).run(None, feeds)
        return results

    return run


@pytest.fixture(scope="session")
def operators() -> Callable[[ir.Model], list[str]]:
    """A function: a model -> the sorted types of its nodes, without Constants and subgraphs."""
    return lambda model: sorted(node.op_type for node in model.graph if node.op_type != "Constant")
