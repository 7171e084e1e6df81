"""Estimated language models: the formula by hand, probabilities that sum to one, and perplexity."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.errors import UsageError
from intaglio.runtime.speech.ngram_estimate import estimate, kneser_ney
from intaglio.runtime.speech.ngram_model import NgramModel
from intaglio.samples.sentences import sentences


def model_of(folder: Path, texts: list[str], order: int) -> NgramModel:
    (folder / "text.txt").write_text("\n".join(texts))
    estimate(folder / "text.txt", folder / "model.arpa", order, force=True)
    return NgramModel.open(folder / "model.arpa")


def test_bigram_estimates_equal_hand_computation() -> None:
    """Bigrams: <s> a (2), a b (2), b </s> (1), b a (1), a </s> (1): D2 = 3 / (3 + 2 * 2).

    Distinct words before: a after <s> and b: 2; b after a: 1; </s> after a and b: 2; so D1 = 1 / (1 + 2 * 2), and the
    words are a, b, </s>, <unk>.
    """
    words, bigrams = kneser_ney([["a", "b"], ["a", "b", "a"]], 2)
    d1, d2 = 1 / 5, 3 / 7
    rest = 3 * d1 / 5 / 4
    p = {"a": (2 - d1) / 5 + rest, "b": (1 - d1) / 5 + rest, "</s>": (2 - d1) / 5 + rest, "<unk>": rest}
    assert {word: probability for (word,), (probability, _) in words.items()} == pytest.approx(p | {"<s>": 0.0})
    assert bigrams[("a", "b")][0] == pytest.approx((2 - d2) / 3 + 2 * d2 / 3 * p["b"])
    assert bigrams[("b", "a")][0] == pytest.approx((1 - d2) / 2 + 2 * d2 / 2 * p["a"])
    assert bigrams[("<s>", "a")][0] == pytest.approx((2 - d2) / 2 + 1 * d2 / 2 * p["a"])
    assert words[("a",)][1] == pytest.approx(2 * d2 / 3)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(1, 4))
def test_probabilities_sum_to_one_after_any_words(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]], order: int
) -> None:
    model = model_of(tmp_path_factory.mktemp("model"), [" ".join(text) for text in texts], order)
    words = [word for word in (*"abc", "</s>", "<unk>") if word in model]
    for history in itertools.chain.from_iterable(itertools.product("abcx", repeat=length) for length in range(4)):
        state = model.begin
        for word in history:
            _, state = model.score(state, word)
        assert sum(10 ** model.score(state, word)[0] for word in words) == pytest.approx(1, abs=1e-5)


def test_longer_context_lowers_held_out_perplexity(tmp_path: Path) -> None:
    texts = [text.lower() for text in sentences()]
    held_out = [word for text in texts[::10] for word in (*text.split(), "</s>")]
    totals = []
    for order in (1, 2, 3):
        model = model_of(tmp_path, [text for number, text in enumerate(texts) if number % 10], order)
        total, state = 0.0, model.begin
        for word in held_out:
            log10, state = model.score(state, word)
            state = model.begin if word == "</s>" else state
            total += log10
        totals.append(total / len(held_out))
    assert totals[0] < totals[1] - 0.1
    assert totals[1] < totals[2]


@pytest.mark.parametrize(
    ("content", "order", "message"),
    [
        ("", 3, "has no words"),
        (" \n\n", 3, "has no words"),
        ("a b\nc <s> d", 3, "line 2: has the word <s>"),
        ("a", 0, "order 0, expected 1 to 10"),
        ("a", 11, "order 11"),
    ],
)
def test_invalid_texts_are_one_line_errors(tmp_path: Path, content: str, order: int, message: str) -> None:
    (tmp_path / "text.txt").write_text(content)
    with pytest.raises(UsageError, match=message):
        estimate(tmp_path / "text.txt", tmp_path / "model.arpa", order)
    assert not (tmp_path / "model.arpa").exists()


def test_existing_model_is_overwritten_only_with_force(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b")
    (tmp_path / "model.arpa").write_text("mine")
    with pytest.raises(UsageError, match=r"exists already. Add --force"):
        estimate(tmp_path / "text.txt", tmp_path / "model.arpa")
    assert (tmp_path / "model.arpa").read_text() == "mine"
