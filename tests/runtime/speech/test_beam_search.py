"""Prefix beam search against the sum over all alignments, alone and with a language model."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.errors import EngineError, UsageError
from intaglio.runtime.speech import beam_search as module
from intaglio.runtime.speech.beam_search import BeamDecoder, CtcBeamOptions, beam_search
from intaglio.runtime.speech.ctc import LogProbs, greedy
from intaglio.runtime.speech.ngram_model import NgramModel
from intaglio.runtime.speech.vocabulary import Vocabulary

LETTERS = Vocabulary(["<blank>", "a", "b", " "], 0, " ")
EXACT = {"width": 10**6, "min_log_prob": -math.inf, "max_gap": math.inf}

ARPA = r"""\data\
ngram 1=5
ngram 2=4

\1-grams:
-99 <s> -0.4
-0.9 </s>
-0.7 a -0.3
-1.1 b -0.2
-1.5 ab -0.1

\2-grams:
-0.2 <s> a
-0.3 a b
-0.6 b </s>
-0.5 ab a

\end\
"""


@st.composite
def log_probabilities(draw: st.DrawFn, frames: int = 6, size: int = 4) -> LogProbs:
    """Log-probabilities [frames, size], some of them of impossible tokens."""
    count = draw(st.integers(1, frames))
    weights = draw(st.lists(st.integers(0, 9), min_size=count * size, max_size=count * size))
    table = np.array(weights, np.float64).reshape(count, size)
    table[table.sum(axis=1) == 0, 0] = 1
    with np.errstate(divide="ignore"):
        found: LogProbs = np.log(table / table.sum(axis=1, keepdims=True))
    return found


def alignments(log_probs: LogProbs) -> dict[tuple[int, ...], list[tuple[float, tuple[int, ...]]]]:
    """Tokens -> the probabilities and the paths of all of their alignments, blank 0."""
    found = defaultdict(list)
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        log_prob = sum(log_probs[frame, token] for frame, token in enumerate(path))
        if log_prob > -math.inf:
            tokens = tuple(token for token, _ in itertools.groupby(path) if token)
            found[tokens].append((math.exp(log_prob), path))
    return found


def spans(path: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and last frame of each token in a path."""
    runs = [(token, list(run)) for token, run in itertools.groupby(range(len(path)), key=lambda frame: path[frame])]
    return [(run[0], run[-1]) for token, run in runs if token]


@settings(max_examples=examples(60), deadline=None)
@given(log_probabilities())
def test_wide_beam_sums_the_alignments_of_every_text(log_probs: LogProbs) -> None:
    expected = {tokens: sum(each for each, _ in paths) for tokens, paths in alignments(log_probs).items()}
    found = beam_search(log_probs, LETTERS, CtcBeamOptions(**EXACT))
    assert {tuple(token.token_id for token in each.tokens) for each in found} == expected.keys()
    for each in found:
        tokens = tuple(token.token_id for token in each.tokens)
        assert each.score == each.log_prob == pytest.approx(math.log(expected[tokens]), abs=1e-9)
    assert found == sorted(found, key=lambda each: -each.score)


@settings(max_examples=examples(60), deadline=None)
@given(log_probabilities())
def test_times_equal_the_most_probable_alignment(log_probs: LogProbs) -> None:
    every = alignments(log_probs)
    for each in beam_search(log_probs, LETTERS, CtcBeamOptions(**EXACT)):
        paths = every[tuple(token.token_id for token in each.tokens)]
        best = max(probability for probability, _ in paths)
        equal = [spans(path) for probability, path in paths if probability >= best * (1 - 1e-9)]
        assert [(token.first, token.last) for token in each.tokens] in equal
        for token in each.tokens:
            assert token.log_prob == log_probs[token.first : token.last + 1, token.token_id].max()


@settings(max_examples=examples(60), deadline=None)
@given(log_probabilities())
def test_best_text_is_at_least_as_probable_as_greedy(log_probs: LogProbs) -> None:
    texts = {tokens: sum(each for each, _ in paths) for tokens, paths in alignments(log_probs).items()}
    best = beam_search(log_probs, LETTERS, CtcBeamOptions(**EXACT))[0]
    assert best.log_prob >= math.log(texts[tuple(token.token_id for token in greedy(log_probs, 0))]) - 1e-9


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.floats(0.75, 0.999))
def test_beam_of_one_is_greedy_for_certain_frames(path: list[int], probability: float) -> None:
    """At 0.75 and above it always is; below, the sum of several alignments can exceed the best path."""
    sure = np.where(np.arange(4) == np.array(path)[:, None], probability, (1 - probability) / 3)
    one = beam_search(np.log(sure), LETTERS, CtcBeamOptions(width=1, min_log_prob=-math.inf))[0]
    assert [token.token_id for token in one.tokens] == [token.token_id for token in greedy(np.log(sure), 0)]


