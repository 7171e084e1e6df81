"""A graph is opened in ONNX Runtime before it is used, without reading its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.engines.onnxruntime.open_check import NotOpened, unopenable

NOT_THERE = '"": 21, "other": 1'


def write(path: Path, body: str, opsets: str = '"": 21', **weights: onnx.TensorProto) -> Path:
    model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{opsets}]> g {body}")
    model.graph.initializer.extend(weights.values())
    path.write_bytes(model.SerializeToString())
    return path


def test_graph_of_standard_and_intaglio_operators_opens(tmp_path: Path, tiny_bundle: Path) -> None:
    assert unopenable(tiny_bundle / "model.onnx") is None
    body = "(int32[N, 4] x) => (int8[N, 4] y) { y = intaglio.IntGelu <scale = 0.1, out_scale = 0.1> (x) }"
    assert unopenable(write(tmp_path / "ours.onnx", body, '"": 21, "intaglio": 1')) is None


def test_contradicting_types_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "(float[4] x) => (int64[4] y) { z = Relu(x)  y = Identity(z) }")
    found = unopenable(path)
    assert found is not None and not found.lacks_kernel
    assert "Type" in found.reason and "\n" not in found.reason
    for check in (True, False):
        with pytest.raises(SourceError, match=r"cannot open it: .*Re-export"):
            export(path, tmp_path / "bundle", check=check)
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]


def test_missing_kernel_is_a_warning_for_other_targets(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "(int64[4, 4] x) => (float16[4, 4] y) { y = EyeLike <dtype = 10> (x) }")
    found = unopenable(path)
    assert found is not None and found.lacks_kernel
    with pytest.warns(NotOpened, match=r"EyeLike.*other targets"):
        export(path, tmp_path / "bundle")


@pytest.mark.parametrize(
    "body",
    [
        "(float[4] x) => (float[4] y) { y = other.Plugin(x) }",
        "(bool b, float[4] x) => (float[4] y)"
        " { y = If <then_branch = t () => (float[4] a) { a = other.Plugin(x) },"
        "  else_branch = e () => (float[4] c) { c = Relu(x) }> (b) }",
    ],
)
def test_operators_of_other_libraries_are_not_checked(tmp_path: Path, body: str) -> None:
    assert unopenable(write(tmp_path / "m.onnx", body, NOT_THERE)) is None


def test_opening_does_not_read_weights(tmp_path: Path) -> None:
    size = 1 << 28  # half a GiB of float16, all of it a hole in the file
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT16, dims=[1 << 14, 1 << 14])
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", "0"), ("length", str(2 * size))):
        weight.external_data.add(key=key, value=value)
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(2 * size)
    body = "(float16[N, 16384] x) => (float16[N, 16384] y) { y = MatMul(x, w) }"
    path = write(tmp_path / "m.onnx", body, w=weight)
    unopenable(path)  # loads the library
    process, before = psutil.Process(), psutil.Process().memory_info().rss
    assert unopenable(path) is None
    assert process.memory_info().rss - before < size // 8


def test_text_inputs_are_supported(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "(string[N] x) => (string[N] y) { y = Identity(x) }")
    with OnnxRuntimeEngine(path) as engine:
        for texts in (np.array(["a", "longer"]), np.array(["a", "longer"], object)):
            assert engine.run({"x": texts})["y"].tolist() == ["a", "longer"]
