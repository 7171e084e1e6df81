"""The decoder session: the logits are the same for every way of appending tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import examples
from fixed_engine import FixedEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_decoders import VOCABULARY

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, UsageError
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.sessions import limits
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.key_value_cache import CAPACITY_STEP
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.sessions.step_buffers import KEPT_SHAPES

TEXT = np.random.default_rng(0).integers(0, VOCABULARY, 60).tolist()
LONG = np.random.default_rng(1).integers(0, VOCABULARY, 300).tolist()
CLOSE = {"atol": 1e-3, "rtol": 1e-4}  # logits reach some hundreds: of their float32


@pytest.fixture(scope="module")
def mistral(make_decoder: Callable[..., tuple[Path, Path]]) -> Path:
    """A bundle with grouped heads, rotary positions and a window of 8."""
    return make_decoder("mistral")[1]


@pytest.fixture(scope="module")
def engine(mistral: Path) -> Iterator[OnnxRuntimeEngine]:
    """Of `mistral`, opened once."""
    with OnnxRuntimeEngine(Bundle.open(mistral)) as opened:
        yield opened


@pytest.fixture(scope="module")
def long_decoder(make_decoder: Callable[..., tuple[Path, Path]]) -> Path:
    """A bundle whose texts may be longer than the cache's first capacity."""
    return make_decoder("llama", max_position_embeddings=320)[1]


def one_at_a_time(bundle: Path, text: list[int]) -> Any:
    """The logits after every token of `text`, [tokens, vocab]."""
    with DecoderSession.open(bundle) as session:
        return np.concatenate([session.step([[token]])[0] for token in text])


@pytest.mark.parametrize("family", ["tiny_decoder", "mistral"])
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=10))
def test_several_tokens_per_step_equal_one_at_a_time(
    request: pytest.FixtureRequest, family: str, sizes: list[int]
) -> None:
    bundle = request.getfixturevalue(family)
    cuts = np.minimum(np.cumsum([0, *sizes]), len(TEXT))
    with DecoderSession.open(bundle) as session:
        found = [
            session.step([TEXT[start:stop]], logit_indices=[range(stop - start)])[0]
            for start, stop in pairwise(cuts)
            if stop > start
        ]
        assert session.lengths == [cuts[-1]]
    np.testing.assert_allclose(np.concatenate(found), one_at_a_time(bundle, TEXT[: cuts[-1]]), **CLOSE)


@pytest.mark.parametrize("family", ["tiny_decoder", "mistral"])
def test_rows_do_not_attend_to_each_other_or_padding(request: pytest.FixtureRequest, family: str) -> None:
    bundle = request.getfixturevalue(family)
    rows = [TEXT[:5], TEXT[10:40], TEXT[3:4]]
    after = [[1, 2, 3], [4], []]
    with DecoderSession.open(bundle, batch=3) as session:
        first = session.prefill(rows)
        ids = np.full((3, 3), VOCABULARY - 1)  # dummy tokens beyond the real ones
        for row, tokens in zip(ids, after, strict=True):
            row[: len(tokens)] = tokens
        second = session.step(ids, [len(tokens) for tokens in after])[:, 0]
        assert session.lengths == [8, 31, 1]
        third = session.step([[7], [7], [7]])[:, 0]
    for index, (row, tokens) in enumerate(zip(rows, after, strict=True)):
        alone = one_at_a_time(bundle, [*row, *tokens, 7])
        np.testing.assert_allclose(first[index], alone[len(row) - 1], **CLOSE)
        if tokens:
            np.testing.assert_allclose(second[index], alone[-2], **CLOSE)
        np.testing.assert_allclose(third[index], alone[-1], **CLOSE)


