"""Inner values of a graph as additional outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from intaglio.errors import UsageError
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.validation.comparison.graph_values import expose_values, graph_values

Chain = Callable[..., onnx.ModelProto]


@pytest.mark.parametrize("external", [False, True])
def test_exposed_values_equal_the_computed_ones(
    external: bool, chain: Chain, rows: npt.NDArray[np.float32], tmp_path: Path
) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(chain(3), path, save_as_external_data=external, location="chain.data", size_threshold=0)
    before = path.read_bytes()
    with expose_values(path, ["layer_2", "sum_0", "y"]) as copy:
        with OnnxRuntimeEngine(copy) as engine:
            outputs = engine.run({"x": rows})
        folder = copy.parent
    assert list(outputs) == ["y", "layer_2", "sum_0"]  # a value that was an output already occurs once
    np.testing.assert_array_equal(outputs["layer_2"], outputs["y"])
    assert np.abs(outputs["sum_0"] - rows).max() <= 1  # x + tanh(...)
    assert path.read_bytes() == before
    assert not folder.exists()


def test_external_weights_are_linked_instead_of_copied(chain: Chain, tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(chain(1), path, save_as_external_data=True, location="chain.data", size_threshold=0)
    with expose_values(path, ["sum_0"]) as copy:
        assert (copy.parent / "chain.data").samefile(tmp_path / "chain.data")


def test_external_weights_on_another_file_system_are_copied(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    path = tmp_path / "chain.onnx"
    onnx.save(chain(1), path, save_as_external_data=True, location="chain.data", size_threshold=0)
    monkeypatch.setattr("os.link", refuse)
    with expose_values(path, ["sum_0"]) as copy:
        assert (copy.parent / "chain.data").read_bytes() == (tmp_path / "chain.data").read_bytes()


def test_missing_value_is_refused(chain: Chain, tmp_path: Path) -> None:
    onnx.save(chain(1), tmp_path / "chain.onnx")
    with pytest.raises(UsageError, match="no value 'layer_9'"), expose_values(tmp_path / "chain.onnx", ["layer_9"]):
        pass


def test_values_are_in_the_order_of_computation(chain: Chain, tmp_path: Path) -> None:
    onnx.save(chain(2), tmp_path / "chain.onnx")
    values = graph_values(tmp_path / "chain.onnx")
    assert [value for value in values if value.startswith("layer_")] == ["layer_0", "layer_1"]
    assert values[-1] == "y"
