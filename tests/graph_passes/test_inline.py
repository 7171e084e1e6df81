"""The recipe `inlined` and the pass `inline`: bundles for any ONNX runtime."""

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import GraphError
from intaglio.graph_passes import compress
from intaglio.graph_passes.inline import Inline
from intaglio.plugins import ort as kernels
from intaglio.runtime import open_engine

WARNING = 2  # of ONNX Runtime's log
RECIPES = {
    "lut-sparse": "{lut_sparse: {unweighted: true, sensitive: 0, compensate: false}}",
    "rtn": "{rtn: {bits: 4, group_size: 32}}",
}
FEEDS = {
    "input_ids": np.array([[2, 10, 20, 30, 3], [2, 40, 3, 0, 0]]),
    "attention_mask": np.array([[1] * 5, [1, 1, 1, 0, 0]]),
}


def run(bundle: Path) -> dict[str, np.ndarray]:
    with open_engine(bundle) as engine:
        names = [spec.name for spec in engine.inputs]
        zeros = np.zeros_like(FEEDS["input_ids"])
        return engine.run({name: FEEDS.get(name, zeros) for name in names})


def test_inlined_bundle_has_standard_operators_and_the_same_integers(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    result = compress(tiny_int8_bundle, tmp_path / "inlined", "inlined")
    manifest = Bundle.open(tmp_path / "inlined").manifest
    assert result.passes[-1].counts["IntLayerNorm"] > 0
    assert manifest.custom_operators == []
    model = onnx.load(tmp_path / "inlined" / "model.onnx")
    assert {node.domain for node in model.graph.node} == {""}
    assert [opset.domain for opset in model.opset_import] == [""]
    expected, got = run(tiny_int8_bundle), run(tmp_path / "inlined")
    np.testing.assert_array_equal(got["last_hidden_state"], expected["last_hidden_state"])


def test_float_arithmetic_stays_close_and_multiplies_no_integers(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "float.yaml").write_text("passes: [{inline: {arithmetic: float}}]")
    compress(tiny_int8_bundle, tmp_path / "float", tmp_path / "float.yaml")
    model = onnx.load(tmp_path / "float" / "model.onnx")
    assert "MatMulInteger" not in {node.op_type for node in model.graph.node}
    expected, got = run(tiny_int8_bundle)["sentence_embedding"], run(tmp_path / "float")["sentence_embedding"]
    assert (np.sum(expected * got, axis=-1) >= 0.999).all()


@pytest.fixture(scope="module")
def compressed(
    tiny_int8_bundle: Path, trained_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """An encoder and two decoders with custom operators, by recipe."""
    folder = tmp_path_factory.mktemp("compressed")
    made = {"int8-only": tiny_int8_bundle}
    for name, line in RECIPES.items():
        (folder / f"{name}.yaml").write_text(f"passes: [{line}]")
        compress(trained_pair[0], folder / name, folder / f"{name}.yaml")
        made[name] = folder / name
    return made


@pytest.fixture(scope="module")
def inlined(compressed: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same, inlined."""
    folder = tmp_path_factory.mktemp("inlined")
    for name, bundle in compressed.items():
        compress(bundle, folder / name, "inlined")
    return {name: folder / name for name in compressed}


def decoder_feeds(path: Path) -> dict[str, np.ndarray]:
    """Twelve tokens into an empty cache, for every input of a decoder's model."""
    tokens = np.arange(12)[None]
    given = {
        "input_ids": tokens * 7 + 5,
        "positions": tokens,
        "attention_mask": np.tril(np.ones((1, 12, 16), bool)),
        "write_start": np.zeros(1, np.int64),
        "logit_indices": tokens,
    }
    with open_engine(path) as engine:
        caches = [spec for spec in engine.inputs if spec.name not in given]
    shapes = {spec.name: [16 if length == "capacity" else length for length in spec.shape] for spec in caches}
    return given | {name: np.zeros((1, *shape[1:]), np.float32) for name, shape in shapes.items()}


@pytest.mark.proof
@pytest.mark.parametrize("name", ["int8-only", "lut-sparse", "rtn"])
def test_plain_onnx_runtime_runs_it_without_a_warning(
    name: str, compressed: dict[str, Path], inlined: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    feeds = decoder_feeds(compressed[name]) if name in RECIPES else FEEDS
    with open_engine(compressed[name]) as engine:
        names = [spec.name for spec in engine.inputs]
        feeds = {name: feeds.get(name, np.zeros_like(feeds["input_ids"])) for name in names}
        expected = next(iter(engine.run(feeds).values()))
    capfd.readouterr()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = WARNING
    session = onnxruntime.InferenceSession(inlined[name] / "model.onnx", options, providers=["CPUExecutionProvider"])
    assert capfd.readouterr() == ("", "")
    got = session.run(None, feeds)[0]
    # 8-bit activations in the products of "rtn", see docs/integer-only.md.
    allowed = {"int8-only": 0.0, "lut-sparse": 1e-3, "rtn": 0.03}[name] * np.abs(expected).max()
    assert np.abs(got - expected).max() <= allowed


@pytest.mark.parametrize("name", list(RECIPES))
def test_compressed_weights_stay_small_and_are_multiplied_once(
    name: str, compressed: dict[str, Path], inlined: dict[str, Path], trained_pair: tuple[Path, Path]
) -> None:
    before, after = ((paths[name] / "model.onnx").stat().st_size for paths in (compressed, inlined))
    assert after <= 1.15 * before
    float32, model = (onnx.load(path / "model.onnx") for path in (trained_pair[0], inlined[name]))
    assert operators(model)["MatMul"] == operators(float32)["MatMul"] + operators(float32)["Gemm"]
    assert operators(model)["DequantizeLinear"] == (operators(model)["MatMul"] - 1 if name == "rtn" else 0)


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def test_arithmetic_on_rows_uses_no_64_bit_integers(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    """The remaining int64 values have one element per row: ONNX Runtime is eight times as slow with int64."""
    compress(tiny_int8_bundle, tmp_path / "inlined", "inlined")
    model = onnx.load(tmp_path / "inlined" / "model.onnx")
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    arithmetic = {"Add", "Sub", "Mul", "Div", "Where"}
    outputs = {output for node in model.graph.node if node.op_type in arithmetic for output in node.output}
    wide = [value for value in model.graph.value_info if value.name in outputs]
    wide = [value for value in wide if value.type.tensor_type.elem_type == onnx.TensorProto.INT64]
    assert wide
    for value in wide:
        dims = value.type.tensor_type.shape.dim
        assert not dims or dims[-1].dim_value == 1, value.name


def test_documented_ways_to_open_the_bundle_work(
    tiny_int8_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    intaglio: Callable[..., tuple[int, str, str]],
) -> None:
    if kernels.library() is None:
        pytest.skip("no compiled kernels")
    page = (Path(__file__).parents[2] / "docs" / "integer-only.md").read_text(encoding="utf-8")
    section = page.split("## Plain ONNX Runtime\n")[1].split("\n## ")[0]
    shutil.copytree(tiny_int8_bundle, tmp_path / "minilm-int8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with_library, without, level = re.findall("```python\n(.*?)```", section, re.DOTALL)
    exec(with_library, names)  # noqa: S102 - of our own page
    expected = names.pop("embedding")
    (command,) = re.findall(r"\n    intaglio (.*)\n", section)
    assert intaglio(*command.split())[0] == 0
    exec(without, names)  # noqa: S102 - of our own page
    np.testing.assert_array_equal(names["embedding"], expected)
    exec(level, names)  # noqa: S102 - of our own page


def test_more_precise_products_are_a_session_option(compressed: dict[str, Path], inlined: dict[str, Path]) -> None:
    feeds = decoder_feeds(compressed["rtn"])
    errors = []
    for level in ("1", "4"):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", level)
        session = onnxruntime.InferenceSession(inlined["rtn"] / "model.onnx", options)
        with open_engine(compressed["rtn"]) as engine:
            expected = next(iter(engine.run(feeds).values()))
        errors.append(np.abs(session.run(None, feeds)[0] - expected).max() / np.abs(expected).max())
    assert errors[0] <= 1e-3 < errors[1]


def test_graph_of_standard_operators_is_unchanged_and_reported(tiny_bundle: Path, tmp_path: Path) -> None:
    result = compress(tiny_bundle, tmp_path / "same", "inlined")
    assert result.passes[-1].counts == {}
    assert result.passes[-1].reasons == ["the graph has only standard operators already"]


def test_unknown_operator_is_named_with_its_node(make_model: Callable[[str], ir.Model]) -> None:
    with pytest.raises(
        GraphError, match="node unknown_7: operator intaglio::IntUnknown: unknown, expected one of Cached"
    ):
        Inline()(make_model("IntUnknown"))


@pytest.fixture
def make_model() -> Callable[[str], ir.Model]:
    def make(op_type: str) -> ir.Model:
        x = ir.Value(name="x", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT32))
        node = ir.Node("intaglio", op_type, [x], name="unknown_7")
        graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 23, "intaglio": 1}, name="g")
        return ir.Model(graph, ir_version=10)

    return make
