"""The early exit as a draft model in the whole model's cache: texts, cache contents, and skipped blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from covering import examples, few
from early_exits import exit_logits, save_early_exit
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.bundle.bundle import Bundle, create
from intaglio.bundle.model_file import load, save
from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime import build
from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.early_exit import EarlyExitSession
from intaglio.runtime.sessions.key_value_cache import CAPACITY_STEP

MakeDecoder = Callable[..., tuple[Path, Path]]
DRAFTING: dict[str, dict[str, Any]] = {
    "bild": {"strategy": "bild", "fallback": 0.0, "rollback": 0.0},
    "speculative": {"strategy": "speculative", "window": 4},
}


@pytest.fixture(scope="module")
def make_exiting(make_decoder: MakeDecoder, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that makes the bundle of a small random decoder with an exit: (family, layer) -> path."""

    def make(family: str, layer: int = 1, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp("exiting")
        export(str(save_early_exit(make_decoder(family, **options)[0], folder / "a", layer)), folder / "b", check=False)
        return folder / "b"

    return make


@pytest.fixture(scope="module")
def prompts(language_models: Path) -> list[str]:
    """Seven prompts of different lengths."""
    text = (language_models / "held_out.txt").read_text()
    return [text[start : start + 20 + start % 199] for start in range(0, 140_000, 20_000)]


def write(bundle: Path, prompts: list[str], **options: Any) -> list[Generated]:
    return list(generate(bundle, prompts, threads=1, max_new_tokens=24, **options))


def tokens(results: list[Generated]) -> list[list[int]]:
    return [result.tokens for result in results]


@pytest.mark.covering(1)
@pytest.mark.parametrize("method", DRAFTING)
@pytest.mark.parametrize("batch", [1, 3])
def test_verified_exit_drafts_equal_the_models_own_text(
    method: str, batch: int, exiting: Path, trained_pair: tuple[Path, Path], prompts: list[str]
) -> None:
    found = write(exiting, prompts, early_exit=True, batch=batch, **DRAFTING[method])
    assert tokens(found) == tokens(write(trained_pair[1], prompts))
    assert all(result.calls.small > 0 < result.rolled_back for result in found)
    assert all(result.calls.large <= 24 for result in found)


@pytest.mark.parametrize(("fallback", "rollback"), few([(0.3, 2.0), (0.0, math.inf), (0.6, 0.5)], [(0.3, 2.0)]))
def test_batched_texts_equal_single_texts(fallback: float, rollback: float, exiting: Path, prompts: list[str]) -> None:
    """Cached tokens of one session must not be overwritten by steps of the other."""
    options: dict[str, Any] = {"strategy": "bild", "early_exit": True, "fallback": fallback, "rollback": rollback}
    alone, together = (write(exiting, prompts, batch=batch, **options) for batch in (1, 4))
    assert [result.trace for result in together] == [result.trace for result in alone]
    assert [result.calls for result in together] == [result.calls for result in alone]
    assert sum(result.accepted for result in alone) > 0


@pytest.mark.parametrize("family", few(["opt", "llama", "mistral"], ["llama"]))
def test_every_family_equals_plain_decoding(
    family: str, make_decoder: MakeDecoder, make_exiting: Callable[..., Path]
) -> None:
    prompts = ["Hello there", "é", "A prompt that is longer than the others."]
    plain = make_decoder(family, num_hidden_layers=3)[1]
    bundle = make_exiting(family, 2, num_hidden_layers=3)
    assert tokens(write(bundle, prompts)) == tokens(write(plain, prompts))
    found = write(bundle, prompts, strategy="bild", early_exit=True, fallback=0.0, rollback=0.0, batch=2)
    assert tokens(found) == tokens(write(plain, prompts))


def open_both(bundle: Path, batch: int = 1) -> tuple[DecoderSession, EarlyExitSession]:
    opened = Bundle.open(bundle)
    whole = DecoderSession.open(opened, batch=batch, threads=1)
    return whole, EarlyExitSession.beside(whole, opened, threads=1)


@pytest.fixture(scope="module")
def pairs(make_exiting: Callable[..., Path]) -> list[tuple[DecoderSession, EarlyExitSession]]:
    """Sessions of one model for two texts, and for one."""
    bundle = make_exiting("llama", 2, num_hidden_layers=3, max_position_embeddings=512)
    return [open_both(bundle, batch) for batch in (2, 1)]


def predicted(session: DecoderSession, text: list[int]) -> Any:
    """What `session`, for one text, predicts after `text`, read whole."""
    session.rollback(0)
    return session.append([text], [1])[0]


@settings(max_examples=examples(30))
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["exit", "whole", "exit back", "whole back"]), st.integers(0, 6), st.integers(0, 6)),
        max_size=8,
    ),
    start=st.integers(1, CAPACITY_STEP),
)
def test_logits_are_independent_of_rolled_back_tokens(
    moves: list[tuple[str, int, int]], start: int, pairs: list[tuple[DecoderSession, EarlyExitSession]]
) -> None:
    """Two sequences; each session appends and truncates tokens, and the cache grows."""
    (whole, first), (one, one_first) = pairs
    texts = np.random.default_rng(start).integers(0, 250, (2, 2 * CAPACITY_STEP)).tolist()

    def read(session: DecoderSession, counts: list[int]) -> Any:
        pieces = [text[at : at + count] for text, at, count in zip(texts, session.lengths, counts, strict=True)]
        return session.append(pieces, [min(count, 1) for count in counts])

    for session in (whole, first):
        session.rollback(0)
    read(whole, [start, start])
    for kind, *counts in moves:
        session = whole if kind.startswith("whole") else first
        if kind.endswith("back"):
            for row, count in enumerate(counts):
                session.truncate(row, max(start, session.lengths[row] - count))
        elif session is first and any(counts):
            read(first, counts)
        elif session is whole:  # processes all tokens of the exit, as in verification
            ahead = [early - late for early, late in zip(first.lengths, whole.lengths, strict=True)]
            read(whole, [1 + max(*pair) for pair in zip(counts, ahead, strict=True)])
        assert all(early >= late for early, late in zip(first.lengths, whole.lengths, strict=True))
    lengths = [list(first.lengths), list(whole.lengths)]
    for session, alone, before in zip((first, whole), (one_first, one), lengths, strict=True):
        for row, logits in enumerate(read(session, [1, 1])):
            expected = predicted(alone, texts[row][: before[row] + 1])
            np.testing.assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max(), rtol=0)
            one.rollback(0)
        first.rollback(0)  # up to the whole model's length: drafts are truncated


