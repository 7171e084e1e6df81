"""CALM: texts equal those of a reference loop, and are independent of the batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calm_reference import NEVER, CalmReference
from covering import examples, few
from early_exits import save_early_exit
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduled_models import POSITIONS

from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import Calm

MakeDecoder = Callable[..., tuple[Path, Path]]
SIZES: dict[str, dict[str, Any]] = {
    # So small that states are alike after some of the blocks; gpt2 as the scheduler's, so that torch traces both once.
    "gpt2": {"n_layer": 4, "initializer_range": 0.015, "n_positions": POSITIONS},
    "llama": {"num_hidden_layers": 4, "initializer_range": 0.01},
}
PROMPTS = ["Hello there", "é", "A prompt that is longer", "x = y"]
families = pytest.mark.parametrize("family", few(SIZES, ["gpt2"]))


@pytest.fixture(scope="module")
def made(make_decoder: MakeDecoder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path, Path]]:
    """Of each family a checkpoint with exits after every block, its bundle, and that of the model without exits."""

    class Made(dict[str, tuple[Path, Path, Path]]):
        def __missing__(self, family: str) -> tuple[Path, Path, Path]:
            checkpoint, plain = make_decoder(family, **SIZES[family])
            folder = save_early_exit(checkpoint, tmp_path_factory.mktemp("calm") / family, "every")
            export(str(folder), folder.parent / "bundle", check=False)
            self[family] = folder, folder.parent / "bundle", plain
            return self[family]

    return Made()


def write(bundle: Path, prompts: list[str] = PROMPTS, **options: Any) -> list[Generated]:
    return list(generate(bundle, prompts, threads=1, **{"max_new_tokens": 24, "ignore_eos": True, **options}))


@pytest.mark.covering(1)
@families
@pytest.mark.parametrize(("saturation", "decay"), [(0.0, 0.0), (0.0, 4.0), (0.6, 1.0), (0.9, 4.0), (1.0, 0.0)])
def test_text_equals_the_reference_loop(
    family: str, saturation: float, decay: float, made: dict[str, tuple[Path, Path, Path]]
) -> None:
    checkpoint, bundle, _ = made[family]
    reference = CalmReference(checkpoint)
    for result, prompt in zip(write(bundle, strategy="calm", saturation=saturation, decay=decay), PROMPTS, strict=True):
        expected = reference.write(list(prompt_tokens(bundle, prompt)), 24, saturation, decay)
        assert result.tokens == [token for token, _ in expected]
        assert result.blocks == pytest.approx(np.mean([blocks for _, blocks in expected]))


def prompt_tokens(bundle: Path, prompt: str) -> list[int]:
    with TextGenerator(bundle) as generator:
        return generator.encode(prompt)


@families
def test_saturation_0_exits_after_the_first_block(family: str, made: dict[str, tuple[Path, Path, Path]]) -> None:
    _, bundle, _ = made[family]
    most = [write(bundle, strategy="calm", saturation=each, decay=1e9) for each in (0.0, 0.9, 1.0)]
    first, *rest = ([result.blocks for result in results] for results in most)
    assert first == [pytest.approx((4 + 23) / 24)] * len(PROMPTS)  # the first token is the whole model's
    assert all(4 >= more >= less for less, more in zip(first, rest[0], strict=True) if less and more)
    assert 1.5 < np.mean([each for each in rest[0] if each]) < 3.5


@families
def test_other_strategies_equal_the_plain_model(family: str, made: dict[str, tuple[Path, Path, Path]]) -> None:
    _, bundle, plain = made[family]
    for options in ({}, {"temperature": 0.9, "seed": 3}, {"strategy": "ngram"}):
        found, expected = (write(path, **options) for path in (bundle, plain))
        assert [result.tokens for result in found] == [result.tokens for result in expected]
        assert all(result.blocks is None for result in found)
    texts = [list(range(5, 30)), [7, 9]]
    with DecoderSession.open(bundle, batch=2) as session, DecoderSession.open(plain, batch=2) as whole:
        for pieces in (texts, [[3], [4]]):
            for ours, theirs in zip(session.append(pieces, [1, 1]), whole.append(pieces, [1, 1]), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-6 * np.abs(theirs).max(), rtol=0)  # fused otherwise
            assert [run.tolist() for run in session.blocks_run] == [[4], [4]]


@pytest.mark.covering(1)
@families
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.8, "seed": 2}])
def test_batched_texts_equal_single_texts(
    family: str, sampled: dict[str, Any], made: dict[str, tuple[Path, Path, Path]]
) -> None:
    """The texts end at different places, and the last rows of the second batch hold none."""
    _, bundle, _ = made[family]
    prompts = [*PROMPTS, "another", "the last one", "z"]
    stops = {"stop": [write(bundle, prompts[:1], strategy="calm", **sampled)[0].text[5:7]]}
    alone, *together = (write(bundle, prompts, strategy="calm", batch=batch, **stops, **sampled) for batch in (1, 3, 4))
    for results in together:
        assert [result.tokens for result in results] == [result.tokens for result in alone]
        assert [result.blocks for result in results] == [result.blocks for result in alone]
    assert len({len(result.tokens) for result in alone}) > 1


@pytest.fixture(scope="module")
def sessions(made: dict[str, tuple[Path, Path, Path]]) -> dict[str, tuple[DecoderSession, CalmReference]]:
    """Of each family a session for three texts, and the reference."""
    return {
        family: (DecoderSession.open(bundle, batch=3, threads=1), CalmReference(checkpoint))
        for family, (checkpoint, bundle, _) in made.items()
    }


@families
@settings(max_examples=examples(15))
@given(
    texts=st.lists(st.lists(st.integers(0, 250), min_size=2, max_size=9), min_size=3, max_size=3),
    thresholds=st.lists(st.one_of(st.floats(-1.1, 1.1), st.just(NEVER)), min_size=3, max_size=3),
    piece=st.integers(1, 9),
)
def test_texts_with_different_thresholds_equal_the_reference(
    family: str,
    texts: list[list[int]],
    thresholds: list[float],
    piece: int,
    sessions: dict[str, tuple[DecoderSession, CalmReference]],
) -> None:
    """In chunks, every token's logits and blocks equal those of a sequence alone, one token at a time."""
    session, reference = sessions[family]
    session.rollback(0)
    session.exit_thresholds[:] = thresholds
    found: list[list[tuple[Any, int]]] = [[], [], []]
    for at in range(0, 9, piece):
        pieces = [text[at : at + piece] for text in texts]
        counts = [len(each) for each in pieces]
        if any(counts):
            logits = session.append(pieces, counts)
            for row, count in enumerate(counts):
                found[row] += zip(logits[row], session.blocks_run[row][:count].tolist(), strict=True)
    for text, threshold, read in zip(texts, thresholds, found, strict=True):
        reference.forget()
        for token, (logits, blocks) in zip(text, read, strict=True):
            expected = reference.read(token, threshold)
            assert blocks == expected.blocks
            np.testing.assert_allclose(logits, expected.logits, atol=1e-4 * np.abs(expected.logits).max(), rtol=0)


