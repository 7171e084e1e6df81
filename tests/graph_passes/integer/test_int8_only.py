"""The recipe int8-only as users run it: on bundles, with real text, in every engine."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.effect import Effect
from intaglio.bundle.model_file import load, parse, save
from intaglio.errors import GraphError
from intaglio.graph_passes import compress
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.pass_table import PASSES
from intaglio.graph_passes.quantize_dequantize.quantize_weights import QuantizeWeights
from intaglio.graph_passes.recipes.recipes import RECIPES, Recipe
from intaglio.plugins import custom_operators, ort
from intaglio.runtime import open_engine
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.onnxruntime.custom_operators import MissingKernels
from intaglio.runtime.text.tokenizer import Tokenizer
from intaglio.samples.sentences import sentences
from intaglio.validation.comparison.runners import ReferenceRunner

Array = npt.NDArray[Any]
Run = Callable[..., tuple[int, str, str]]

SHORT = Path(__file__).parents[3] / "benchmarks" / "shared" / "short_sentences.txt"
TEXTS = ["a cat", "one rather longer sentence, with a tail", "x", "12 words; or fewer (it depends)", "dogs and cats"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS))
    return path


@pytest.fixture(scope="module")
def tiny_int8(tiny_bundle: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("int8") / "tiny"
    compress(tiny_bundle, path, "int8-only", calibration=texts)
    return path


def feeds(bundle: Path) -> dict[str, Array]:
    return Tokenizer.open(Bundle.open(bundle)).feeds(TEXTS)


def test_manifest_records_the_passes(tiny_int8: Path) -> None:
    manifest = Bundle.open(tiny_int8).manifest
    assert manifest.custom_operators == ["IntAdd", "IntAttention", "IntLayerNorm", "IntLinear"]
    counts = {record.name: record.counts for record in manifest.passes}
    assert counts["integer_linear"] == {"linear": 10, "linear with gelu": 2}
    assert counts["integer_attention"] == {"attention": 2}
    assert counts["audit_integer_only"]["floating-point nodes"] == 0
    assert counts["correct_biases"] == {"linear": 12}
    assert manifest.calibration.samples == len(TEXTS)


def test_kernels_function_bodies_and_references_agree_bit_for_bit(
    tiny_int8: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last hidden state is the last integers times one scale, so equal integers give equal values."""
    assert ort.library() is not None, "make kernels"
    with open_engine(tiny_int8) as engine:
        compiled = engine.run(feeds(tiny_int8))
    runner = ReferenceRunner(tiny_int8 / "model.onnx", "reference")
    runner.activate()
    reference = runner.infer(feeds(tiny_int8))
    runner.deactivate()
    monkeypatch.setattr(ort, "library", lambda: None)
    with pytest.warns(MissingKernels, match=r"installed without a C\+\+ compiler"):
        engine = open_engine(tiny_int8)
    with engine:
        bodies = engine.run(feeds(tiny_int8))
    for name in ("last_hidden_state",):
        np.testing.assert_array_equal(compiled[name], bodies[name])
        np.testing.assert_array_equal(compiled[name], reference[name])


def test_engine_built_without_kernels_is_skipped_if_kernels_exist(
    tiny_int8: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Path(shutil.copytree(tiny_int8, tmp_path / "int8"))
    with monkeypatch.context() as patch, pytest.warns(MissingKernels):
        patch.setattr(ort, "library", lambda: None)
        (built,) = build(bundle, "ort-cpu").engines
    assert not custom_operators(parse(bundle / built.path).graph.node)
    opened = []
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda path, *_, **__: opened.append(path))
    with pytest.raises(AttributeError):  # of the session without kernels
        open_engine(bundle)
    assert opened == [str(bundle / "model.onnx")]


def test_non_finite_weights_are_named(tiny_bundle: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(tiny_bundle, tmp_path / "broken"))
    model = load(broken / "model.onnx")
    weights = (node.inputs[1] for node in model.graph if node.op_type == "MatMul")
    weight = next(value for value in weights if value is not None and value.const_value is not None)
    assert weight.const_value is not None
    array = weight.const_value.numpy().copy()
    array[0, 0] = np.nan
    weight.const_value = ir.tensor(array, name=weight.name)
    save(model, broken / "model.onnx")
    with pytest.raises(GraphError, match="contains NaN or infinity, expected finite weights"):
        QuantizeWeights(where="everywhere")(load(broken / "model.onnx"))