def test_growth_keeps_tokens_cached_by_the_exit_alone(make_exiting: Callable[..., Path]) -> None:
    bundle = make_exiting("llama", max_position_embeddings=512)
    whole, first = open_both(bundle)
    text = np.random.default_rng(0).integers(0, 250, CAPACITY_STEP + 30).tolist()
    whole.append([text[:10]], [1])
    for at in range(10, len(text), 10):
        [found] = first.append([text[at : at + 10]], [1])
    assert whole.capacity == first.capacity > CAPACITY_STEP
    assert (whole.lengths, first.lengths) == ([10], [len(text)])
    fresh = open_both(bundle)[1]
    np.testing.assert_allclose(found, fresh.append([text], [1])[0], atol=1e-4, rtol=1e-4)


def test_both_sessions_write_one_cache_in_place(make_exiting: Callable[..., Path]) -> None:
    whole, first = open_both(make_exiting("llama"), batch=2)
    first.append([[1, 2, 3], [4]], [1, 1])
    addresses = {name: cache.ctypes.data for name, cache in whole.cache.buffers.items()}
    assert first.cache is whole.cache
    assert all((whole.cache.buffers[f"{kind}_0"][0, :, :3] != 0).all() for kind in ("key", "value"))
    assert not whole.cache.buffers["key_1"].any()
    whole.append([[1, 2, 3], [4]], [1, 1])
    first.truncate(0, 0)
    assert first.lengths == [3, 1]  # tokens of the whole model are cached for the exit, too
    whole.truncate(0, 1)
    first.truncate(0, 1)
    assert first.lengths == [1, 1]
    assert {name: cache.ctypes.data for name, cache in whole.cache.buffers.items()} == addresses


def test_exit_logits_equal_a_shorter_model(language_models: Path, exiting: Path) -> None:
    _, first = open_both(exiting)
    text = list(range(100, 140))
    [found] = first.append([text], [40])
    [expected] = exit_logits(language_models / "large", 1, [text])
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def test_exit_step_has_no_later_blocks(make_exiting: Callable[..., Path]) -> None:
    """Their caches are no inputs of it, and nobody waits for their outputs."""
    whole, first = open_both(make_exiting("llama"))
    assert [spec.name for spec in first.engine.outputs] == ["exit_logits", "present_key_0", "present_value_0"]
    assert sum(spec.name.startswith("past") for spec in first.engine.inputs) == 2
    assert "exit_logits" not in [spec.name for spec in whole.engine.outputs]


@pytest.mark.filterwarnings("ignore::intaglio.runtime.engines.onnxruntime.custom_operators.MissingKernels")
def test_stored_and_four_bit_engines_have_the_exit(exiting: Path, prompts: list[str], tmp_path: Path) -> None:
    compress(exiting, tmp_path / "four", "rtn")
    expected = tokens(write(tmp_path / "four", prompts[:3]))
    assert tokens(write(tmp_path / "four", prompts[:3], early_exit=True, **DRAFTING["bild"])) == expected
    build(tmp_path / "four", "ort-cpu")
    assert tokens(write(tmp_path / "four", prompts[:3], early_exit=True, **DRAFTING["bild"])) == expected


def test_external_weights_are_loaded_from_their_file(exiting: Path, tmp_path: Path, prompts: list[str]) -> None:
    opened = Bundle.open(exiting)
    with create(tmp_path / "external") as draft:
        draft.copy_companions(opened)
        draft.manifest = msgspec.structs.replace(opened.manifest)
        save(load(opened.model_path), draft.model_path, external_above=0)
    assert (tmp_path / "external" / "model.onnx.data").is_file()
    options = {"early_exit": True, **DRAFTING["bild"]}
    assert tokens(write(tmp_path / "external", prompts[:2], **options)) == tokens(write(exiting, prompts[:2]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "bild", "early_exit": True}, "has no early exit. Train it .intaglio train early-exit"),
        ({"strategy": "greedy", "early_exit": True}, "strategy 'greedy' takes no --early-exit. Leave it out"),
        ({"strategy": "bild", "early_exit": True, "draft": "x"}, "--early-exit and --draft are both given"),
        ({"strategy": "bild"}, "add --draft BUNDLE or --early-exit"),
    ],
)
def test_unsupported_exits_raise_usage_error(options: dict[str, Any], message: str, tiny_decoder: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        TextGenerator(tiny_decoder, **options)
    assert "\n" not in str(caught.value)
