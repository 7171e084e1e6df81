"""Layers with lookup tables compute with the nearest centroids; a bundle and a text give a compressed bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from tiny_decoders import save_decoder

from intaglio.bundle.bundle import Bundle, create
from intaglio.bundle.model_file import load, save
from intaglio.cli import cli
from intaglio.errors import GraphError, UsageError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.graph_passes.contract import PassInputs
from intaglio.graph_passes.lookup_tables.lut import Lut
from intaglio.graph_passes.lookup_tables.lut_sparse import LutSparse
from intaglio.graph_passes.weights.mixed import Mixed
from intaglio.plugins.csr_matmul.spec import sparse_weight
from intaglio.plugins.inlining import inline
from intaglio.plugins.lut_matmul.spec import table_weight
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.sensitivity_file import Observed, Sensitivities, SensitivityWriter
from intaglio.training.gradients.sensitivity import sensitivity

ROWS, COLUMNS = 24, 64
GRAPH = """(float[A, 64] x) => (float[A, 24] y) {
    m = MatMul(x, "a.weight_transposed")
    r = Relu(m)
    y = Gemm<transB=1>(r, "b.weight", "b.bias")
}"""


@pytest.fixture
def model(parse: Callable[..., ir.Model]) -> ir.Model:
    random = np.random.default_rng(0)
    weights = {
        "a.weight_transposed": random.standard_t(4, (COLUMNS, 32)).astype(np.float32),
        "b.weight": random.standard_t(4, (ROWS, 32)).astype(np.float32),
        "b.bias": np.arange(ROWS, dtype=np.float32),
    }
    return parse(GRAPH, weights)


@pytest.fixture
def weighting(tmp_path: Path) -> Sensitivities:
    random = np.random.default_rng(1)
    shapes = {"a.weight_transposed": (COLUMNS, 32), "b.weight": (ROWS, 32)}
    with SensitivityWriter.create(tmp_path / "s", shapes, Observed({}, "text.txt", "00", 3, 300)) as writer:
        for name, shape in shapes.items():
            writer.add(name, (random.standard_normal(shape) ** 2).astype(np.float32))
    return Sensitivities.open(tmp_path / "s")


def weights_of(model: ir.Model) -> dict[str, np.ndarray]:
    """Name of a layer -> the weight [N, K] that its operators represent."""
    found: dict[str, np.ndarray] = {}
    for node in model.graph:
        if node.domain != "intaglio":
            continue
        assert node.op_type == "LutMatMul"
        _, packed, lut, *sparse = [value.const_value and value.const_value.numpy() for value in node.inputs if value]
        weight = table_weight(packed, lut, node.attributes["bits"].as_int())
        name = str(node.name).rpartition(".")[0]
        found[name] = weight + sparse_weight(*sparse, weight.shape[1]) if sparse else weight
    return found


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("kind", [Lut, LutSparse])
def test_graph_computes_with_the_stored_weights(
    kind: type, bits: int, model: ir.Model, weighting: Sensitivities, compute: Callable[..., list]
) -> None:
    x = np.random.default_rng(2).standard_normal((5, COLUMNS)).astype(np.float32)
    bias = np.arange(ROWS, dtype=np.float32)
    options = {} if kind is Lut else {"sensitive": 0.01, "outliers": 0.02}
    model, counts = kind(bits=bits, compensate=False, **options)(model, PassInputs(sensitivity_file=weighting))
    assert counts.rewritten["layers"] == 2
    assert sorted(model.graph.initializers)[0].startswith("a.")
    assert not {"a.weight_transposed", "b.weight"} & set(model.graph.initializers)
    stored = weights_of(model)
    expected = np.maximum(x.astype(np.float64) @ stored["a"].T, 0) @ stored["b"].T + bias
    inline(model)
    np.testing.assert_allclose(compute(model, check=False, x=x)[0], expected, rtol=1e-4, atol=1e-4)


def test_counts_report_bits_and_error_of_every_layer(model: ir.Model, weighting: Sensitivities) -> None:
    tensor = model.graph.initializers["b.weight"].const_value
    assert tensor is not None
    matrix, weight = tensor.numpy().copy(), weighting.read("b.weight", (ROWS, 32))
    model, counts = Lut(bits=3, compensate=False)(model, PassInputs(sensitivity_file=weighting))
    measured = counts.layers["b"]
    error = (weight.astype(np.float64) * (matrix - weights_of(model)["b"]) ** 2).sum()
    assert measured["error"] == pytest.approx(error, rel=1e-5)
    assert measured["bits"] == pytest.approx(3 + 8 * 32 / 32)
    packed = sum(value.const_value.nbytes for name, value in model.graph.initializers.items() if name != "b.bias")
    assert counts.rewritten["bytes"] == packed


def test_sensitivities_are_transposed_with_the_weight(model: ir.Model, weighting: Sensitivities) -> None:
    tensor = model.graph.initializers["a.weight_transposed"].const_value
    assert tensor is not None
    matrix = tensor.numpy().T.copy()
    weight = weighting.read("a.weight_transposed", (COLUMNS, 32)).T
    errors = []
    inputs = PassInputs(sensitivity_file=weighting)
    for unweighted in (False, True):
        made, _ = Lut(bits=2, unweighted=unweighted, compensate=False)(model.clone(), inputs)
        errors.append((weight * (matrix - weights_of(made)["a"]) ** 2).sum())
    assert errors[0] < 0.9 * errors[1]


def test_float16_graph_keeps_its_dtype(parse: Callable[..., ir.Model]) -> None:
    weight = np.random.default_rng(0).standard_normal((32, 8)).astype(np.float16)
    model = parse("(float16[A, 32] x) => (float16[A, 8] y) { y = MatMul(x, w) }", {"w": weight})
    model, _ = Lut(unweighted=True, compensate=False)(model)
    assert [value.dtype for node in model.graph for value in node.outputs] == [ir.DataType.FLOAT16]
    np.testing.assert_allclose(weights_of(model)["w"], weight.T.astype(np.float32), atol=0.2)


def test_shared_weight_is_stored_once(parse: Callable[..., ir.Model]) -> None:
    weight = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    graph = "(float[A, 32] x) => (float[A, 32] y) { m = MatMul(x, w) y = MatMul(m, w) }"
    model, counts = Lut(unweighted=True, compensate=False)(parse(graph, {"w": weight}))
    assert counts.rewritten["layers"] == 1
    assert sorted(model.graph.initializers) == ["w.lut", "w.packed"]
    assert [node.op_type for node in model.graph] == ["LutMatMul", "LutMatMul"]


def test_missing_sensitivities_are_refused(model: ir.Model) -> None:
    for kind in (Lut, LutSparse, Mixed):
        with pytest.raises(GraphError, match="has no sensitivities"):
            kind()(model)


def test_missing_calibration_text_is_refused(model: ir.Model, weighting: Sensitivities) -> None:
    for kind in (Lut, LutSparse, Mixed):
        with pytest.raises(GraphError, match="has no calibration text"):
            kind()(model, PassInputs(sensitivity_file=weighting))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lut(bits=5), "bits 5: expected one of 2, 3, 4"),
        (lambda: LutSparse(bits=1), "bits 1: expected one of 2, 3, 4"),
        (lambda: LutSparse(outliers=0.6), "outliers 0.6: expected a fraction"),
        (lambda: LutSparse(sensitive=-1), "sensitive -1: expected a fraction"),
        (lambda: LutSparse(unweighted=True), "unweighted, but sensitive is 0.0005"),
        (lambda: Mixed(outliers=2), "outliers 2: expected a fraction"),
    ],
)
def test_options_out_of_range_are_refused_when_the_recipe_is_read(make: Callable[[], object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()


def test_mixed_keeps_its_budget_and_reports_the_minimum(model: ir.Model, weighting: Sensitivities) -> None:
    size = 32 * COLUMNS + 32 * ROWS
    counts = Mixed(bits_per_weight=11, compensate=False)(model.clone(), PassInputs(sensitivity_file=weighting))[1]
    assert counts.rewritten["bytes"] <= 11 * size / 8
    assert counts.rewritten["layers"] == 2
    counts = Mixed(megabytes=1, compensate=False)(model.clone(), PassInputs(sensitivity_file=weighting))[1]
    assert counts.reasons == ["a: left uncompressed, within the budget", "b: left uncompressed, within the budget"]
    with pytest.raises(
        GraphError, match=r"budget of 352 bytes, but the layers take at least \d+ \(\d\.\d+ bits per weight"
    ):
        Mixed(bits_per_weight=1, compensate=False)(model, PassInputs(sensitivity_file=weighting))


# --- bundles ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a decoder, a text, and the sensitivities on it."""
    folder = tmp_path_factory.mktemp("lut")
    export(str(save_decoder(folder / "checkpoint", "gpt2")), folder / "bundle", check=False)
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog; sphinx of black quartz. " * 20)
    sensitivity(folder / "bundle", folder / "sensitivity", folder / "text.txt", samples=4, tokens=64)
    return folder


