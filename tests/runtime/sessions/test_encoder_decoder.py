"""Encoder-decoders: texts equal those of `transformers`, for every strategy and batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_engine import FixedEngine

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, UsageError
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.generation.generate import generate
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession
from intaglio.runtime.text.tokenizer import read_backend

SOURCES = ["Hello there", "é", "A source text that is longer than the others."]
COUNT = 24
Maker = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="module")
def pair(make_encoder_decoder: Maker) -> tuple[Path, Path, Path]:
    """A checkpoint, its bundle, and that of a draft model with one layer and the same embeddings."""
    # transformers writes only with as many decoder layers as encoder layers.
    checkpoint, bundle = make_encoder_decoder("mt5", num_layers=2, num_decoder_layers=2)
    return checkpoint, bundle, make_encoder_decoder("mt5", num_layers=1, num_decoder_layers=1)[1]


def expected(checkpoint: Path, bundle: Path, sources: Sequence[str]) -> list[list[int]]:
    """The greedy text of `transformers`, each source alone."""
    import torch
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = read_backend(Bundle.open(bundle))
    written = []
    for source in sources:
        ids = torch.tensor([tokenizer.encode(source).ids])
        mask = torch.ones_like(ids)
        output = model.generate(ids, attention_mask=mask, max_new_tokens=COUNT, do_sample=False)
        written.append(output[0, 1:].tolist())
    return written


def write(bundle: Path, **options: Any) -> list[Generated]:
    return list(generate(bundle, SOURCES, max_new_tokens=COUNT, **options))


@pytest.mark.covering(1)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "ngram"},
        {"strategy": "auto"},
        {"strategy": "bild", "rollback": 0.0, "fallback": 0.0},
        {"strategy": "bild", "rollback": 0.0},
        {"strategy": "speculative"},
    ],
    ids=lambda options: " ".join(map(str, options.values())) or "greedy",
)
def test_greedy_tokens_equal_transformers(pair: tuple[Path, Path, Path], options: dict[str, Any], batch: int) -> None:
    checkpoint, bundle, draft = pair
    given = options | ({"draft": draft} if options.get("strategy") in ("bild", "speculative") else {})
    results = write(bundle, batch=batch, **given)
    assert [result.tokens for result in results] == expected(checkpoint, bundle, SOURCES)
    tokenizer = read_backend(Bundle.open(bundle))
    assert [result.prompt_tokens for result in results] == [len(tokenizer.encode(source).ids) for source in SOURCES]


def test_model_drafting_for_itself_accepts_every_token(pair: tuple[Path, Path, Path]) -> None:
    _, bundle, _ = pair
    plain, drafted = write(bundle), write(bundle, strategy="speculative", draft=bundle, window=4)
    assert [result.tokens for result in drafted] == [result.tokens for result in plain]
    assert all(result.rolled_back == 0 for result in drafted)
    assert all(result.calls.large < len(result.tokens) / 3 for result in drafted)


def test_texts_are_independent_of_previous_texts(pair: tuple[Path, Path, Path]) -> None:
    _, bundle, _ = pair
    (alone,) = generate(bundle, SOURCES[1], max_new_tokens=COUNT)
    assert write(bundle)[1].tokens == alone.tokens


def test_ngram_drafts_copy_from_the_source(make_encoder_decoder: Maker) -> None:
    bundle = make_encoder_decoder("mt5", num_layers=2, num_decoder_layers=2)[1]
    (plain,) = generate(bundle, SOURCES[0], max_new_tokens=COUNT)
    text = read_backend(Bundle.open(bundle)).decode(plain.tokens)
    source = SOURCES[0] + text  # generated words may now occur in the source
    (result,) = generate(bundle, source, max_new_tokens=COUNT, strategy="ngram", ngram=1)
    assert result.accepted + result.rolled_back > 0


def test_bounded_engines_generate_the_same_text(pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Like TensorRT's: fixed caches, sources up to one length, no bound arrays."""
    _, bundle, draft = pair
    options: dict[str, Any] = {"strategy": "bild", "rollback": 0.0, "draft": draft, "batch": 2}
    plain = write(bundle, **options)

    def bounded(*args: Any, **kwargs: Any) -> FixedEngine:
        return FixedEngine(open_engine(*args, **kwargs), capacity=COUNT + 8, tokens=3, source=50)

    monkeypatch.setattr("intaglio.runtime.sessions.encoder_decoder.open_engine", bounded)
    assert [result.tokens for result in write(bundle, **options)] == [result.tokens for result in plain]
    with pytest.raises(
        UsageError, match=r"^prompt of \d+ tokens: the encoder takes at most 50\. Shorten the prompt\.$"
    ):
        list(generate(bundle, "a" * 60, max_new_tokens=2))


def test_decoder_cannot_draft_for_an_encoder_decoder(pair: tuple[Path, Path, Path], tiny_decoder: Path) -> None:
    with pytest.raises(UsageError, match=r"its task is 'generate', that of .* is 'text-to-text'"):
        list(generate(pair[1], "a", strategy="bild", draft=tiny_decoder))


def test_other_bundles_raise_bundle_error(tiny_decoder: Path) -> None:
    with pytest.raises(BundleError, match="not 'text-to-text'"):
        EncoderDecoderSession.open(tiny_decoder)


def test_invalid_sources_raise_usage_error(pair: tuple[Path, Path, Path]) -> None:
    with EncoderDecoderSession.open(pair[1], batch=2) as session:
        for sources, message in ([[]], "at least 1 token"), ([[1]] * 3, "expected 1 to 2"), ([[100_000]], "token ids"):
            with pytest.raises(UsageError, match=message):
                session.encode(sources)


def test_encoding_a_row_does_not_affect_the_others(pair: tuple[Path, Path, Path]) -> None:
    """Sources that need more and less capacity than before; each row continues as if it were alone."""
    _, bundle, _ = pair
    lengths = [3, 40, 10, 200, 70, 5]
    sources = [[(number * 31 + place * 7) % 250 for place in range(length)] for number, length in enumerate(lengths)]
    with EncoderDecoderSession.open(bundle, batch=3) as session, EncoderDecoderSession.open(bundle) as alone:
        written: list[tuple[list[int], list[int]]] = [(sources[0], [])] * 3
        for number, source in enumerate(sources):
            row = number % 3
            session.encode_rows([row], source)
            written[row] = source, []
            assert session.lengths[row] == 0
            for token in (7, 8):
                logits = session.append([[token + row]] * 3, [1] * 3)
                for each, (own, tokens) in enumerate(written[: number + 1]):
                    tokens.append(token + row)
                    if len(tokens) == session.lengths[each]:
                        alone.encode([own])
                        expected = alone.append([tokens], [1])[0]
                        np.testing.assert_allclose(logits[each], expected, atol=1e-4, rtol=1e-4)
        for wrong, message in ([], "at least 1"), ([100_000], "token ids"):
            with pytest.raises(UsageError, match=message):
                session.encode_rows([0], wrong)
