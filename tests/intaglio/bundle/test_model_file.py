"""ONNX files are written as onnx reads them, for any tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intaglio.bundle import model_file
from intaglio.bundle.external_data import external_data_files
from intaglio.errors import BundleError

ARRAYS = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.float16, np.int64, np.int8, np.bool_, np.float64]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40),
)


def model_of(arrays: dict[str, np.ndarray]) -> ir.Model:
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    nodes = [onnx.helper.make_node("Identity", [name], [f"{name}_out"]) for name in arrays]
    outputs = [
        onnx.helper.make_tensor_value_info(
            f"{name}_out", onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
    ]
    proto = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], outputs, initializers))
    return ir.serde.deserialize_model(proto)


@settings(max_examples=examples(60))
@given(arrays=st.lists(ARRAYS, max_size=5), external=st.booleans(), consume=st.booleans())
def test_every_weight_round_trips(
    arrays: list[np.ndarray], external: bool, consume: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    named = {f"w{index}": array for index, array in enumerate(arrays)}
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    model_file.save(model_of(named), path, external_above=0 if external else 1 << 30, consume=consume)
    onnx.checker.check_model(path)
    read = onnx.load(path)
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in read.graph.initializer}
    assert found.keys() == named.keys()
    for name, array in named.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_weights_above_the_limit_become_external(tmp_path: Path) -> None:
    model = model_of({"a": np.ones((64, 64), np.float32), "b": np.arange(5000.0)})
    model_file.save(model, tmp_path / "m.onnx", external_above=1000)
    assert external_data_files(model_file.parse(tmp_path / "m.onnx")) == ["m.onnx.data"]
    assert (tmp_path / "m.onnx").stat().st_size < 2000
    offsets = [
        int(entry.value)
        for tensor in model_file.parse(tmp_path / "m.onnx").graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    ]
    assert len(offsets) == 2
    assert all(offset % model_file.ALIGNMENT == 0 for offset in offsets)


def test_model_with_external_data_can_be_saved_elsewhere(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    model_file.save(model_of({"a": weight}), tmp_path / "m.onnx", external_above=0)
    (tmp_path / "other").mkdir()
    model_file.save(model_file.load(tmp_path / "m.onnx"), tmp_path / "other" / "n.onnx")
    read = onnx.load(tmp_path / "other" / "n.onnx")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(read.graph.initializer[0]), weight)


def test_saving_does_not_modify_the_model(tmp_path: Path) -> None:
    model = model_of({"a": np.ones((64, 64), np.float32)})
    model_file.save(model, tmp_path / "m.onnx")
    tensor = model.graph.initializers["a"].const_value
    assert tensor is not None
    assert tensor.numpy().sum() == 64 * 64


@pytest.mark.parametrize("content", [b"", b"not a protobuf at all", b"\x08\x07"])
def test_file_that_is_not_onnx_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(BundleError, match=r"m\.onnx"):
        model_file.load(tmp_path / "m.onnx")


def _cut(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:-4]


def _typed(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].data_type = 99


def _negative(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = -64


def _huge(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = 2**62


def _empty(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].ClearField("raw_data")


@pytest.mark.parametrize("damage", [_cut, _typed, _negative, _huge, _empty])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("side", [4, 64])
def test_tensors_that_contradict_their_type_or_shape_are_refused(
    damage: Callable[[onnx.ModelProto], None], mapped: bool, side: int, tmp_path: Path
) -> None:
    proto = ir.to_proto(model_of({"a": np.ones((side, side), np.float32)}))
    damage(proto)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(BundleError, match=r"m\.onnx: not a readable ONNX file") as refused:
        model_file.load(tmp_path / "m.onnx", mapped)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("key", "value"), [("offset", "-1"), ("offset", "99999999"), ("length", "3"), ("offset", "x")])
def test_external_data_beyond_the_file_end_is_refused(key: str, value: str, tmp_path: Path) -> None:
    model_file.save(model_of({"a": np.ones((64, 64), np.float32)}), tmp_path / "m.onnx", external_above=0)
    proto = onnx.load_model(tmp_path / "m.onnx", load_external_data=False)
    (entry,) = (entry for entry in proto.graph.initializer[0].external_data if entry.key == key)
    entry.value = value
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(BundleError, match="not a readable ONNX file"):
        model_file.load(tmp_path / "m.onnx")


def test_library_messages_of_a_damaged_graph_do_not_reach_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a program without logging configuration
    node = onnx.helper.make_node("Identity", ["nowhere"], ["y"])
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [output])), tmp_path / "m.onnx")
    model_file.load(tmp_path / "m.onnx")
    assert capfd.readouterr().err == ""