def test_rollback_removes_later_tokens(mistral: Path) -> None:
    with DecoderSession.open(mistral, batch=2) as session:
        session.prefill([TEXT[:30], TEXT[30:50]])
        session.rollback([10, 20])
        found = session.step([[1, 2], [1, 2]])[:, 0]
        np.testing.assert_allclose(found[0], one_at_a_time(mistral, [*TEXT[:10], 1, 2])[-1], **CLOSE)
        np.testing.assert_allclose(found[1], one_at_a_time(mistral, [*TEXT[30:50], 1, 2])[-1], **CLOSE)
        with pytest.raises(UsageError, match=r"rollback to \[13, 13\] tokens: the cache holds \[12, 22\]"):
            session.rollback(13)
        session.rollback(0)
        assert session.lengths == [0, 0]


def test_growing_capacity_keeps_cached_tokens(long_decoder: Path) -> None:
    with DecoderSession.open(long_decoder) as session:
        assert session.capacity == 0
        session.prefill([LONG[: CAPACITY_STEP - 1]])
        assert session.capacity == CAPACITY_STEP
        grown = [session.step([[token]])[0] for token in LONG[CAPACITY_STEP - 1 :]]
        assert session.capacity == 3 * CAPACITY_STEP
    with DecoderSession.open(long_decoder) as session:
        whole = session.step([LONG], logit_indices=[range(CAPACITY_STEP - 1, len(LONG))])[0]
    np.testing.assert_allclose(np.concatenate(grown), whole, **CLOSE)


