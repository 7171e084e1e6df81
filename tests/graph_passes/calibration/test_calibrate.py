"""Calibration observes the activations of the model on real text: each once, without padding."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from covering import few

from intaglio.bundle.bundle import Bundle, Calibration, Manifest, Source, create, tensor_spec
from intaglio.bundle.model_file import load, save
from intaglio.errors import EngineError, GraphError, UsageError
from intaglio.files.hashes import sha256
from intaglio.graph_passes import compress
from intaglio.graph_passes.calibration import calibrate, stretch
from intaglio.graph_passes.calibration.activation_statistics import Statistics, statistics_of
from intaglio.graph_passes.calibration.calibrate import Calibrate
from intaglio.graph_passes.calibration.data import CalibrationData
from intaglio.graph_passes.calibration.thresholds import threshold
from intaglio.graph_passes.contract import PassInputs
from intaglio.graph_passes.graphs import replace_value
from intaglio.runtime.text.tokenizer import Tokenizer

Array = npt.NDArray[np.generic]
TEXTS = ["a cat", "one rather longer sentence, with a tail", "x", "12 words; or fewer (it depends)", "dogs and cats"]
Parse = Callable[..., ir.Model]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS) + "\n   \n")
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text("passes:\n  - canonicalize\n  - calibrate: {method: mse, batch: 2}\n")
    return path


def inputs(data: Path, bundle: Bundle) -> PassInputs:
    return PassInputs(bundle.manifest, CalibrationData.open(data, bundle))


def observe(bundle: Path, data: Path, **options: Any) -> tuple[ir.Model, dict[str, Statistics]]:
    opened = Bundle.open(bundle)
    model = load(opened.model_path)
    model, _ = Calibrate(**options)(model, inputs(data, opened))
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return model, {str(value.name): found for value in values if (found := statistics_of(value)) is not None}


def activations(bundle: Path, names: list[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The named values, from an ONNX Runtime session without optimisations."""
    import onnx
    import onnxruntime

    proto = onnx.load(bundle / "model.onnx")
    known = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def pack(model: ir.Model, path: Path) -> Path:
    with create(path) as draft:
        draft.manifest = Manifest(
            format=1,
            created_by="a test",
            source=Source("onnx", "nowhere"),
            family="",
            architecture="",
            task="",
            dtype="float32",
            inputs=[tensor_spec(value) for value in model.graph.inputs],
            outputs=[tensor_spec(value) for value in model.graph.outputs],
        )
        save(model, draft.model_path)
    return path


def test_batched_statistics_equal_those_of_single_texts(tiny_bundle: Path, texts: Path) -> None:
    """Single texts have no padding, so equality requires that batches exclude all of it."""
    model, found = observe(tiny_bundle, texts, batch=3)
    names = list(found)
    tokenizer = Tokenizer.open(Bundle.open(tiny_bundle))
    runs = [activations(tiny_bundle, names, tokenizer.feeds([text])) for text in TEXTS]
    operators = {str(value.name): node.op_type for node in model.graph for value in node.outputs}
    assert {"Softmax", "Gelu", "LayerNormalization", "MatMul", "Add"} <= {operators[name] for name in names}
    for name in names:
        flat = np.concatenate([run[name].reshape(-1) for run in runs])
        seen = found[name]
        close = {"rtol": 1e-4, "atol": 1e-5}
        assert seen.count == seen.histogram.counts.sum() == flat.size, name
        np.testing.assert_allclose([seen.minimum, seen.maximum], [flat.min(), flat.max()], err_msg=name, **close)
        cumulative, _ = np.histogram(np.abs(flat), seen.histogram.edges)
        moved = np.abs(np.cumsum(cumulative) - np.cumsum(seen.histogram.counts)).max()
        assert moved <= 0.02 * flat.size + 1, name  # only values at an edge change bins
        if seen.channel_absmax is not None and seen.channel_mean is not None:
            rows = np.concatenate([run[name].reshape(-1, run[name].shape[-1]) for run in runs])
            np.testing.assert_allclose(seen.channel_absmax, np.abs(rows).max(axis=0), err_msg=name, **close)
            np.testing.assert_allclose(seen.channel_mean, rows.mean(axis=0), err_msg=name, **close)
    scores = [name for name in names if operators[name] == "Softmax"]
    assert all(found[name].channel_absmax is None for name in scores), "positions are no channels"
    assert all(found[name].channel_absmax is not None for name in names if operators[name] == "Gelu")