def logits(bundle: Path) -> np.ndarray:
    with DecoderSession.open(bundle) as session:
        return session.prefill([list(range(5, 40))])


@pytest.mark.parametrize("recipe", ["lut", "lut-sparse"])
def test_compressed_bundle_runs_and_records_its_passes(recipe: str, folder: Path, tmp_path: Path) -> None:
    options = {"calibration": folder / "text.txt", "sensitivity": folder / "sensitivity"}
    result = compress(folder / "bundle", tmp_path / "out", recipe, **options)
    assert result.bytes_after < result.bytes_before
    manifest = Bundle.open(tmp_path / "out").manifest
    assert manifest.calibration.file == "text.txt"
    assert (manifest.calibration.samples, manifest.calibration.tokens, manifest.calibration.method) == (
        4,
        256,
        "fisher",
    )
    assert len(manifest.passes[-1].layers) == manifest.passes[-1].counts["layers"] == 8
    assert (
        manifest.passes[-1].reasons[0]
        == "transformer.wte: its weight is an embedding table too, left without tied: true"
    )
    assert manifest.custom_operators == ["LutMatMul"]
    correlation = np.corrcoef(logits(folder / "bundle").ravel(), logits(tmp_path / "out").ravel())[0, 1]
    assert correlation > 0.98