def test_beam_of_one_is_not_greedy_for_uncertain_frames() -> None:
    unsure = np.log(np.array([[0.4, 0.5, 0.05, 0.05], [0.35, 0.2, 0.4, 0.05]]))
    assert [token.token_id for token in greedy(unsure, 0)] == [1, 2]
    assert [token.token_id for token in beam_search(unsure, LETTERS, CtcBeamOptions(width=1))[0].tokens] == [1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NgramModel:
    path = tmp_path_factory.mktemp("arpa") / "model.arpa"
    path.write_text(ARPA)
    return NgramModel.open(path)


def language(model: NgramModel, text: str, options: CtcBeamOptions) -> float:
    """Weighted score of a text, word by word."""
    total, state = 0.0, model.begin
    for word in text.split():
        log10, state = model.score(state, word)
        log10 += 0.0 if word in model else options.unknown_word
        total += options.alpha * log10 * math.log(10) + options.beta
    return total + options.alpha * model.score(state, "</s>")[0] * math.log(10)


@settings(max_examples=examples(40), deadline=None)
@given(log_probabilities(), st.floats(0, 2), st.floats(-2, 2), st.floats(-5, 0))
def test_language_score_equals_the_score_of_the_words(
    model: NgramModel, log_probs: LogProbs, alpha: float, beta: float, unknown: float
) -> None:
    options = CtcBeamOptions(**EXACT, alpha=alpha, beta=beta, unknown_word=unknown)
    expected = {
        tokens: math.log(sum(each for each, _ in paths)) + language(model, LETTERS.text(tokens), options)
        for tokens, paths in alignments(log_probs).items()
    }
    found = beam_search(log_probs, LETTERS, options, model)
    assert len(found) == len(expected)
    for each in found:
        assert each.score == pytest.approx(expected[tuple(token.token_id for token in each.tokens)], abs=1e-6)
    assert found[0].score == pytest.approx(max(expected.values()), abs=1e-6)


def test_language_model_decides_between_similar_words(model: NgramModel) -> None:
    unsure = np.log(np.array([[0.01, 0.97, 0.01, 0.01], [0.01, 0.01, 0.01, 0.97], [0.02, 0.5, 0.47, 0.01]]))
    assert LETTERS.text(token.token_id for token in beam_search(unsure, LETTERS)[0].tokens) == "a a"
    assert LETTERS.text(token.token_id for token in beam_search(unsure, LETTERS, model=model)[0].tokens) == "a b"


def test_pruning_uses_the_language_model_score(model: NgramModel) -> None:
    """Without it, both slots of the beam would hold texts that begin with the more audible, rarer word."""
    probabilities = [[0.01, 0.46, 0.52, 0.01], [0.01, 0.01, 0.01, 0.97], [0.02, 0.49, 0.48, 0.01]]
    options = CtcBeamOptions(alpha=2.0)
    best = beam_search(np.log(np.array(probabilities)), LETTERS, options, model)[0]
    narrow = beam_search(np.log(np.array(probabilities)), LETTERS, replace(options, width=2), model)[0]
    assert LETTERS.text(token.token_id for token in best.tokens) == "a b"
    assert narrow.score == pytest.approx(best.score, abs=0.1)


def test_prefixes_far_below_the_best_are_pruned() -> None:
    log_probs = speech_like(30, 3)
    every = [each.score for each in beam_search(log_probs, LETTERS, CtcBeamOptions(max_gap=math.inf))]
    near = [each.score for each in beam_search(log_probs, LETTERS, CtcBeamOptions(max_gap=2.0))]
    assert every[-1] < every[0] - 3
    assert near[-1] >= near[0] - 2 - 1e-9


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 150), max_size=4))
def test_pieces_and_settled_tokens_do_not_change_the_result(model: NgramModel, seed: int, cuts: list[int]) -> None:
    log_probs = speech_like(150, seed)
    options = CtcBeamOptions(width=20)
    decoder, final = BeamDecoder(LETTERS, options, model), []
    for start, end in itertools.pairwise([0, *sorted(cuts), 150]):
        final += decoder.advance(log_probs[start:end])
        shown = final + decoder.pending()
        assert all(one.last < other.first for one, other in itertools.pairwise(shown))
    whole = beam_search(log_probs, LETTERS, options, model)[0]
    assert final + decoder.finish() == whole.tokens
    assert all(one.last < other.first for one, other in itertools.pairwise(whole.tokens))