def test_steps_of_one_shape_write_in_place_without_rebinding(
    tiny_decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = []
    bind = OnnxRuntimeEngine.bind
    monkeypatch.setattr(OnnxRuntimeEngine, "bind", lambda *arguments: bound.append(1) or bind(*arguments))
    with DecoderSession.open(tiny_decoder) as session:
        session.prefill([TEXT[:4]])
        caches = dict(session.cache.buffers)
        for token in TEXT[4:20]:
            session.step([[token]])
            session.step([[token, token]])
            session.rollback(session.lengths[0] - 2)
        assert len(bound) == 3  # of four tokens, of one, of two
        assert all(session.cache.buffers[name] is array for name, array in caches.items())
        filled = caches["key_1"][0, 0]
        assert filled[:20].any(axis=-1).all() and not filled[22:].any()
        for shape in range(KEPT_SHAPES + 4):
            session.rollback(4)
            session.step([TEXT[: 1 + shape % 30]], logit_indices=[[0] * (1 + shape // 30)])
        assert len(session._pool) == KEPT_SHAPES


def test_tree_branches_attend_to_the_sequence_and_themselves_only(mistral: Path) -> None:
    with DecoderSession.open(mistral) as session:
        session.prefill([TEXT[:3]])
        [found] = session.append([[5, 6, 7]], [3], trees=[[-1, -1, 1]])  # two branches, the second of two tokens
    np.testing.assert_allclose(found[0], one_at_a_time(mistral, [*TEXT[:3], 5])[-1], **CLOSE)
    np.testing.assert_allclose(found[1:], one_at_a_time(mistral, [*TEXT[:3], 6, 7])[-2:], **CLOSE)


def test_engine_without_binding_and_with_fixed_capacity(mistral: Path, engine: OnnxRuntimeEngine) -> None:
    with DecoderSession(FixedEngine(engine, capacity=32, tokens=7), decoder_of(Bundle.open(mistral)), 2) as session:
        assert (session.capacity, session.limit) == (32, 32)
        first = session.prefill([TEXT[:30], TEXT[:10]])  # in chunks of seven tokens
        np.testing.assert_allclose(first[0], one_at_a_time(mistral, TEXT[:30])[-1], **CLOSE)
        np.testing.assert_allclose(first[1], one_at_a_time(mistral, TEXT[:10])[-1], **CLOSE)
        with pytest.raises(UsageError, match="34 cache slots are needed, the engine has 32"):
            session.step([[1, 1, 1, 1], [1, 1, 1, 1]], [1, 4])
        with pytest.raises(UsageError, match="sequence of 33 tokens, the cache's limit is 32"):
            session.prefill([[1, 2, 3], [1]])


def test_long_prompt_is_prefilled_in_chunks(tiny_decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = one_at_a_time(tiny_decoder, TEXT[:21])
    monkeypatch.setattr(limits, "PREFILL_TOKENS", 8)
    with DecoderSession.open(tiny_decoder, batch=3) as session:
        found = session.prefill([TEXT[:21], TEXT[:8], TEXT[:9]])
        np.testing.assert_allclose(found, expected[[20, 7, 8]], **CLOSE)


@st.composite
def appended(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """A few appends to a batch of three sequences: the number of tokens and of logits of each."""
    counts = st.integers(0, 11).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count)))
    some = st.lists(counts, min_size=3, max_size=3).filter(lambda rows: any(count for count, _ in rows))
    return draw(st.lists(some, min_size=1, max_size=4))


@pytest.mark.parametrize("fixed", [False, True])
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(appends=appended(), piece=st.integers(1, 9), truncated=st.integers(0, 2), left=st.integers(0, 50))
def test_chunked_ragged_rows_equal_one_token_at_a_time(
    appends: list[list[tuple[int, int]]],
    piece: int,
    truncated: int,
    left: int,
    fixed: bool,
    mistral: Path,
    engine: OnnxRuntimeEngine,
    alone: dict[int, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three sequences, one of them truncated halfway, in an engine without limits and in one of 45 slots."""
    monkeypatch.setattr(limits, "PREFILL_TOKENS", 512 if fixed else piece)
    session = DecoderSession(FixedEngine(engine, 45, piece) if fixed else engine, decoder_of(Bundle.open(mistral)), 3)
    for number, rows in enumerate(appends):
        if number == 2:
            expected = list(session.lengths)
            expected[truncated] = min(expected[truncated], left)
            session.truncate(truncated, left)
            assert session.lengths == expected
        starts = list(session.lengths)
        texts = [alone[row][0][start : start + rows[row][0]] for row, start in enumerate(starts)]
        found = session.append(texts, [wanted for _, wanted in rows])
        for row, (count, wanted) in enumerate(rows):
            end = starts[row] + count
            assert session.lengths[row] == end
            assert found[row].shape == (wanted, VOCABULARY)
            np.testing.assert_allclose(found[row], alone[row][1][end - wanted : end], **CLOSE)


@pytest.fixture(scope="module")
def alone(mistral: Path) -> dict[int, Any]:
    """Three texts of 45 tokens, and the logits after every token of them."""
    texts = [np.random.default_rng(seed).integers(0, VOCABULARY, 45).tolist() for seed in range(3)]
    return {row: (text, one_at_a_time(mistral, text)) for row, text in enumerate(texts)}


def test_nearly_full_row_continues_next_to_a_longer_draft(
    mistral: Path, engine: OnnxRuntimeEngine, alone: dict[int, Any]
) -> None:
    """A step of a batch is as wide as its widest row, which would lie beyond the cache after the longest text."""
    with DecoderSession(FixedEngine(engine, 32, 16), decoder_of(Bundle.open(mistral)), 2) as session:
        session.prefill([alone[0][0][:29], alone[1][0][:4]])
        first, second = session.append([alone[0][0][29:31], alone[1][0][4:14]], [2, 10])
        np.testing.assert_allclose(first, alone[0][1][29:31], **CLOSE)
        np.testing.assert_allclose(second, alone[1][1][4:14], **CLOSE)
        assert session.lengths == [31, 14]


def test_returned_arrays_are_not_overwritten(tiny_decoder: Path) -> None:
    with DecoderSession.open(tiny_decoder) as session:
        first = session.step([[1]])
        kept = first.copy()
        session.step([[2]])
        np.testing.assert_array_equal(first, kept)


def test_too_long_sequence_is_rejected_before_any_step(tiny_decoder: Path) -> None:
    with DecoderSession.open(tiny_decoder, batch=2) as session:
        with pytest.raises(UsageError, match=r"^sequence of 65 tokens, the model's limit is 64\. .*$"):
            session.prefill([[1] * 65, [1]])
        assert session.lengths == [0, 0] and session.capacity == 0
    with DecoderSession.open(tiny_decoder, limit=10) as session:
        session.prefill([TEXT[:10]])
        with pytest.raises(UsageError, match=r"^sequence of 11 tokens, the cache's limit is 10\. .*$"):
            session.step([[1]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": [[VOCABULARY]]}, f"token ids {VOCABULARY} to {VOCABULARY}: expected 0 to {VOCABULARY - 1}"),
        ({"input_ids": [[-1]]}, "token ids -1 to -1"),
        ({"input_ids": [[]]}, r"input_ids \(1, 0\): expected \[1, tokens\]"),
        ({"input_ids": [1, 2]}, r"input_ids \(2,\)"),
        ({"input_ids": [[1, 2]], "counts": [3]}, r"counts \[3\]: expected 1 from 0 to 2"),
        (
            {"input_ids": [[1, 2]], "logit_indices": [[2]]},
            r"logit_indices \(1, 1\): expected \[1, wanted\] from 0 to 1",
        ),
    ],
)
def test_invalid_steps_raise_usage_error(tiny_decoder: Path, arguments: dict[str, Any], message: str) -> None:
    with DecoderSession.open(tiny_decoder) as session, pytest.raises(UsageError, match=message):
        session.step(**arguments)


def test_invalid_prompts_and_sessions_raise_usage_error(tiny_decoder: Path, tiny_bundle: Path) -> None:
    with DecoderSession.open(tiny_decoder, batch=2) as session:
        for prompts in ([[1]], [[1], []]):
            with pytest.raises(UsageError, match="expected 2, each of at least 1 token"):
                session.prefill(prompts)
    with pytest.raises(UsageError, match="limit of 65 tokens: the model takes 1 to 64"):
        DecoderSession.open(tiny_decoder, limit=65)
    with pytest.raises(UsageError, match="batch 0: expected at least 1"):
        DecoderSession.open(tiny_decoder, batch=0)
    with pytest.raises(BundleError, match="its task is 'embed', not 'generate'"):
        DecoderSession.open(tiny_bundle)


def test_copied_row_continues_like_its_source(mistral: Path) -> None:
    with DecoderSession.open(mistral, batch=3) as session:
        session.prefill([TEXT[:40], TEXT[40:50], TEXT[30:55]])
        session.copy(0, 2, 30)
        assert session.lengths == [40, 10, 30]
        found = session.append([[], TEXT[50:53], [7, 8]], [0, 1, 1])
        np.testing.assert_allclose(found[2][0], one_at_a_time(mistral, [*TEXT[:30], 7, 8])[-1], **CLOSE)
        np.testing.assert_allclose(found[1][0], one_at_a_time(mistral, TEXT[40:53])[-1], **CLOSE)
        with pytest.raises(UsageError, match="copy of 41 tokens: row 0 holds 40"):
            session.copy(0, 1, 41)


def test_idle_rows_are_truncated_in_a_fixed_cache(mistral: Path, engine: OnnxRuntimeEngine) -> None:
    """Only rows between rows with new tokens: a step covers no others."""
    with DecoderSession(FixedEngine(engine, 32, 7), decoder_of(Bundle.open(mistral)), 4) as session:
        session.prefill([TEXT[:4], TEXT[:31], TEXT[:4], TEXT[:31]])
        found = session.append([TEXT[4:10], [], TEXT[4:10], []], [1, 0, 1, 0])
        assert session.lengths == [10, 26, 10, 31]
        for row in (0, 2):
            np.testing.assert_allclose(found[row][0], one_at_a_time(mistral, TEXT[:10])[-1], **CLOSE)
        session.append([[], TEXT[26:31], [], []], [0, 1, 0, 0])
        found = session.append([[], [TEXT[31]], [], [TEXT[31]]], [0, 1, 0, 1])
        for row in (1, 3):
            np.testing.assert_allclose(found[row][0], one_at_a_time(mistral, TEXT[:32])[-1], **CLOSE)
