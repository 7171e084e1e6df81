"""The CUDA kernels that choose tokens, on the emulator: to the bit what the references give."""

from __future__ import annotations

import numpy as np
import pytest
from covering import examples
from cuda_emulator import emulate
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.plugins.native import logit_mask
from intaglio.plugins.native.token_choice import DRAW_BITS, Filters, launch, reference
from intaglio.plugins.native.token_choice.edits import EDIT, edited
from intaglio.plugins.native.token_choice.settings import HIGHEST, Choice, packed

EDGES = (1, 31, 32, 33, 511, 512, 513, 2047, 2048, 2049, 70_000)  # of warps, blocks and buckets
sizes = st.one_of(st.sampled_from(EDGES), st.integers(1, 5000))
few = settings(max_examples=examples(40))


def logits_of(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Of a flat or a sure model; of half of them some are equal."""
    found = (random.choice([1e-3, 1, 5, 40]) * random.standard_normal(shape)).astype(np.float32)
    return np.round(found * 4) / 4 if random.random() < 0.5 else found


def summarise(logits: np.ndarray, vocabulary: int) -> list[np.ndarray]:
    rows, stride = logits.shape
    outputs = [((rows,), dtype) for dtype in (np.int32, np.float32, np.uint64)]
    return emulate(launch.FOLDER, launch.summarise(rows, vocabulary, stride), [logits], outputs)


@given(seed=st.integers(0, 2**32), size=sizes, padding=st.integers(0, 9))
@few
def test_summaries_of_rows(seed: int, size: int, padding: int) -> None:
    logits = logits_of(np.random.default_rng(seed), 3, size + padding)
    tokens, tops, sums = summarise(logits, size)
    rows = logits[:, :size]
    assert tokens.tolist() == rows.argmax(axis=1).tolist() and tops.tolist() == rows.max(axis=1).tolist()
    assert sums.tolist() == [int(reference.weights(row, Filters.of(1.0)).sum()) for row in rows]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 700])
def test_rows_that_overflow_have_no_token(bad: float, place: int) -> None:
    logits = np.zeros((3, 1000), np.float32)
    logits[1, place] = bad
    assert summarise(logits, 1000)[0].tolist() == [0, -1, 0]
    settings, _, _ = packed([0] * 3, [Choice(None, np.zeros(0, EDIT), 1.0, Filters.of(1.0), 0)] * 3)
    (tokens,) = emulate(launch.FOLDER, launch.choose(3, 1000), [logits, settings], [((3,), np.int32)])
    assert tokens.tolist() == [0, -1, 0]


def any_choice(random: np.random.Generator, size: int, filters: Filters) -> Choice:
    """With a mask that may end before the vocabulary, or beyond, and edits of some tokens."""
    octets = None
    if random.random() < 0.7:
        octets = random.integers(0, 256, random.integers(1, size // 8 + 4)).astype(np.uint8)
        octets[0] |= 1
    edits = np.zeros(random.integers(0, min(size, 700) + 1), EDIT)
    edits["token"] = np.sort(random.choice(size, len(edits), replace=False))
    edits["repeats"] = random.random(len(edits)) < 0.5
    edits["lowered"], edits["raised"] = random.standard_normal((2, len(edits)))
    draw = 0 if filters is HIGHEST else int(random.integers(0, 2**DRAW_BITS))
    return Choice(octets, edits, random.uniform(0.5, 2), filters, draw)


filters = st.one_of(
    st.just(HIGHEST),
    st.builds(
        Filters.of,
        st.one_of(st.floats(1e-5, 5), st.just(1e300)),
        st.one_of(st.just(0), st.integers(0, 3000)),
        st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
        st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
    ),
)


@given(seed=st.integers(0, 2**32), size=sizes, filters=st.lists(filters, min_size=1, max_size=3))
@few
def test_choices_equal_the_reference(seed: int, size: int, filters: list[Filters]) -> None:
    """Of rows in any order, some of them twice."""
    random = np.random.default_rng(seed)
    logits, count = logits_of(random, 4, size + 3), len(filters)
    rows = random.integers(0, 4, count)
    choices = [any_choice(random, size, each) for each in filters]
    settings, octets, edits = packed([row * (size + 3) for row in rows], choices)
    given = [logits, settings, octets, edits]
    (scores,) = emulate(launch.FOLDER, launch.prepare(count, size), given, [((count, size), np.float32)], seed=seed)
    given = [scores, settings]
    (tokens,) = emulate(launch.FOLDER, launch.choose(count, size), given, [((count,), np.int32)], seed=seed)
    for row, choice, found, token in zip(rows, choices, scores, tokens, strict=True):
        expected = logits[row, :size]
        if choice.octets is not None:
            expected = logit_mask.apply(expected, choice.octets, np.empty(size, np.float32))
        expected = edited(expected, choice.edits, choice.penalty)
        np.testing.assert_array_equal(found, expected)
        if choice.filters is HIGHEST:
            assert token == expected.argmax()
        assert token == reference.choose(expected, choice.filters, choice.draw)


@given(seed=st.integers(0, 2**32), size=sizes, filters=st.tuples(filters, filters), sure=st.booleans())
@few
def test_weights_and_what_replaces_a_draft(seed: int, size: int, filters: tuple[Filters, Filters], sure: bool) -> None:
    random = np.random.default_rng(seed)
    scores = logits_of(random, 2, size)
    if sure:
        scores[1] = scores[0]
    weighed = []
    for row, each in zip(scores, filters, strict=True):
        settings, _, _ = packed([0], [Choice(None, np.zeros(0, EDIT), 1.0, each, 0)])
        (found,) = emulate(launch.FOLDER, launch.weigh(size), [row, settings], [((1 + size,), np.uint64)], seed=seed)
        expected = reference.weights(row, each)
        assert found[1:].tolist() == expected.tolist() and found[0] == expected.sum()
        weighed.append(found)
    for token in (None, int(random.integers(size))):
        left = reference.subtracted(weighed[0][1:], weighed[1][1:] if token is None else token)
        (found,) = emulate(launch.FOLDER, launch.subtract(size, token), weighed, [((1 + size,), np.uint64)], seed=seed)
        assert found[1:].tolist() == left.tolist()
        number = int(random.integers(0, 2**DRAW_BITS))
        (drawn,) = emulate(launch.FOLDER, launch.draw(size, number), [found], [((1,), np.int32)], seed=seed)
        assert drawn[0] == (reference.drawn(left, number) if left.any() else -1)


def test_difference_of_probabilities_equals_floats() -> None:
    random = np.random.default_rng(0)
    target, draft = (reference.weights(row, Filters.of(1.0)) for row in logits_of(random, 2, 1000))
    difference = np.maximum(target / target.sum() - draft / draft.sum(), 0)
    found = reference.subtracted(target, draft)
    np.testing.assert_allclose(found / 2.0**50, difference, atol=2.0**-49)


def test_edits_of_padding_behind_the_vocabulary_change_nothing() -> None:
    logits = np.zeros((1, 540), np.float32)
    edits = np.zeros(3, EDIT)
    edits["token"], edits["raised"] = [5, 519, 530], 7
    choices = [Choice(None, edits, 1.0, HIGHEST, 0), Choice(None, edits[:0], 1.0, HIGHEST, 0)]
    settings, octets, packed_edits = packed([0, 0], choices)
    given = [logits, settings, octets, packed_edits]
    (scores,) = emulate(launch.FOLDER, launch.prepare(2, 520), given, [((2, 520), np.float32)])
    assert np.flatnonzero(scores[0]).tolist() == [5, 519] and not scores[1].any()
    np.testing.assert_array_equal(scores[0], edited(logits[0, :520], edits, 1.0))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_overflow_have_no_weights(bad: float) -> None:
    scores = np.zeros(1000, np.float32)
    scores[600] = bad
    settings, _, _ = packed([0], [Choice(None, np.zeros(0, EDIT), 1.0, Filters.of(1.0, 5, 0.5), 0)])
    (found,) = emulate(launch.FOLDER, launch.weigh(1000), [scores, settings], [((1001,), np.uint64)])
    assert not found.any()


@given(seed=st.integers(0, 2**32), size=sizes, count=st.one_of(st.integers(1, 40), st.integers(1, 1024)))
@few
def test_likeliest_tokens_of_rows(seed: int, size: int, count: int) -> None:
    logits, count = logits_of(np.random.default_rng(seed), 3, size + 2), min(count, size)
    outputs = [((3, count), np.int32), ((3, count), np.float32), ((3,), np.uint64)]
    work = launch.likeliest(3, size, size + 2, count)
    tokens, highest, sums = emulate(launch.FOLDER, work, [logits], outputs, seed=seed)
    for row, found, values, total in zip(logits[:, :size], tokens, highest, sums, strict=True):
        expected, exact = reference.likeliest(row, count)
        assert found.tolist() == expected.tolist() and values.tolist() == row[expected].tolist()
        assert int(total) / 2.0**reference.ONE == exact


def test_likeliest_tokens_of_a_row_that_overflows() -> None:
    logits = np.zeros((2, 100), np.float32)
    logits[1, 50] = np.nan
    outputs = [((2, 3), np.int32), ((2, 3), np.float32), ((2,), np.uint64)]
    tokens, _, sums = emulate(launch.FOLDER, launch.likeliest(2, 100, 100, 3), [logits], outputs)
    assert tokens.tolist() == [[0, 1, 2], [-1, -1, -1]] and sums[1] == 0