@pytest.mark.parametrize("method", few(["absmax", "percentile", "mse", "entropy"], ["absmax", "entropy"]))
def test_batch_size_does_not_change_the_statistics(tiny_bundle: Path, texts: Path, method: str) -> None:
    _, alone = observe(tiny_bundle, texts, batch=1, method=method)
    _, together = observe(tiny_bundle, texts, batch=5, method=method)
    assert alone.keys() == together.keys()
    assert {name: seen.count for name, seen in alone.items()} == {name: seen.count for name, seen in together.items()}
    for name, seen in alone.items():
        width = together[name].histogram.edges[1]
        np.testing.assert_allclose(seen.absmax, together[name].absmax, rtol=1e-4, atol=1e-6, err_msg=name)
        if method in ("absmax", "percentile"):
            assert abs(threshold(seen, 8) - threshold(together[name], 8)) <= 2 * width, name


def test_low_memory_uses_smaller_batches_and_several_runs(
    tiny_bundle: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plenty = observe(tiny_bundle, texts)
    opened: list[int] = []
    batches: list[int] = []
    engine = stretch.OnnxRuntimeEngine

    class Watched(engine):  # type: ignore[misc, valid-type]
        def __init__(self, path: Path, **options: Any):
            super().__init__(path, **options)
            opened.append(len(self.outputs))

        def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
            batches.append(len(feeds["input_ids"]))
            outputs: dict[str, Array] = super()._run(feeds)
            assert sum(array.nbytes for array in outputs.values()) <= 200_000 or len(outputs) == 1
            return outputs

    monkeypatch.setattr(stretch, "OnnxRuntimeEngine", Watched)
    monkeypatch.setattr(calibrate, "MEMORY", 200_000)
    _, little = observe(tiny_bundle, texts)
    assert set(batches) == {1}
    assert len(opened) > 1
    assert sum(opened) == len(plenty)
    assert {name: seen.count for name, seen in little.items()} == {name: seen.count for name, seen in plenty.items()}
    for name, seen in little.items():
        np.testing.assert_allclose(seen.absmax, plenty[name].absmax, rtol=1e-4, atol=1e-6)


def test_compress_stores_the_calibration_results(tiny_bundle: Path, texts: Path, recipe: Path, tmp_path: Path) -> None:
    done = compress(tiny_bundle, tmp_path / "out", recipe, calibration=texts)
    record = done.passes[-1]
    bundle = Bundle.open(tmp_path / "out")
    found = bundle.manifest.calibration
    tokenizer = Tokenizer.open(Bundle.open(tiny_bundle))
    tokens = sum(tokenizer.feeds([text])["attention_mask"].sum() for text in TEXTS)
    assert (found.file, found.sha256) == ("texts.txt", sha256(texts))
    assert (found.samples, found.tokens, found.method) == (len(TEXTS), tokens, "mse")
    assert record.counts == {"activations observed": len(found.thresholds), "samples": 5, "tokens": tokens}
    assert record.options == {"method": "mse", "percentile": 99.99, "bins": 2048, "samples": 128, "batch": 2}
    _, seen = observe(tiny_bundle, texts, method="mse", batch=2)
    assert found.thresholds == {name: pytest.approx(threshold(value, 8), rel=1e-5) for name, value in seen.items()}
    assert found.thresholds["last_hidden_state"] > 0
    assert [spec.name for spec in bundle.manifest.outputs] == ["last_hidden_state", "sentence_embedding"]
    before, after = load(tiny_bundle / "model.onnx"), load(bundle.model_path)
    assert [value.name for value in after.graph.outputs] == [value.name for value in before.graph.outputs]

    compress(tmp_path / "out", tmp_path / "next", "canonical")
    assert Bundle.open(tmp_path / "next").manifest.calibration == found, "a later recipe forgot it"
    assert Bundle.open(tiny_bundle).manifest.calibration == Calibration()


def test_bundles_without_calibration_data_are_read(tiny_bundle: Path, tmp_path: Path) -> None:
    text = (tiny_bundle / "bundle.json").read_text()
    assert '"calibration": {},' in text, "this is also what older bundles have"
    copy = Path(shutil.copytree(tiny_bundle, tmp_path / "old"))
    (copy / "bundle.json").write_text(text.replace('"calibration": {},', ""))
    assert Bundle.open(copy).manifest.calibration.samples == 0


def test_samples_beyond_the_limit_are_not_read(tiny_bundle: Path, texts: Path) -> None:
    model, _ = observe(tiny_bundle, texts, samples=2)
    assert model.meta["calibration"].samples == 2


def test_texts_beyond_the_maximum_length_are_truncated(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a " * 1000)
    model, _ = observe(tiny_bundle, tmp_path / "long.txt")
    assert model.meta["calibration"].tokens == 256


def test_arrays_calibrate_models_without_text_input(parse: Parse, tmp_path: Path) -> None:
    model = parse(
        "(float[N, 4] x) => (float[N, 4] y) { a = Mul(x, w) y = Relu(a) k = Exp(w) z = Add(y, k) }",
        {"w": np.array([1, 2, -3, 0], np.float32)},
    )
    x = np.random.default_rng(0).normal(0, 1, (10, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    bundle = pack(model, tmp_path / "bundle")
    model, found = observe(bundle, tmp_path / "x.npz", batch=3)
    w = np.array([1, 2, -3, 0], np.float32)
    assert found.keys() == {"x", "a", "y", "z"}, "k does not depend on an input"
    np.testing.assert_array_equal(found["x"].channel_absmax, np.abs(x).max(axis=0))
    np.testing.assert_array_equal(found["y"].channel_absmax, np.maximum(x * w, 0).max(axis=0))
    np.testing.assert_allclose(found["a"].channel_mean, (x * w).mean(axis=0), rtol=1e-5)
    assert found["a"].count == 40
    assert model.meta["calibration"].samples == 10


def test_audio_frames_are_not_counted_as_samples(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40,000 scores for each of 40,000 frames would exceed the memory; there are 400 frames."""
    model = parse(
        """(float[N, 1, samples] x) => (float[N, T, T] z) {
            c = Conv <strides = [100]> (x, w)  r = Relu(c)  t = Transpose <perm = [0, 2, 1]> (r)
            s = MatMul(t, r)  z = Exp(s)
        }""",
        {"w": np.full((2, 1, 100), 0.01, np.float32)},
    )
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).uniform(-1, 1, (1, 1, 40_000)).astype(np.float32))
    opened: list[list[str]] = []
    engine = stretch.OnnxRuntimeEngine

    class Watched(engine):  # type: ignore[misc, valid-type]
        def __init__(self, path: Path, **options: Any):
            super().__init__(path, **options)
            opened.append([spec.name for spec in self.outputs])

    monkeypatch.setattr(stretch, "OnnxRuntimeEngine", Watched)
    model, found = observe(pack(model, tmp_path / "bundle"), tmp_path / "x.npz")
    assert opened[-1] == ["c", "r", "t", "s", "z"], "observed in several runs"
    assert found["s"].count == 400 * 400
    assert [node.op_type for node in model.graph] == ["Conv", "Relu", "Transpose", "MatMul", "Exp"]


def test_float16_graph_is_calibrated(parse: Parse, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([[1, -2.5]], np.float16))
    bundle = pack(parse("(float16[N, 2] x) => (float16[N, 2] y) { y = Neg(x) }"), tmp_path / "bundle")
    _, found = observe(bundle, tmp_path / "x.npz")
    assert found["y"].maximum == 2.5


def test_statistics_follow_a_replaced_value(tiny_bundle: Path, texts: Path) -> None:
    model, _ = observe(tiny_bundle, texts)
    gelu = next(node for node in model.graph if node.op_type == "Gelu").outputs[0]
    before = statistics_of(gelu)
    new = replace_value(gelu, "Relu", [gelu.producer().inputs[0]], {}).outputs[0]  # type: ignore[union-attr]
    assert before is not None
    assert statistics_of(new) is before


@pytest.mark.parametrize(("bad", "value"), [("Log", "NaN"), ("Reciprocal", "infinite")])
def test_non_finite_activations_are_named(parse: Parse, tmp_path: Path, bad: str, value: str) -> None:
    x = -np.ones((4, 2), np.float32) if bad == "Log" else np.zeros((4, 2), np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    model = parse(f"(float[N, 2] x) => (float[N, 2] y) {{ a = {bad}(x) y = Sin(a) }}")
    with pytest.raises(GraphError, match=f"'a' of {bad} '.*' is {value}") as error:
        observe(pack(model, tmp_path / "bundle"), tmp_path / "x.npz")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("graph", "domains", "operator"),
    [
        ("{ q = intaglio.IntThing(x) y = Relu(x) }", ', "intaglio": 1', "IntThing"),
        ("{ q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }", "", "DequantizeLinear, QuantizeLinear"),
    ],
)
def test_quantised_graph_is_refused(parse: Parse, tmp_path: Path, graph: str, domains: str, operator: str) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((1, 2), np.float32))
    model = parse(f"(float[N, 2] x) => (float[N, 2] y) {graph}", {"s": np.float32(0.1)}, domains=domains)
    with pytest.raises(GraphError, match=rf"already quantised \({operator}\)"):
        observe(pack(model, tmp_path / "bundle"), tmp_path / "x.npz")


def test_subgraphs_and_unknown_dtypes_are_skipped_with_a_reason(parse: Parse, tmp_path: Path) -> None:
    model = parse(
        """(float[N, 2] x, bool c) => (float[N, 2] y) {
            a = If (c) <then_branch = t () => (float[N, 2] u) { u = Neg(x) }, else_branch = e () => (float[N, 2] v)
                { v = Abs(x) }>
            y = Relu(a)
        }"""
    )
    np.savez(tmp_path / "x.npz", x=np.ones((1, 2), np.float32), c=np.array(True))
    bundle = Bundle.open(pack(model, tmp_path / "bundle"))
    model, counts = Calibrate()(load(bundle.model_path), inputs(tmp_path / "x.npz", bundle))
    assert counts.rewritten["activations observed"] == 3
    assert counts.reasons[0] == "the values inside If '' are not observed"
    assert "no input attention_mask" in counts.reasons[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        (b"", "has no sentences"),
        (b"\n  \n\n", "has no sentences"),
        ("café".encode("latin-1"), "not UTF-8 text"),
    ],
)
def test_files_without_texts_are_refused(
    tiny_bundle: Path, recipe: Path, tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "data.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as error:
        compress(tiny_bundle, tmp_path / "out", recipe, calibration=path)
    assert str(error.value).startswith(f"--calibration {path}: ")
    assert not (tmp_path / "out").exists()


def test_few_calibration_tokens_give_a_warning(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("one text\n")
    (tmp_path / "many.txt").write_text("\n".join(["one text that is a little longer than the other one was"] * 128))
    bundle = Bundle.open(tiny_bundle)
    few, many = (
        Calibrate(samples=512)(load(bundle.model_path), inputs(tmp_path / name, bundle))[1].reasons
        for name in ("few.txt", "many.txt")
    )
    assert any("tokens are few" in reason for reason in few)
    assert not any("tokens are few" in reason for reason in many)


def test_texts_need_a_tokenizer_and_arrays_must_match_the_inputs(
    parse: Parse, recipe: Path, texts: Path, tmp_path: Path
) -> None:
    bundle = pack(parse("(float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }"), tmp_path / "bundle")
    with pytest.raises(UsageError, match=r"no tokenizer, so it needs arrays\. Give them with --calibration FILE\.npz"):
        compress(bundle, tmp_path / "out", recipe, calibration=texts)
    np.savez(tmp_path / "x.npz", x=np.ones((1, 3), np.float32))
    with pytest.raises(EngineError, match="input x: got shape"):
        compress(bundle, tmp_path / "out", recipe, calibration=tmp_path / "x.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(UsageError, match=r"not a readable \.npz"):
        compress(bundle, tmp_path / "out", recipe, calibration=tmp_path / "bad.npz")


def test_only_recipes_that_calibrate_require_data(tiny_bundle: Path, recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pass calibrate needs real text\. Give --calibration FILE"):
        compress(tiny_bundle, tmp_path / "out", recipe)
    with pytest.raises(UsageError, match="no pass of recipe canonical needs it"):
        compress(tiny_bundle, tmp_path / "out", "canonical", calibration=tmp_path / "texts.txt")


@pytest.mark.parametrize(
    "options", [{"percentile": 0}, {"percentile": 100.1}, {"bins": 1000}, {"bins": 0}, {"samples": 0}, {"batch": -1}]
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match=f"calibrate: {next(iter(options))} .*: expected"):
        Calibrate(**options)


def test_interrupted_calibration_leaves_no_files(
    tiny_bundle: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(Statistics, "add", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        observe(tiny_bundle, texts)
    assert list((tmp_path / "temporary").iterdir()) == []
