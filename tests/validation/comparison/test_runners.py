"""The three kinds of runners, alone and compared with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from intaglio.bundle.bundle import TensorSpec
from intaglio.errors import EngineError
from intaglio.plugins import DOMAIN, OPS
from intaglio.runtime import open_engine
from intaglio.validation.comparison.runners import EngineRunner, PyTorchRunner, ReferenceRunner, Runner

Chain = Callable[..., onnx.ModelProto]
Array = npt.NDArray[np.generic]


class TorchChain(torch.nn.Module):
    """The chain of tests/validation/conftest.py in PyTorch."""

    def __init__(self, model: onnx.ModelProto):
        super().__init__()
        weights = [onnx.numpy_helper.to_array(w) for w in model.graph.initializer if w.name.startswith("w")]
        self.layers = torch.nn.ModuleList(TorchLayer(torch.tensor(weight)) for weight in weights)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        for layer in self.layers:
            x = layer(x)[0]
        return (x,)


class TorchLayer(torch.nn.Module):
    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:  # a tuple, as attention layers return one
        return x + torch.tanh(x @ self.weight), None


def run(runner: Runner, feeds: Mapping[str, Array]) -> dict[str, Array]:
    with runner:
        outputs = runner.infer(feeds)
        assert runner.last_inference_time() > 0
        return dict(outputs)


def test_all_runners_agree_on_outputs_and_layers(chain: Chain, rows: npt.NDArray[np.float32], tmp_path: Path) -> None:
    model, path = chain(3), tmp_path / "chain.onnx"
    onnx.save(model, path)
    x, y = TensorSpec("x", "float32", ("batch", 8)), TensorSpec("y", "float32", ("batch", 8))
    layers = {"layers.0": "layer_0", "layers.2": "layer_2"}
    source = run(PyTorchRunner(lambda: TorchChain(model), [x], [y], "pytorch", layers), {"x": rows})
    reference = run(ReferenceRunner(path, "reference", ["layer_0", "layer_2"]), {"x": rows})
    engine = run(EngineRunner(lambda: open_engine(path), "ort"), {"x": rows})
    assert list(source) == list(reference) == ["y", "layer_0", "layer_2"]
    for name, array in source.items():
        np.testing.assert_allclose(reference[name], array, atol=1e-5)
    np.testing.assert_allclose(engine["y"], source["y"], atol=1e-5)


def test_runner_is_reusable_after_closing(chain: Chain, rows: npt.NDArray[np.float32]) -> None:
    module = TorchChain(chain(1))
    x, y = TensorSpec("x", "float32", ("batch", 8)), TensorSpec("y", "float32", ("batch", 8))
    runner = PyTorchRunner(lambda: module, [x], [y], "pytorch", {"layers.0": "a"})
    first, second = run(runner, {"x": rows}), run(runner, {"x": rows})
    np.testing.assert_array_equal(first["a"], second["a"])
    assert not module.layers[0]._forward_hooks  # the module is shared: no hook remains


def test_layer_outputs_are_copied_before_in_place_changes(rows: npt.NDArray[np.float32]) -> None:
    module = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU(inplace=True))

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = module

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (self.body(x.clone()),)

    x, y = TensorSpec("x", "float32", ("batch", 8)), TensorSpec("y", "float32", ("batch", 8))
    seen = run(PyTorchRunner(Whole, [x], [y], "pytorch", {"body.0": "before"}), {"x": rows})
    np.testing.assert_array_equal(seen["before"], rows)


class Scaled:
    """y = x · factor + offset, where the offset is optional."""

    name = "Scaled"

    def reference(self, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
        x, offset = (*inputs, None)[:2]
        assert attributes["plugin_version"] == "1"
        return [x * np.float32(attributes["factor"]) + (0 if offset is None else offset)]


@pytest.mark.parametrize("inputs", [["x"], ["x", ""], ["x", "x"]])
def test_reference_runs_custom_operators(
    inputs: list[str], rows: npt.NDArray[np.float32], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPS, "Scaled", Scaled())
    node = helper.make_node("Scaled", inputs, ["y"], domain=DOMAIN, factor=0.5, plugin_version="1")
    save(node, tmp_path / "model.onnx")
    outputs = run(ReferenceRunner(tmp_path / "model.onnx", "reference"), {"x": rows})
    np.testing.assert_array_equal(outputs["y"], rows * 0.5 + (rows if inputs[1:] == ["x"] else 0))


def test_operator_unknown_to_the_reference_prints_one_line(tmp_path: Path) -> None:
    save(helper.make_node("Unknown", ["x"], ["y"], domain=DOMAIN), tmp_path / "model.onnx")
    with pytest.raises(EngineError, match=r"reference evaluator cannot run it: .*Unknown") as caught:
        ReferenceRunner(tmp_path / "model.onnx", "reference").activate()
    assert "\n" not in str(caught.value)


def test_inputs_unsupported_by_the_reference_print_one_line(chain: Chain, tmp_path: Path) -> None:
    onnx.save(chain(1), tmp_path / "model.onnx")
    with ReferenceRunner(tmp_path / "model.onnx", "reference") as runner, pytest.raises(EngineError) as caught:
        runner.infer({"x": np.zeros((2, 7), np.float32)}, check_inputs=False)
    assert "\n" not in str(caught.value)


def test_bfloat16_outputs_are_widened_for_polygraphy(tmp_path: Path) -> None:
    save(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16), tmp_path / "model.onnx", TensorProto.BFLOAT16)
    outputs = run(ReferenceRunner(tmp_path / "model.onnx", "reference"), {"x": np.full((1, 8), 1.00390625, np.float32)})
    assert outputs["y"].dtype == np.float32
    assert set(outputs["y"].ravel()) == {1.0}


def save(node: onnx.NodeProto, path: Path, output: int = TensorProto.FLOAT) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])
    y = helper.make_tensor_value_info("y", output, ["batch", 8])
    graph = helper.make_graph([node], "one", [x], [y])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
