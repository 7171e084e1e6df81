"""Fine-tuning brings a bundle closer to its teacher, stores the trained weights, and leaves no files on failure."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
import torch

from intaglio.bundle.bundle import Bundle, encode
from intaglio.bundle.model_file import load, save
from intaglio.cli import main
from intaglio.errors import BundleError, GraphError, IntaglioError, UsageError
from intaglio.exporters import export
from intaglio.interrupts import Interrupted
from intaglio.runtime import open_engine
from intaglio.runtime.text.tokenizer import Tokenizer
from intaglio.training import Trained, train_int8_only
from intaglio.training.integer.distiller import Distiller
from intaglio.training.integer.network import IntegerNetwork

FEW: dict[str, Any] = {"steps": 20, "batch_size": 4, "learning_rate": 1.0, "bias_learning_rate": 0.3, "max_tokens": 24}


@pytest.fixture(scope="module")
def rough_bundle(integer_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An integer-only bundle with much to recover: its weights are 16 units apart."""
    folder = tmp_path_factory.mktemp("rough")
    shutil.copytree(integer_bundle, folder / "rough")
    model = load(integer_bundle / "model.onnx")
    network = IntegerNetwork(model)
    with torch.no_grad():
        for each, shadow in zip(network.trainable, network.shadows, strict=True):
            if each.kind == "weight":
                shadow.div_(16).round_().mul_(16)
    network.project()
    network.write()
    save(model, folder / "model.onnx")
    Bundle.open(folder / "rough").add_files({"model.onnx": folder / "model.onnx"})
    return folder / "rough"


@pytest.fixture(scope="module")
def trained(
    rough_bundle: Path, tiny_bundle: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Trained, Path]:
    path = tmp_path_factory.mktemp("trained") / "tuned"
    return train_int8_only(rough_bundle, path, tiny_bundle, texts, **FEW), path


def weights(bundle: Path) -> dict[str, np.ndarray]:
    initializers = load(bundle / "model.onnx").graph.initializers.values()
    return {str(value.name): value.const_value.numpy() for value in initializers if value.const_value is not None}


def test_training_approaches_the_teacher_on_held_out_texts(trained: tuple[Trained, Path]) -> None:
    result, _ = trained
    assert result.loss_after < 0.7 * result.loss_before
    assert 1 <= result.best_step <= result.steps == 20
    assert (result.samples, result.held_out) == (22, 2)
    assert 0 < result.changed < result.trained
    assert result.outputs == ["last_hidden_state", "sentence_embedding"]


