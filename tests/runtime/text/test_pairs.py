"""Queries and texts that a classifier reads together: scores and order equal those of sentence-transformers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.exporters.encoders.description import activation
from intaglio.runtime import run

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
    apart = np.abs(np.diff(np.sort(expected))).min() > 4e-5
    assert not apart or (np.argsort(scores) == np.argsort(expected)).all()


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