def test_compiled_kernels_print_no_warning(tiny_int8: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_engine(tiny_int8).close()


def test_padding_does_not_change_the_output(tiny_int8: Path) -> None:
    tokenizer = Tokenizer.open(Bundle.open(tiny_int8))
    with open_engine(tiny_int8) as engine:
        together = engine.run(tokenizer.feeds(TEXTS))["last_hidden_state"]
        for index, text in enumerate(TEXTS):
            alone = engine.run(tokenizer.feeds([text]))["last_hidden_state"][0]
            np.testing.assert_array_equal(together[index, : len(alone)], alone)


def test_quantised_bundle_is_refused(tiny_int8: Path, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="the graph is already quantised"):
        compress(tiny_int8, tmp_path / "twice", "int8-only", calibration=texts)
    assert not (tmp_path / "twice").exists()


@pytest.mark.parametrize("arguments", [[], ["--calibration", "{empty}"], ["--calibration", "{missing}"]])
def test_missing_or_empty_calibration_data_prints_one_line(
    intaglio: Run, tiny_bundle: Path, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "empty.txt").write_text("\n  \n")
    given = [each.format(empty=tmp_path / "empty.txt", missing=tmp_path / "none.txt") for each in arguments]
    command = ["compress", str(tiny_bundle), "-o", str(tmp_path / "out"), "--recipe", "int8-only", *given]
    code, _, error = intaglio(*command)
    assert code == 2 and error.count("\n") == 1, error
    assert not (tmp_path / "out").exists()


def test_nan_weights_name_the_activation(tiny_bundle: Path, texts: Path, tmp_path: Path) -> None:
    import onnx_ir as ir

    from intaglio.bundle.bundle import create
    from intaglio.bundle.model_file import load, save

    source = Bundle.open(tiny_bundle)
    model = load(source.model_path)
    value = next(v for name, v in model.graph.initializers.items() if name.endswith("word_embeddings.weight"))
    broken = value.const_value.numpy().copy()
    broken[2:] = np.nan
    value.const_value = ir.tensor(broken, name=value.name)
    with create(tmp_path / "nan") as draft:
        draft.copy_companions(source)
        draft.manifest = source.manifest
        save(model, draft.model_path)
    with pytest.raises(GraphError, match="is NaN, expected finite numbers"):
        compress(tmp_path / "nan", tmp_path / "out", "int8-only", calibration=texts)


def test_allow_float_is_refused_by_recipes_without_it(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    command = ["compress", str(tiny_bundle), "-o", str(tmp_path / "o"), "--recipe", "canonical", "--allow-float"]
    code, _, error = intaglio(*command)
    assert code == 2
    assert "--allow-float: no pass of recipe canonical has this option. Recipes that do: int8-only." in error


def test_allow_float_reaches_every_pass_with_the_option(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    @dataclass(frozen=True)
    class Other(Pass):
        name: ClassVar[str] = "other"
        effect: ClassVar[Effect] = Effect.EXACT
        allow_float: bool = False

        def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
            seen.append(self.allow_float)

    monkeypatch.setitem(PASSES, "other", Other)
    monkeypatch.setitem(RECIPES, "other", Recipe("", "", ("other",)))
    compress(tiny_bundle, tmp_path / "strict", "other")
    compress(tiny_bundle, tmp_path / "loose", "other", allow_float=True)
    assert seen == [False, True]


def paragraphs() -> list[str]:
    """Real English prose of 60 to 600 characters."""
    blocks = (" ".join(block.split()) for text in topics.topics.values() for block in text.split("\n\n"))
    return [block for block in blocks if 60 < len(block) < 600]


@pytest.mark.proof  # the session of the README compresses and validates the same model
def test_real_model_keeps_its_accuracy_in_a_quarter_of_the_bytes(minilm_bundle: Path, tmp_path: Path) -> None:
    """Calibrated on paragraphs of Python's manual, evaluated on other sentences of it, and on sentences of everyday
    life, which reach channels that the paragraphs do not; no training."""
    calibration = tmp_path / "texts.txt"
    calibration.write_text("\n".join(paragraphs()[:640:10]))
    result = compress(minilm_bundle, tmp_path / "int8", "int8-only", calibration=calibration)
    assert result.bytes_after <= 0.27 * result.bytes_before
    tokenizer = Tokenizer.open(Bundle.open(minilm_bundle))
    for held_out in (sentences(), [line for line in SHORT.read_text().splitlines() if not line.startswith("#")]):
        found = []
        for bundle in (minilm_bundle, tmp_path / "int8"):
            with open_engine(bundle) as engine:
                found.append(
                    np.concatenate([engine.run(tokenizer.feeds([text]))["sentence_embedding"] for text in held_out])
                )
        cosines = (found[0] * found[1]).sum(axis=1)
        assert cosines.mean() >= 0.995 and cosines.min() >= 0.98, (cosines.mean(), cosines.min())
        pairs = np.triu_indices(len(held_out), 1)
        ranks = [np.argsort(np.argsort((each @ each.T)[pairs])) for each in found]
        assert np.corrcoef(*ranks)[0, 1] >= 0.995


def test_command_line_reports_the_passes(intaglio: Run, tiny_bundle: Path, texts: Path, tmp_path: Path) -> None:
    command = ["compress", str(tiny_bundle), "-o", str(tmp_path / "o"), "--recipe", "int8-only"]
    code, out, error = intaglio(*command, "--calibration", texts, "--json")
    assert code == 0, error
    names = [record["name"] for record in json.loads(out)["passes"]]
    assert names[-3:] == ["correct_biases", "fuse_projections", "fuse_linear"]


@pytest.mark.parametrize("recipe", ["int8-qdq", "int8-weights", "h-gelu"])
def test_related_recipes_stay_accurate(tiny_bundle: Path, texts: Path, tmp_path: Path, recipe: str) -> None:
    compress(tiny_bundle, tmp_path / "o", recipe, calibration=texts if recipe == "int8-qdq" else None)
    with open_engine(tiny_bundle) as before, open_engine(tmp_path / "o") as after:
        a, b = (engine.run(feeds(tiny_bundle))["sentence_embedding"] for engine in (before, after))
    assert (a * b).sum(axis=1).min() > 0.97
    assert np.abs(a - b).max() > 1e-6, "something was rounded"
