"""Queries and texts that a classifier reads together: scores and order equal those of sentence-transformers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.exporters.encoders.description import activation
from intaglio.graph_passes import compress
from intaglio.runtime import run
from intaglio.runtime.text.inputs import load_inputs
from intaglio.validation import validate

Run = Callable[..., tuple[int, str, str]]
QUERY = "who wrote it"
IDENTITY = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "6.2.0"}}


@pytest.fixture(scope="module")
def reranker(make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of one class whose scores are its logits, and its bundle."""
    folder = make_checkpoint("BertForSequenceClassification", num_hidden_layers=1, num_labels=1, **IDENTITY)
    bundle = tmp_path_factory.mktemp("reranker") / "bundle"
    export(str(folder), bundle, check=False)
    return folder, bundle


def documents(count: int) -> list[str]:
    letters = random.Random(0)
    return ["".join(letters.choices("abcdefgh ", k=letters.randint(1, 60))) or "a" for _ in range(count)]


@pytest.mark.proof
def test_scores_and_order_equal_a_cross_encoder(reranker: tuple[Path, Path]) -> None:
    from sentence_transformers import CrossEncoder

    folder, bundle = reranker
    texts = documents(1000)
    expected = CrossEncoder(str(folder), device="cpu").predict([(QUERY, text) for text in texts])
    results = list(run(bundle, texts, query=QUERY))
    scores = np.array([sum((result.scores or {}).values()) for result in results])
    np.testing.assert_allclose(scores, expected, atol=2e-5)
    assert [result.text for result in results] == texts and {result.query for result in results} == {QUERY}
    ranked = scores[np.argsort(expected)]
    assert (np.diff(ranked) > -4e-5).all()  # in the same order, but for scores that are as good as equal


def test_long_pairs_are_truncated_as_a_cross_encoder_does(reranker: tuple[Path, Path]) -> None:
    from sentence_transformers import CrossEncoder

    folder, bundle = reranker
    pairs = [("a b " * 20, "c " * 500), ("a b " * 300, "c d"), ("a " * 300, "b " * 300)]
    expected = CrossEncoder(str(folder), device="cpu").predict(pairs)
    for (query, text), score in zip(pairs, expected, strict=True):
        (result,) = run(bundle, [text], query=query, truncate=True)
        assert sum((result.scores or {}).values()) == pytest.approx(score, abs=2e-5)
        with pytest.raises(UsageError, match=r"pair of .* tokens, the model takes at most"):
            list(run(bundle, [text], query=query))


def test_best_text_is_printed_first(reranker: tuple[Path, Path], intaglio: Run) -> None:
    texts = documents(5)
    code, printed, _ = intaglio("run", reranker[1], "--query", QUERY, *texts)
    scores = [sum((result.scores or {}).values()) for result in run(reranker[1], texts, query=QUERY)]
    order = sorted(range(5), key=lambda index: -scores[index])
    assert code == 0
    shown = [line.split(None, 1)[1].strip() for line in printed.splitlines()]
    assert shown == [texts[index].strip() for index in order]
    code, printed, _ = intaglio("run", reranker[1], "--query", QUERY, "--json", *texts)
    assert [json.loads(line)["text"] for line in printed.splitlines()] == texts


def test_query_needs_a_classifier(tiny_bundle: Path, intaglio: Run) -> None:
    code, _, errors = intaglio("run", tiny_bundle, "--query", QUERY, "a")
    assert code == 2 and "read together by a classifier, and the bundle's task is embed" in errors
    code, _, errors = intaglio("run", tiny_bundle, "--query", QUERY, "--similarity", "a", "b")
    assert code == 2 and "Leave one of them out" in errors


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (IDENTITY, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"sentence_transformers": {"version": "6.2.0"}}, "sigmoid"),
    ],
)
def test_cross_encoder_names_its_activation(config: dict[str, Any], expected: str) -> None:
    assert activation({"id2label": {"0": "LABEL_0"}, **config}) == expected