@families
def test_caches_stay_in_place_and_hold_keys_of_every_block(
    family: str, made: dict[str, tuple[Path, Path, Path]]
) -> None:
    """Including those of skipped blocks: they are computed from the state at the exit."""
    checkpoint, bundle, _ = made[family]
    reference = CalmReference(checkpoint)
    with DecoderSession.open(bundle) as session:
        session.append([[1, 2, 3]], [1])
        addresses = {name: cache.ctypes.data for name, cache in session.cache.buffers.items()}
        session.exit_thresholds[:] = -2.0
        for token in (4, 5, 6):
            session.append([[token]], [1])
            assert session.blocks_run[0].tolist() == [1]
        assert {name: cache.ctypes.data for name, cache in session.cache.buffers.items()} == addresses
        for token in range(1, 7):
            reference.read(token, NEVER if token < 4 else -2.0)
        for index in range(4):
            for kind, expected in (("key", reference.keys), ("value", reference.values)):
                held = session.cache.buffers[f"{kind}_{index}"][0, :, :6]
                np.testing.assert_allclose(held, np.stack(expected[index], 1), atol=1e-4)


@given(saturation=st.floats(0, 1), decay=st.floats(0, 1e6), most=st.integers(1, 10_000), written=st.integers(1, 10_000))
def test_threshold_decreases_within_0_and_1(saturation: float, decay: float, most: int, written: int) -> None:
    calm = Calm(saturation, decay)
    assert 0 <= calm.threshold(written + 1, most) <= calm.threshold(written, most) <= 1
    assert calm.threshold(0, most) == pytest.approx(0.9 * saturation + 0.1)
    assert Calm(saturation, 0.0).threshold(written, most) == calm.threshold(0, most)