def test_settling_does_not_change_texts_or_scores(model: NgramModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(10):
        log_probs = speech_like(150, seed)
        settled = beam_search(log_probs, LETTERS, CtcBeamOptions(width=30, max_open_frames=250), model)
        monkeypatch.setattr(module, "SETTLE", 10**9)
        never = beam_search(log_probs, LETTERS, CtcBeamOptions(width=30, max_open_frames=250), model)
        monkeypatch.undo()
        assert [each.score for each in settled] == pytest.approx([each.score for each in never], abs=1e-9)
        assert [[token.token_id for token in each.tokens] for each in settled[:5]] == [
            [token.token_id for token in each.tokens] for each in never[:5]
        ]


def test_memory_is_bounded_by_open_frames() -> None:
    decoder = BeamDecoder(LETTERS, CtcBeamOptions(width=20))
    final = decoder.advance(speech_like(5000, 1))
    assert len(final) > 500
    assert len(decoder.pending()) < 100
    nodes, unseen = 0, [decoder._tree.root]
    while unseen:
        nodes += 1
        unseen += unseen.pop().children.values()
    assert nodes < 20 * module.SETTLE * len(LETTERS)


def test_tokens_do_not_overlap_between_alignments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE", 2)
    for seed in range(40):
        logits = np.random.default_rng(seed).normal(size=(40, 4)) * 1.5
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        tokens = beam_search(log_probs, LETTERS, CtcBeamOptions(width=8, max_open_frames=3 if seed % 2 else 250))[
            0
        ].tokens
        assert all(token.first <= token.last for token in tokens)
        assert all(one.last < other.first for one, other in itertools.pairwise(tokens))


def test_blank_frames_count_in_the_score() -> None:
    """They take a shortcut, as all other tokens are below the threshold."""
    letter, pause = [0.3, 0.698, 0.001, 0.001], [0.997, 0.001, 0.001, 0.001]
    best = beam_search(np.log(np.array([pause, pause, letter, pause, pause])), LETTERS)[0]
    assert best.log_prob == best.score == pytest.approx(4 * math.log(0.997) + math.log(0.698), abs=1e-9)
    assert [token[:3] for token in best.tokens] == [(1, 2, 2)]


def test_ties_are_decided_after_max_open_frames() -> None:
    equal, sure, pause = [0.0, 0.5, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array([equal, pause, sure, pause] + [pause] * 400))
    decoder = BeamDecoder(LETTERS, CtcBeamOptions(max_open_frames=100))
    assert decoder.advance(log_probs[:64]) == []
    assert decoder.advance(log_probs[64:100]) == []
    assert [token.first for token in decoder.advance(log_probs[100:])] == [0, 2]
    assert decoder.pending() == decoder.finish() == []


def test_token_longer_than_max_open_frames_stays_one_token() -> None:
    """It is neither final while it continues, nor lost if only alignments that end in it remain."""
    lasts = np.log(np.tile([0.001, 0.997, 0.001, 0.001], (300, 1)))
    then = np.log(np.array([[0.001, 0.001, 0.997, 0.001], [0.997, 0.001, 0.001, 0.001]]))
    log_probs = np.concatenate([lasts, then, *[then[1:]] * 300, lasts])
    best = beam_search(log_probs, LETTERS, CtcBeamOptions(max_open_frames=10, min_log_prob=-math.inf))[0]
    assert [token[:3] for token in best.tokens] == [(1, 0, 299), (2, 300, 300), (1, 602, 901)]


def test_probabilities_do_not_underflow() -> None:
    frame = np.log(np.array([0.25, 0.25, 0.25, 0.25]))
    log_probs = np.tile(frame, (3000, 1))
    best = beam_search(log_probs, LETTERS, CtcBeamOptions(width=5))[0]
    assert -3000 * math.log(4) < best.log_prob < 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"max_gap": 0.0},
        {"max_gap": math.nan},
        {"min_log_prob": 1.0},
        {"alpha": math.nan},
        {"beta": math.inf},
    ],
)
def test_invalid_options_raise_usage_error(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"beam {next(iter(wrong))}.*expected"):
        CtcBeamOptions(**wrong)


def test_log_probs_of_another_vocabulary_are_rejected() -> None:
    with pytest.raises(EngineError, match=r"shape \[2, 5\], expected \[frames, 4\]"):
        beam_search(np.full((2, 5), -1.6), LETTERS)


def speech_like(frames: int, seed: int) -> LogProbs:
    """Log-probabilities as of a trained model: mostly blanks, between them tokens that are sure or not."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(frames, 4)) * 2
    logits[:, 0] += np.where(random.random(frames) < 0.7, 8, 0)
    found: LogProbs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return found
