"""A bundle and a text give a bundle with lookup tables and sparse values."""

from __future__ import annotations

import json
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
from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.plugins.inlining import inline
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.training.gradients.sensitivity import sensitivity


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