def test_interrupted_text_does_not_affect_the_next(made: dict[str, tuple[Path, Path, Path]]) -> None:
    _, bundle, _ = made["gpt2"]
    options: dict[str, Any] = {"strategy": "calm", "max_new_tokens": 12, "ignore_eos": True, "batch": 2}
    with TextGenerator(bundle, **options) as generator:
        expected = [result.tokens for result in generator.write_batch(PROMPTS[:2]).whole()]
        broken = iter(generator.write_batch(PROMPTS[2:]))
        for _ in range(3):
            next(broken)
        run = generator.write_batch(PROMPTS[:2])
        pieces = iter(run)
        next(pieces)
        del broken
        for _ in pieces:
            pass
        assert [text.result().tokens for text in run.texts] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "calm"}, r"has no exit after every block. Train it \(intaglio train early-exit --every-layer\)"),
        ({"strategy": "calm", "saturation": 1.5}, "saturation 1.5: expected a cosine, 0 to 1"),
        ({"strategy": "calm", "saturation": float("nan")}, "saturation nan: expected a cosine"),
        ({"strategy": "calm", "decay": -1.0}, "decay -1.0: expected 0 or more"),
        ({"strategy": "calm", "decay": float("inf")}, "decay inf: expected 0 or more"),
        ({"strategy": "calm", "window": 3}, "'calm' takes no --window. Its options: --saturation, --decay"),
        ({"strategy": "calm", "draft": "x"}, "strategy 'calm' takes no --draft. Leave it out"),
        ({"saturation": 0.9}, "strategy 'greedy' takes no --saturation"),
    ],
)
def test_unsupported_models_and_options_raise_usage_error(
    options: dict[str, Any], message: str, tiny_decoder: Path
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        TextGenerator(tiny_decoder, **options)
    assert "\n" not in str(caught.value)


def test_command_line_runs_calm(
    made: dict[str, tuple[Path, Path, Path]], tiny_decoder: Path, intaglio: Callable[..., Any]
) -> None:
    _, bundle, _ = made["gpt2"]
    arguments = ("Hello", "-n", 8, "--strategy", "calm", "--saturation", 0.5, "--decay", 2)
    code, out, err = intaglio("generate", bundle, *arguments, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["strategy"] == "calm" and 1 < result["blocks"] <= 4
    code, _, err = intaglio("generate", bundle, *arguments, "--trace")
    assert code == 0 and f"On average a token ran through {result['blocks']:.1f} blocks" in err
    code, _, err = intaglio("generate", tiny_decoder, "Hello", "--strategy", "calm")
    assert code == 2 and "--every-layer" in err and err.count("\n") == 1


@pytest.mark.parametrize("bits", [8, 4])
def test_blocks_that_may_be_skipped_read_quantised_caches(bits: int, made: dict[str, tuple[Path, Path, Path]]) -> None:
    _, bundle, plain = made["gpt2"]
    expected = [result.text for result in write(plain, cache_bits=bits)]
    for batch in (1, len(PROMPTS)):
        found = write(bundle, cache_bits=bits, batch=batch, strategy="calm", saturation=1.0)
        assert [result.text for result in found] == expected
