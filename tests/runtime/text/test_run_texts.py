"""One forward pass over texts, for each task, compared with transformers on the same checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from intaglio.bundle.bundle import Bundle, Manifest, Source, TensorSpec, create
from intaglio.errors import BundleError, EngineError, UsageError
from intaglio.exporters import export
from intaglio.exporters.encoders.description import activation
from intaglio.runtime import run
from intaglio.runtime.text import run_texts
from intaglio.runtime.text.run_texts import TextRunner
from intaglio.runtime.text.tokenizer import Tokenizer
from intaglio.samples.sentences import sentences


def test_embeddings_are_independent_of_the_batch(tiny_bundle: Path) -> None:
    texts = sentences()[:7]
    together = [result.embedding for result in run(tiny_bundle, texts)]
    alone = [result.embedding for result in run(tiny_bundle, texts, batch_size=1)]
    np.testing.assert_allclose(np.array(together), np.array(alone), atol=1e-6)


def test_embeddings_do_not_share_memory(tiny_bundle: Path) -> None:
    first, second = (result.embedding for result in run(tiny_bundle, ["one", "two"]))
    assert first is not None and second is not None
    assert (first.dtype, first.shape) == (np.float32, (32,))
    assert first.base is None  # one that is kept does not keep its batch in memory


def test_token_counts_exclude_padding(tiny_bundle: Path) -> None:
    results = run(tiny_bundle, ["a b c", "a", "1 " * 500], truncate=True)
    assert [result.tokens for result in results] == [5, 3, 256]


def test_endless_stream_is_processed_in_batches(tiny_bundle: Path) -> None:
    stream = (f"text {number}" for number in count())
    results = list(islice(run(tiny_bundle, stream, batch_size=4), 6))
    assert [result.text for result in results] == [f"text {number}" for number in range(6)]


def test_texts_of_similar_length_share_a_batch(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a " * count for count in (9, 1, 8, 2, 7, 3, 6, 4)]
    padded: list[tuple[int, int]] = []
    pad = Tokenizer.pad

    def counted(tokenizer: Tokenizer, sequences: Any) -> Any:
        feeds = pad(tokenizer, sequences)
        padded.append(feeds["input_ids"].shape)
        return feeds

    monkeypatch.setattr(Tokenizer, "pad", counted)
    results = list(run(tiny_bundle, texts, batch_size=2))
    assert [result.text for result in results] == texts
    assert padded == [(2, 4), (2, 6), (2, 9), (2, 11)]  # two tokens at the ends of a text
    padded.clear()
    streamed = list(run(tiny_bundle, iter(texts), batch_size=2))  # which might not have another text for long
    assert padded == [(2, 11), (2, 10), (2, 9), (2, 8)]
    for one, other in zip(results, streamed, strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-6)


def test_results_before_a_refused_text_are_not_lost(tiny_bundle: Path) -> None:
    texts = [*map(str, range(10)), "x " * 400, "last"]
    found = list[str]()
    with pytest.raises(UsageError, match="the model takes at most"):
        found.extend(result.text for result in run(tiny_bundle, texts, batch_size=2))
    assert found == texts[:10]

    def unreadable() -> Iterator[str]:
        yield from texts[:3]
        raise UsageError("line 4 is not UTF-8")

    found.clear()
    with pytest.raises(UsageError, match="line 4"):
        found.extend(result.text for result in run_texts.run(tiny_bundle, unreadable(), batch_size=2, ahead=4))
    assert found == texts[:3]


def test_empty_input_gives_no_results(tiny_bundle: Path) -> None:
    assert list(run(tiny_bundle, [])) == []


def test_too_long_text_is_rejected(tiny_bundle: Path) -> None:
    with pytest.raises(UsageError, match="text of 591 tokens, the model takes at most 256"):
        list(run(tiny_bundle, ["1" * 90 + " 1" * 499], truncate=False))
    (result,) = run(tiny_bundle, ["1 " * 500], truncate=True)
    assert result.embedding is not None


@pytest.mark.parametrize(
    ("problem", "activation"),
    [("single_label_classification", "softmax"), ("multi_label_classification", "sigmoid"), ("regression", "identity")],
)
def test_classes_have_scores(
    problem: str, activation: str, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    import torch
    import transformers

    folder = make_checkpoint(
        "BertForSequenceClassification",
        num_hidden_layers=1,
        problem_type=problem,
        id2label={0: "calm", 1: "angry", 2: "glad"},
    )
    export(str(folder), tmp_path / "bundle", check=False)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    expected_of = {"softmax": torch.nn.Softmax(-1), "sigmoid": torch.nn.Sigmoid(), "identity": torch.nn.Identity()}
    for result in run(tmp_path / "bundle", ["a b c", "what a day"]):
        with torch.inference_mode():
            logits = model(**tokenizer(result.text, return_tensors="pt")).logits[0]
        expected = expected_of[activation](logits).tolist()
        assert result.scores == pytest.approx(dict(zip(["calm", "angry", "glad"], expected, strict=True)), abs=1e-5)
        assert result.label == ["calm", "angry", "glad"][int(np.argmax(expected))]
        assert list(result.scores) == sorted(result.scores, key=result.scores.__getitem__, reverse=True)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"id2label": {"0": "any"}}, "sigmoid"),
        ({}, "softmax"),
        ({"id2label": {"0": "any"}, "problem_type": "regression"}, "identity"),
    ],
)
def test_activation_depends_on_classes_and_problem(config: dict[str, Any], expected: str) -> None:
    assert activation(config) == expected


@pytest.mark.proof  # test_activation_depends_on_classes_and_problem, without a graph of one class
def test_classifier_of_one_class_returns_a_sigmoid(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_checkpoint("BertForSequenceClassification", num_labels=1, num_hidden_layers=1)
    export(str(folder), tmp_path / "bundle", check=False)
    scores = [next(iter((result.scores or {}).values())) for result in run(tmp_path / "bundle", ["a", "zzz 123"])]
    assert all(0.4 < score < 0.6 for score in scores)
    assert scores[0] != scores[1]


def test_texts_are_truncated_at_the_sentence_models_length(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_checkpoint("BertModel", sentence={"pooling_mode_mean_tokens": True}, num_hidden_layers=1)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 10, "do_lower_case": false}')
    export(str(folder), tmp_path / "bundle", check=False)
    long, cut = run(tmp_path / "bundle", ["1 2 3 4 5 6 7 8 9 9 9 9 9", "1 2 3 4 5 6 7 8"], truncate=True)
    assert long.embedding == pytest.approx(cut.embedding, abs=1e-6)
    with pytest.raises(UsageError, match="text of 15 tokens, the model takes at most 10"):
        list(run(tmp_path / "bundle", ["1 2 3 4 5 6 7 8 9 9 9 9 9"]))


def test_invalid_utf8_is_rejected(tiny_bundle: Path) -> None:
    with pytest.raises(UsageError, match="not Unicode"):
        list(run(tiny_bundle, ["\udcff\udcfe"]))


def test_embedding_task_needs_an_embedding(tiny_bundle_copy: Path) -> None:
    manifest = json.loads((tiny_bundle_copy / "bundle.json").read_text())
    (tiny_bundle_copy / "bundle.json").write_text(json.dumps({**manifest, "task": "classify"}))
    with pytest.raises(BundleError, match="no output logits"):
        list(run(tiny_bundle_copy, ["a"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "tanh"}, "activation 'tanh', expected one of softmax, sigmoid, identity"),
        ({"labels": ["one", "two"]}, "2 labels, expected 3, one per class"),
        ({"labels": ["one", "two", "three", "four"]}, "4 labels, expected 3, one per class"),
    ],
)
def test_inconsistent_classifier_is_rejected_on_open(
    changes: dict[str, Any], message: str, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_checkpoint("BertForSequenceClassification", num_hidden_layers=1, num_labels=3)
    export(str(folder), tmp_path / "bundle", check=False)
    edit(tmp_path / "bundle", changes)
    with pytest.raises(BundleError, match=message):
        TextRunner(Bundle.open(tmp_path / "bundle"))


GRAPH = """<ir_version: 10, opset_import: ["": 18]>
g (int64[batch, sequence] input_ids) => (float[batch, N] OUTPUT) { NODE }"""


@pytest.mark.parametrize(
    ("task", "output", "node", "message"),
    [
        ("encode", "last_hidden_state", "OUTPUT = Cast<to=1>(input_ids)", "no input attention_mask, which the task"),
        ("classify", "logits", "OUTPUT = Cast<to=1>(input_ids)", r"logits: got float32 \[1, 3\], expected floats"),
        ("embed", "sentence_embedding", "OUTPUT = Cast<to=1>(input_ids)", ""),
        ("embed", "sentence_embedding", "a = Cast<to=1>(input_ids) b = Concat<axis=0>(a, a) OUTPUT = Identity(b)",
         r"got float32 \[2, 3\], expected floats \[batch 1, width\]"),
    ],
)  # fmt: skip
def test_unexpected_output_shape_is_rejected(
    task: str, output: str, node: str, message: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(GRAPH.replace("NODE", node).replace("OUTPUT", output))
    with create(tmp_path / "b") as draft:
        draft.model_path.write_bytes(model.SerializeToString())
        shutil.copy(tiny_bundle / "tokenizer.json", draft.path)
        draft.manifest = Manifest(
            format=1, created_by="a test", source=Source("onnx", ""), family="", architecture="", task=task,
            dtype="float32", inputs=[TensorSpec("input_ids", "int64", ("batch", "sequence"))],
            outputs=[TensorSpec(output, "float32", ("batch", "N"))], labels=["one", "two"],
        )  # fmt: skip
    if not message:
        assert len(list(run(tmp_path / "b", ["a", "b c"]))) == 2
        return
    with pytest.raises((BundleError, EngineError), match=message):
        list(run(tmp_path / "b", ["a"]))


def edit(bundle: Path, changes: dict[str, Any]) -> None:
    manifest = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps({**manifest, **changes}))


def test_masks_are_filled_with_the_likeliest_words(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_checkpoint("BertForMaskedLM", num_hidden_layers=1)
    export(str(folder), tmp_path / "bundle", check=False)
    (result,) = run(tmp_path / "bundle", ["a [MASK] c"], top=3)
    assert result.scores is not None
    assert len(result.scores) == 3
    (every,) = run(tmp_path / "bundle", ["a [MASK] c"], top=1000)
    assert sum((every.scores or {}).values()) == pytest.approx(1.0)
    assert list(result.scores.values()) == sorted(result.scores.values(), reverse=True)
    assert result.label is not None
    assert "[MASK]" not in result.label
    with pytest.raises(UsageError, match=r"Write \[MASK\] for the word to fill in"):
        list(run(tmp_path / "bundle", ["no blank"]))


def test_bundle_without_tokenizer_rejects_text(tiny_bundle_copy: Path, tmp_path: Path) -> None:
    export(str(tiny_bundle_copy / "model.onnx"), tmp_path / "with")
    (tiny_bundle_copy / "tokenizer.json").unlink()
    export(str(tiny_bundle_copy / "model.onnx"), tmp_path / "without")
    assert len(list(run(tmp_path / "with", ["a"]))) == 1
    with pytest.raises(BundleError, match="needs arrays, not text"):
        list(run(tmp_path / "without", ["a"]))


def test_batch_size_below_one_is_rejected(tiny_bundle: Path) -> None:
    with pytest.raises(UsageError, match="batch size 0"):
        list(run(tiny_bundle, ["a"], batch_size=0))
