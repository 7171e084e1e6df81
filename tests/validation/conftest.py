"""Small handmade graphs and bundles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from intaglio.bundle.bundle import FORMAT, Axis, Manifest, Source, TensorSpec, create

WIDTH = 8


def build_chain(
    layers: int, planted: int | None = None, compensated: int | None = None, size: float = 0.1
) -> onnx.ModelProto:
    """`layers` residual layers y = y + tanh(y @ w), with values `layer_0`, `layer_1`, ... and the output `y`.

    Layer `planted` returns `size` too much; layer `compensated` subtracts it again.
    """
    random = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for index in range(layers):
        weight = random.normal(size=(WIDTH, WIDTH)).astype(np.float32)
        fault = np.float32({planted: size, compensated: -size}.get(index, 0.0))
        weights += [numpy_helper.from_array(weight, f"w{index}"), numpy_helper.from_array(fault, f"fault{index}")]
        nodes += [
            helper.make_node("MatMul", [value, f"w{index}"], [f"matmul_{index}"]),
            helper.make_node("Tanh", [f"matmul_{index}"], [f"tanh_{index}"]),
            helper.make_node("Add", [value, f"tanh_{index}"], [f"sum_{index}"]),
            helper.make_node("Add", [f"sum_{index}", f"fault{index}"], [f"layer_{index}"]),
        ]
        value = f"layer_{index}"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH])
    graph = helper.make_graph(nodes, "chain", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture(scope="session")
def chain() -> Callable[..., onnx.ModelProto]:
    """`build_chain`."""
    return build_chain


@pytest.fixture(scope="session")
def make_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that stores a model with the input `x` and the output `y` as a new bundle, and returns its path."""

    def make(model: onnx.ModelProto, dtype: str = "float32") -> Path:
        layers = [value for node in model.graph.node for value in node.output if value.startswith("layer_")]
        path = tmp_path_factory.mktemp("chain") / "bundle"
        with create(path) as draft:
            draft.manifest = Manifest(
                format=FORMAT,
                created_by="test",
                source=Source("onnx", "chain.onnx"),
                family="",
                architecture="",
                task="",
                dtype=dtype,
                inputs=[TensorSpec("x", "float32", ("batch", WIDTH))],
                outputs=[TensorSpec(value.name, "float32", ("batch", WIDTH)) for value in model.graph.output],
                axes={"batch": Axis()},
                layers={value.replace("_", "."): value for value in layers},
            )
            onnx.save(model, draft.model_path)
        return path

    return make


@pytest.fixture(scope="session")
def rows() -> npt.NDArray[np.float32]:
    """Ten rows for a chain."""
    return np.random.default_rng(1).normal(size=(10, WIDTH)).astype(np.float32)


@pytest.fixture(scope="session")
def data(rows: npt.NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`rows` as an .npz file."""
    path = tmp_path_factory.mktemp("data") / "inputs.npz"
    np.savez(path, allow_pickle=False, x=rows)
    return path