def test_written_bundle_gives_the_integers_of_torch(
    trained: tuple[Trained, Path], run_all: Callable[..., dict[str, Any]]
) -> None:
    _, path = trained
    model = load(path / "model.onnx")
    feeds = Tokenizer.open(Bundle.open(path)).feeds(["a", "the quick brown fox", "x" * 40])
    made = IntegerNetwork(model).intermediate({name: torch.from_numpy(array) for name, array in feeds.items()})
    for name, array in run_all(model, feeds).items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(made[name].numpy(), array, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(made[name].numpy().astype(np.int64), array, err_msg=name)
    with open_engine(path) as engine:
        np.testing.assert_array_equal(made["last_hidden_state"].numpy(), engine.run(feeds)["last_hidden_state"])


def test_training_changes_only_weights_biases_and_normalisations(
    trained: tuple[Trained, Path], rough_bundle: Path
) -> None:
    result, path = trained
    before, after = weights(rough_bundle), weights(path)
    assert before.keys() == after.keys()
    network = IntegerNetwork(load(path / "model.onnx"))
    allowed = {str(each.value.name) for each in network.trainable}
    different = {name for name in before if not np.array_equal(before[name], after[name])}
    assert different and different <= allowed
    assert sum(int(np.count_nonzero(before[name] != after[name])) for name in different) == result.changed
    assert all(before[name].dtype == after[name].dtype for name in before)


def test_manifest_records_the_training(trained: tuple[Trained, Path], integer_bundle: Path, texts: Path) -> None:
    result, path = trained
    before, after = Bundle.open(integer_bundle).manifest, Bundle.open(path).manifest
    assert after.passes[:-1] == before.passes
    record = after.passes[-1]
    assert record.name == "train_int8_only"
    assert record.options.items() >= {**FEW, "data": texts.name, "seed": 0, "loss_after": result.loss_after}.items()
    assert record.counts["integers changed"] == result.changed
    assert after.calibration == before.calibration
    assert after.files.keys() == before.files.keys()


@pytest.mark.proof
def test_result_depends_on_the_seed_alone(
    trained: tuple[Trained, Path], rough_bundle: Path, tiny_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    train_int8_only(rough_bundle, tmp_path / "again", tiny_bundle, texts, **FEW)
    assert (tmp_path / "again" / "model.onnx").read_bytes() == (trained[1] / "model.onnx").read_bytes()


def test_result_without_improvement_is_not_kept(
    integer_bundle: Path, tiny_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    options = {**FEW, "steps": 2, "learning_rate": 30.0, "bias_learning_rate": 30.0}
    result = train_int8_only(integer_bundle, tmp_path / "out", tiny_bundle, texts, **options)
    assert (result.best_step, result.changed) == (0, 0)
    assert result.loss_after == result.loss_before
    before, after = weights(integer_bundle), weights(tmp_path / "out")
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_arrays_are_accepted_instead_of_texts(integer_bundle: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    feeds = Tokenizer.open(Bundle.open(integer_bundle)).feeds(["one", "two three", "four"])
    np.savez(tmp_path / "data.npz", **feeds)
    options = {**FEW, "steps": 1, "embeddings": True}
    result = train_int8_only(integer_bundle, tmp_path / "out", tiny_bundle, tmp_path / "data.npz", **options)
    assert (result.samples, result.held_out) == (2, 1)


def test_interrupt_leaves_no_files(
    integer_bundle: Path, tiny_bundle: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Distiller._step

    def interrupted(self: Distiller, *arguments: Any) -> float:
        real(self, *arguments)
        raise Interrupted

    monkeypatch.setattr(Distiller, "_step", interrupted)
    with pytest.raises(Interrupted):
        train_int8_only(integer_bundle, tmp_path / "out", tiny_bundle, texts, **FEW)
    assert list(tmp_path.iterdir()) == []


def altered(bundle: Path, target: Path, change: Callable[[Any], None]) -> Path:
    """A copy of a bundle with another manifest."""
    shutil.copytree(bundle, target)
    manifest = Bundle.open(target).manifest
    change(manifest)
    (target / "bundle.json").write_bytes(encode(manifest))
    return target


def refused(kind: type[IntaglioError], message: str, *arguments: Path, **options: Any) -> None:
    with pytest.raises(kind) as error:
        train_int8_only(*arguments, **{**FEW, **options})  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not arguments[1].exists()


def test_errors_print_one_line(integer_bundle: Path, tiny_bundle: Path, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(BundleError, "has no integer operators to train", tiny_bundle, out, tiny_bundle, texts)
    refused(BundleError, "has integer operators, expected", integer_bundle, out, integer_bundle, texts)
    refused(UsageError, "--data /nowhere", integer_bundle, out, tiny_bundle, Path("/nowhere"))
    (tmp_path / "empty.txt").write_text("\n\n")
    refused(UsageError, "has no sentences", integer_bundle, out, tiny_bundle, tmp_path / "empty.txt")
    (tmp_path / "one.txt").write_text("one\n")
    refused(UsageError, "1 texts or rows, expected at least 2", integer_bundle, out, tiny_bundle, tmp_path / "one.txt")
    for options, message in (
        ({"steps": 0}, "steps 0: expected at least 1"),
        ({"batch_size": 0}, "batch size 0: expected at least 1"),
        ({"learning_rate": -1.0}, "learning rate -1.0: expected 0 or a positive number"),
        ({"bias_learning_rate": float("nan")}, "learning rate nan: expected"),
        ({"max_tokens": 1}, "max tokens 1: expected at least 2"),
        ({"seed": -1}, "seed -1: expected at least 0"),
    ):
        refused(UsageError, message, integer_bundle, out, tiny_bundle, texts, **options)
    feeds = Tokenizer.open(Bundle.open(integer_bundle)).feeds(["one", "two three"])
    np.savez(tmp_path / "padding.npz", **{**feeds, "attention_mask": np.zeros_like(feeds["attention_mask"])})
    message = "padding.npz: attention_mask is 0 everywhere, expected 1 at every token"
    refused(UsageError, message, integer_bundle, out, tiny_bundle, tmp_path / "padding.npz")


def test_teacher_is_not_overwritten(integer_bundle: Path, tiny_bundle: Path, texts: Path, tmp_path: Path) -> None:
    teacher = Path(shutil.copytree(tiny_bundle, tmp_path / "teacher"))
    (tmp_path / "link").symlink_to(teacher)
    with pytest.raises(UsageError, match="is the teacher, which would be overwritten"):
        train_int8_only(integer_bundle, tmp_path / "link", teacher, texts, **FEW, force=True)
    assert Bundle.open(teacher).manifest.custom_operators == []


def test_teacher_of_another_model_is_refused(
    integer_bundle: Path,
    tiny_bundle: Path,
    minilm_bundle: Path,
    make_checkpoint: Callable[..., Path],
    texts: Path,
    tmp_path: Path,
) -> None:
    def other_tokenizer(manifest: Any) -> None:
        del manifest.files["tokenizer.json"]

    inputs, outputs = tmp_path / "inputs", tmp_path / "outputs"
    export(make_checkpoint("DistilBertModel", num_hidden_layers=1), inputs, check=False)
    shutil.copytree(minilm_bundle, outputs)
    Bundle.open(outputs).add_files({"tokenizer.json": tiny_bundle / "tokenizer.json"})
    teachers = {
        inputs: "has the inputs input_ids int64 [batch, sequence], attention_mask int64 [batch, sequence], expected",
        outputs: "sentence_embedding float32 [batch, 384], expected one of last_hidden_state float32 [",
        altered(tiny_bundle, tmp_path / "tokenizer", other_tokenizer): "has another tokenizer.json",
    }
    for teacher, message in teachers.items():
        refused(BundleError, message, integer_bundle, tmp_path / "out", teacher, texts)


def test_teacher_with_nan_outputs_is_a_clear_error(
    integer_bundle: Path, tiny_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    teacher = altered(tiny_bundle, tmp_path / "teacher", lambda manifest: None)
    model = load(teacher / "model.onnx")
    table = next(value for value in model.graph.initializers.values() if "word_embeddings" in str(value.name))
    assert table.const_value is not None
    table.const_value = ir.tensor(np.full_like(table.const_value.numpy(), np.nan), name=table.name)
    save(model, tmp_path / "nan.onnx")
    Bundle.open(teacher).add_files({"model.onnx": tmp_path / "nan.onnx"})
    refused(GraphError, "the gradient is nan", integer_bundle, tmp_path / "out", teacher, texts)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def intaglio(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program on arguments; return exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["intaglio", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run


def test_command_prints_one_object(
    intaglio: Run, integer_bundle: Path, tiny_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    options = ("--teacher", tiny_bundle, "--data", texts, "--steps", 2, "--max-tokens", 16)
    code, out, err = intaglio("train", "int8-only", integer_bundle, "-o", tmp_path / "a", *options, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out).keys() == {field.name for field in msgspec.structs.fields(Trained)}
    code, out, err = intaglio("train", "int8-only", integer_bundle, "-o", tmp_path / "a", *options)
    assert (code, out) == (2, "")
    assert "--force" in err and err.count("\n") == 1
    code, out, err = intaglio("train", "int8-only", integer_bundle, "-o", tmp_path / "a", *options, "--force")
    assert (code, err) == (0, "")
    assert "integers changed" in out


def test_help_has_examples(intaglio: Run) -> None:
    assert "intaglio train int8-only minilm-int8 -o" in intaglio("train", "--help")[1]
    help_text = re.sub(r" \\\n *", " ", intaglio("train", "int8-only", "--help")[1])
    assert "--teacher minilm --data more-texts.txt" in help_text
    code, out, err = intaglio("train")
    assert (code, out) == (2, "")
    assert "int8-only" in err
