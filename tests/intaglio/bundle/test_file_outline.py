"""An ONNX file read without its weights has the same content otherwise, and their locations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.bundle.external_data import external_data_files
from intaglio.bundle.model_file import STREAMED_ABOVE, load, outline, parse, save
from intaglio.errors import BundleError

LARGE, SMALL = np.arange(3000, dtype=np.float32), np.arange(5, dtype=np.int64)


def proto(large: int = 2) -> onnx.ModelProto:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3000])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3000])
    names = [f"w{index}" for index in range(large)]
    tensors = [onnx.numpy_helper.from_array(LARGE + index, name) for index, name in enumerate(names)]
    tensors.insert(1, onnx.numpy_helper.from_array(SMALL, "small"))
    typed = onnx.helper.make_tensor("typed", onnx.TensorProto.FLOAT, [2000], LARGE[:2000])  # not raw
    nodes = [onnx.helper.make_node("Sum", ["x", *names], ["y"], name="n")]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], [*tensors, typed], doc_string="a graph")
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], producer_name="someone")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(proto(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_outline_omits_only_large_raw_data(path: Path) -> None:
    expected = parse(path)
    for tensor in expected.graph.initializer:
        if len(tensor.raw_data) > STREAMED_ABOVE:
            tensor.ClearField("raw_data")
    assert outline(path) == expected
    assert external_data_files(outline(path)) == []


def test_mapped_weights_equal_the_file(path: Path) -> None:
    model, whole = load(path, mapped=True), load(path)
    assert list(model.graph.initializers) == list(whole.graph.initializers)
    for name, value in whole.graph.initializers.items():
        assert value.const_value is not None
        mapped = model.graph.initializers[name].const_value
        assert mapped is not None
        np.testing.assert_array_equal(mapped.numpy(), value.const_value.numpy())
        assert isinstance(mapped, ir.ExternalTensor) == (name in ("w0", "w1"))
    save(model, path.with_name("copy.onnx"))
    copied = {tensor.name: tensor for tensor in parse(path.with_name("copy.onnx")).graph.initializer}
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(copied["w1"]), LARGE + 1)


def test_empty_graph_has_an_outline(tmp_path: Path) -> None:
    empty = onnx.ModelProto(ir_version=10)
    empty.graph.SetInParent()
    (tmp_path / "m.onnx").write_bytes(empty.SerializeToString())
    assert outline(tmp_path / "m.onnx") == empty


@given(st.integers(0, 2**16), st.integers(0, 255))
def test_damaged_files_are_refused_or_read(place: int, byte: int) -> None:
    import tempfile

    data = bytearray(proto(1).SerializeToString())
    data[place % len(data)] = byte
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.onnx"
        file.write_bytes(data)
        try:
            assert outline(file).HasField("graph")
        except BundleError as error:
            assert "Re-create it" in str(error)


@pytest.mark.parametrize("data", [b"\x0a\xff", b"no protobuf", b"\x80" * 20, b"\x3a\x05ab"])
def test_non_protobuf_file_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(BundleError, match="not a readable ONNX file"):
        outline(tmp_path / "m.onnx")