def split(model: ir.Model) -> None:
    """Put the sparse values of each table in a CsrMatMul behind it, as bundles of former releases have them."""
    for node in [node for node in model.graph if node.op_type == "LutMatMul"]:
        x, y, sparse = node.inputs[0], node.outputs[0], node.inputs[3:]
        apart = ir.node("CsrMatMul", [x, *sparse, y], domain="intaglio")
        node.resize_inputs(3)
        name, apart.outputs[0].type, apart.outputs[0].shape = y.name, y.type, y.shape
        y.replace_all_uses_with(apart.outputs[0], replace_graph_outputs=True)
        apart.replace_input_with(4, y)
        y.name, apart.outputs[0].name = f"{name}.dense", name
        model.graph.insert_after(node, apart)


@pytest.mark.parametrize("inlined", [False, True])
def test_bundle_with_sparse_values_in_nodes_of_their_own_runs(inlined: bool, folder: Path, tmp_path: Path) -> None:
    options = {"calibration": folder / "text.txt", "sensitivity": folder / "sensitivity"}
    compress(folder / "bundle", tmp_path / "out", "lut-sparse", **options)
    bundle = Bundle.open(tmp_path / "out")
    found = []
    for change in (split, lambda model: None):
        model = load(bundle.model_path)
        change(model)
        if inlined:
            inline(model)
        operators = sorted({node.op_type for node in model.graph if node.domain == "intaglio"})
        with create(tmp_path / str(len(found))) as draft:
            draft.copy_companions(bundle)
            draft.manifest = msgspec.structs.replace(bundle.manifest, custom_operators=operators)
            save(model, draft.model_path)
        found.append((operators, logits(tmp_path / str(len(found)))))
    expected = [[], []] if inlined else [["CsrMatMul", "LutMatMul"], ["LutMatMul"]]
    assert [operators for operators, _ in found] == expected
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_sensitivities_that_do_not_match_the_model_are_refused(folder: Path, tmp_path: Path) -> None:
    given = folder / "sensitivity"
    text = folder / "text.txt"
    (tmp_path / "plain.yaml").write_text("passes: [{lut: {compensate: false}}]")
    with pytest.raises(UsageError, match="pass lut needs the sensitivity of the loss to each weight"):
        compress(folder / "bundle", tmp_path / "out", tmp_path / "plain.yaml")
    with pytest.raises(UsageError, match=r"no pass of recipe .* needs it"):
        compress(folder / "bundle", tmp_path / "out", tmp_path / "plain.yaml", calibration=text, sensitivity=given)
    with pytest.raises(UsageError, match="pass lut needs real text"):
        compress(folder / "bundle", tmp_path / "out", "lut", sensitivity=given)
    with pytest.raises(UsageError, match="no pass of recipe canonical needs it"):
        compress(folder / "bundle", tmp_path / "out", "canonical", sensitivity=given)
    export(str(save_decoder(tmp_path / "other", "gpt2", n_layer=1)), tmp_path / "bundle", check=False)
    with pytest.raises(UsageError, match="computed on another model than"):
        compress(tmp_path / "bundle", tmp_path / "out", "lut", calibration=text, sensitivity=given)
    assert not (tmp_path / "out").exists()