@pytest.mark.parametrize("name", ["torch.nn.modules.activation.GELU", "mine.Identity"])
def test_unknown_activation_is_refused(name: str) -> None:
    with pytest.raises(SourceError, match=r"activation_fn .* expected Identity or Sigmoid"):
        activation({"sentence_transformers": {"activation_fn": name}})


def queries(folder: Path, *lines: object) -> Path:
    """A file with one JSON object a line; a text is written unchanged."""
    file = folder / "queries.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def test_file_of_queries_is_ranked_and_validated(reranker: tuple[Path, Path], tmp_path: Path, intaglio: Run) -> None:
    lines = [{"query": QUERY, "documents": documents(5)}, {"query": "another", "documents": documents(2)}]
    file = queries(tmp_path, *lines, "")
    code, printed, _ = intaglio("run", str(reranker[1]), "--input", str(file), "--json")
    found = [json.loads(line) for line in printed.splitlines()]
    assert code == 0
    assert [(each["query"], each["text"]) for each in found] == [
        (line["query"], text) for line in lines for text in line["documents"]
    ]
    (alone,) = run(reranker[1], [documents(5)[3]], query=QUERY)
    assert found[3]["scores"] == pytest.approx(alone.scores, abs=2e-5)
    code, printed, _ = intaglio("run", str(reranker[1]), "--input", str(file))
    shown = printed.splitlines()
    scores = [float(line.split()[0]) for line in shown[1:6]]
    assert code == 0 and shown[0] == QUERY and shown[6] == "another" and scores == sorted(scores, reverse=True)
    compress(reranker[1], tmp_path / "small", recipe="int8-weights")
    compared = validate(tmp_path / "small", against=reranker[1], data=file, batch_size=4)
    assert {each.name for each in compared.measures} == {"score_error", "rank_correlation"}
    feeds, used = load_inputs(Bundle.open(reranker[1]), None, 20, 8)
    assert "pairs" in used.source and [len(each["input_ids"]) for each in feeds] == [8, 8, 4]
    assert all((each["token_type_ids"] == 1).any(axis=1).all() for each in feeds)


MALFORMED: dict[str, tuple[tuple[object, ...], str]] = {
    "no JSON": (("{",), "line 1: Input data was truncated"),
    "a text": ((json.dumps("a"),), "line 1: Expected `object`, got `str`"),
    "another key": (({"query": "a", "documents": ["b"], "id": 1},), "unknown field `id`"),
    "no query": (({"documents": ["b"]},), "missing required field `query`"),
    "no documents": (({"query": "a"},), "missing required field `documents`"),
    "an empty query": (({"query": " ", "documents": ["b"]},), "query is empty"),
    "an empty list": (({"query": "a", "documents": ["b"]}, {"query": "a", "documents": []}), "line 2: documents is an"),
    "a document that is none": (({"query": "a", "documents": ["b", 2]},), "Expected `str`, got `int`"),
    "one document": (({"query": "a", "documents": "b"},), "Expected `array`, got `str`"),
    "nothing": (("", " "), "has no queries"),
    "a number of nesting": (("[" * 100_000,), "line 1:"),
}


@pytest.mark.parametrize(("lines", "message"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_file_of_queries_is_one_clear_line(
    lines: tuple[object, ...], message: str, reranker: tuple[Path, Path], tmp_path: Path, intaglio: Run
) -> None:
    code, printed, error = intaglio("run", str(reranker[1]), "--input", str(queries(tmp_path, *lines)))
    assert code == 2 and printed == "" and message in error and len(error.strip().splitlines()) == 1


def test_queries_and_other_inputs_are_not_mixed(reranker: tuple[Path, Path], tmp_path: Path, intaglio: Run) -> None:
    file = str(queries(tmp_path, {"query": "a", "documents": ["b"]}))
    for given, message in (
        (["--query", "a"], "--query was given beside --input"),
        (["text"], "texts were given beside --input"),
        (["--similarity"], "--similarity"),
    ):
        code, _, error = intaglio("run", str(reranker[1]), "--input", file, *given)
        assert code == 2 and message in error