def test_compensation_reduces_the_output_error(folder: Path, tmp_path: Path) -> None:
    distances = []
    for compensate in ("true", "false"):
        recipe = tmp_path / f"{compensate}.yaml"
        recipe.write_text(
            f"passes: [lut_sparse: {{bits: 2, unweighted: true, sensitive: 0, compensate: {compensate}}}]"
        )
        calibration = folder / "text.txt" if compensate == "true" else None
        compress(folder / "bundle", tmp_path / compensate, recipe, calibration=calibration)
        distances.append(np.square(logits(tmp_path / compensate) - logits(folder / "bundle")).mean())
    assert distances[0] < 0.8 * distances[1]


def test_mixed_weighs_errors_by_the_inputs(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("passes: [mixed: {bits_per_weight: 14}]")
    options = {"calibration": folder / "text.txt", "sensitivity": folder / "sensitivity"}
    record = compress(folder / "bundle", tmp_path / "out", tmp_path / "r.yaml", **options).passes[0]
    assert record.counts["bytes"] <= 14 * record.counts["weights"] / 8
    assert np.corrcoef(logits(folder / "bundle").ravel(), logits(tmp_path / "out").ravel())[0, 1] > 0.95


@pytest.mark.parametrize(
    "options",
    [
        "lut: {",
        "lut_sparse: {",
        "mixed: {bits_per_weight: 14, ",
        "rtn: {group_size: 32, ",
        "gptq: {group_size: 32, ",
        "awq: {group_size: 32, ",
        "int8_absmax: {",
        "int8_zeropoint: {",
    ],
)
def test_tied_head_gets_its_own_copy(options: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(f"passes: [{options}tied: true}}]")
    sensitive = options.startswith(("lut", "mixed"))
    compress(
        folder / "bundle", tmp_path / "out", tmp_path / "r.yaml",
        calibration=folder / "text.txt" if sensitive or options.startswith(("gptq", "awq")) else None,
        sensitivity=folder / "sensitivity" if sensitive else None,
    )  # fmt: skip
    before, after = (load(Bundle.open(path).model_path) for path in (folder / "bundle", tmp_path / "out"))
    assert "MatMul" not in {node.op_type for node in after.graph if node.domain == ""}
    (table,) = {
        node.inputs[0] for node in after.graph if node.op_type == "Gather" and "wte" in str(node.inputs[0].name)
    }
    np.testing.assert_array_equal(table.const_value, before.graph.initializers[str(table.name)].const_value)
    assert np.corrcoef(logits(folder / "bundle").ravel(), logits(tmp_path / "out").ravel())[0, 1] > 0.9


def test_one_command_computes_codebooks_from_a_text(folder: Path, tmp_path: Path) -> None:
    arguments = ["compress", str(folder / "bundle"), "-o", str(tmp_path / "out"), "--recipe", "lut-sparse", "--json"]
    done = CliRunner().invoke(cli, [*arguments, "--calibration", str(folder / "text.txt")], catch_exceptions=False)
    assert json.loads(done.stdout)["passes"][0]["counts"]["layers"] == 8
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_sensitivity_command_prints_one_object(folder: Path, tmp_path: Path) -> None:
    arguments = ["sensitivity", str(folder / "bundle"), "-o", str(tmp_path / "s"), "--tokens", "32", "--samples", "3"]
    text = ["--calibration", str(folder / "text.txt")]
    done = CliRunner().invoke(cli, [*arguments, *text, "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["tokens"] == 96
    done = CliRunner().invoke(cli, [*arguments, *text, "--force"], catch_exceptions=False)
    assert "9 matrices; 96 tokens in 3 windows" in done.stdout
