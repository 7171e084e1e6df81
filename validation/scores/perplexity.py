"""Perplexity of a generative model on a text, and the difference of its distributions from another model's.

A text is split into overlapping windows, as is usual with `transformers`: each window begins `stride` tokens after the
previous one, and scores only the tokens that no earlier window has scored. So each token but the first is scored once,
with at least `context` - `stride` tokens before it, or all there are. An encoder-decoder scores the reference of each
pair, given its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle, Encoder
from intaglio.display.progress import step, track
from intaglio.errors import UsageError
from intaglio.files.input_files import read_text
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.prompts import Example, read_examples
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession, open_session
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.text.tokenizer import check_words, read_backend
from intaglio.samples.sentences import sentences
from intaglio.validation.measures.distributions import Sums, perplexity_rise
from intaglio.validation.measures.measures import Distributions, distribution_results

Logits = npt.NDArray[np.float32]

OPTION = "--perplexity"
SCORED = Distributions(continues=True).names  # the measures of two models on a text
CONTEXT = 1024  # tokens of a window, or the model's limit
MIN_TOKENS = 16  # of a text; the perplexity of fewer is meaningless
PIECE_TOKENS = 512  # per step
PIECE_BYTES = 64 << 20  # of the logits of one piece, of each model
WRITTEN_TEXTS = 24  # generated sequences to score an encoder-decoder on without a file
WRITTEN_TOKENS = 48  # maximum of each


class Perplexity(msgspec.Struct):
    """The result. Divergences are in nats."""

    perplexity: float
    tokens: int  # scored ones
    text_tokens: int
    context: int | None  # tokens of a window; None for pairs
    stride: int | None
    windows: int  # or pairs
    kl_divergence: float | None  # mean over the tokens of KL(other ‖ this one); None without another model
    against_perplexity: float | None  # of the other model
    same_top: float | None  # fraction of the tokens with the same top-1 prediction

    @property
    def compared(self) -> dict[str, float]:
        """The results of `SCORED`, by name; empty without another model."""
        if self.kl_divergence is None or self.same_top is None or self.against_perplexity is None:
            return {}
        rise = perplexity_rise(self.perplexity, self.against_perplexity)
        return distribution_results(self.kl_divergence, self.same_top, rise)


class Text(NamedTuple):
    """A sequence to score from its second token on, with the source of an encoder-decoder."""

    tokens: list[int]
    source: list[int] | None = None


@dataclass(frozen=True)
class Window:
    """Tokens [start, stop) of a text; those from `first` on are scored."""

    start: int
    first: int
    stop: int


def perplexity(
    bundle: Bundle,
    text: str | Path | None,
    against: Bundle | None = None,
    target: str = "ort-cpu",
    context: int | None = None,
    stride: int | None = None,
    cache_bits: int | None = None,
) -> Perplexity:
    """The perplexity of the model in `bundle`, run on `target`, on the file `text`.

    `text` is UTF-8 text; for an encoder-decoder lines of JSON with "prompt", the source, and "reference". Without a
    file an encoder-decoder is scored on the greedy output of `against` for the sentences that ship with intaglio.
    `against`: the model to compare distributions with, such as the one it was compressed from, run on "ort-cpu".
    `context`: tokens of a window, by default 1024 or the model's limit; `stride`: the distance between windows in
    tokens, by default half the context. `cache_bits`: of the model's cached keys and values, 8 or 4, by default as its
    graph has them. Raises `UsageError` for a text that is too short, for windows that are too long
    for the model, and for two models with different tokens; `BundleError` for a model that does not generate.
    """
    kinds = {
        (each.manifest.encoder is None, (each.manifest.decoder or decoder_of(each)).vocab_size)
        for each in (bundle, against)
        if each
    }
    if text is None and against is None:
        raise UsageError(f"{OPTION}: no text, and no other model to generate one. Give a file.")
    texts = _written(against or bundle) if text is None else _texts(bundle, Path(text))
    tokens = sum(len(each.tokens) for each in texts)
    if text is not None and tokens < MIN_TOKENS:
        raise UsageError(
            f"{OPTION} {text}: {tokens} tokens, expected at least {MIN_TOKENS}, and thousands for a "
            "reliable result. Give a longer text."
        )
    if against is not None and (len(kinds) > 1 or not _same_tokens(bundle, against, text, texts)):
        raise UsageError(
            f"--against {against.path}: has other tokens than {bundle.path}, so their distributions cannot be "
            "compared. Give the bundle that this one was made from."
        )
    with step("opening the model"):
        model = open_session(bundle, target, cache_bits=cache_bits)
    with model:
        if against is None:
            return _measure(model, None, texts, context, stride)
        with step("opening the other model"):
            other = open_session(against)
        with other:
            return _measure(model, other, texts, context, stride)


def _texts(bundle: Bundle, path: Path) -> list[Text]:
    """The tokens of the text at `path`, or of its pairs for an encoder-decoder."""
    tokenizer = read_backend(bundle)
    if (encoder := bundle.manifest.encoder) is None:
        text = read_text(path, OPTION)
        check_words(text)
        return [Text(tokenizer.encode(text).ids)]
    examples = read_examples(path, OPTION)
    for example in examples:
        check_words(example.prompt)
        check_words(example.reference or "")
    return [
        Text(
            _after_start(encoder, tokenizer.encode(_reference(example, path)).ids),
            tokenizer.encode(example.prompt).ids,
        )
        for example in examples
    ]


def _after_start(encoder: Encoder, tokens: list[int]) -> list[int]:
    """The decoder's sequence for the tokens of a text, whose first may be the forced one, or a language, already."""
    named = {encoder.forced_bos_token_id, *encoder.languages.values()}
    written = tokens[1:] if encoder.forced_bos_token_id is not None and tokens[:1] and tokens[0] in named else tokens
    return [*encoder.start, *written]


def _written(bundle: Bundle) -> list[Text]:
    """The greedy output of an encoder-decoder for the sentences that ship with intaglio."""
    encoder, sources = bundle.manifest.encoder, sentences()[:WRITTEN_TEXTS]
    if encoder is None:
        raise UsageError("only an encoder-decoder is scored on generated text. Give a file of text.")
    with TextGenerator(bundle, max_new_tokens=WRITTEN_TOKENS) as generator:
        return [
            Text([*encoder.start, *generator.write(source).whole().tokens], generator.encode(source))
            for source in track(sources, "writing texts to compare on", len(sources))
        ]


def _same_tokens(bundle: Bundle, against: Bundle, text: str | Path | None, texts: list[Text]) -> bool:
    """Whether both models have the same tokens for `texts`, which come from `text` or from the output of `against`."""
    if text is not None:
        return _texts(against, Path(text)) == texts
    tokenizer = read_backend(bundle)
    return all(tokenizer.encode(source).ids == each.source for source, each in zip(sentences(), texts, strict=False))


def _reference(example: Example, path: Path) -> str:
    if example.reference is None:
        raise UsageError(f'{OPTION} {path}: its lines have no "reference" to score. Add it to each.')
    return example.reference


def windows(tokens: int, context: int, stride: int) -> Iterator[Window]:
    """The windows of a text of `tokens` tokens; together they score each token but the first once."""
    scored = 1
    for start in range(0, tokens, stride):
        stop = min(start + context, tokens)
        yield Window(start, scored, stop)
        scored = stop
        if stop == tokens:
            return


def _measure(
    model: DecoderSession, other: DecoderSession | None, texts: Sequence[Text], context: int | None, stride: int | None
) -> Perplexity:
    limit = min(session.limit for session in (model, other) if session)
    pairs = texts[0].source is not None
    if pairs and (context is not None or stride is not None):
        raise UsageError(
            "--context and --stride apply to a decoder's windows, but pairs are scored whole. Leave them out."
        )
    most = limit if pairs else min(CONTEXT, limit)
    context = most if context is None else context
    if not 2 <= context <= limit:
        raise UsageError(f"context {context}: expected 2 to {limit} tokens, the model's limit.")
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride < context:
        raise UsageError(f"stride {stride}: expected 1 to {context - 1}, less than the context of {context} tokens.")
    several = [(text, window) for text in texts for window in windows(len(text.tokens), context, stride)]
    sums = Sums()
    for text, window in track(several, "perplexity", len(several)):
        for session in (model, other):
            if session:
                _begin(session, text)
        _score(model, other, np.array(text.tokens[window.start : window.stop]), window.first - window.start, sums)
    return Perplexity(
        perplexity=sums.perplexity,
        tokens=sums.tokens,
        text_tokens=sum(len(text.tokens) for text in texts),
        context=None if pairs else context,
        stride=None if pairs else stride,
        windows=len(several),
        kl_divergence=sums.kl_divergence if other else None,
        against_perplexity=sums.against_perplexity if other else None,
        same_top=sums.same_top / sums.tokens if other else None,
    )


def _begin(session: DecoderSession, text: Text) -> None:
    """Reset `session` to the source of the text, if it has one, and no tokens."""
    if isinstance(session, EncoderDecoderSession) and text.source is not None:
        session.encode([text.source])
    else:
        session.rollback(0)


def _score(
    model: DecoderSession, other: DecoderSession | None, tokens: npt.NDArray[np.int64], first: int, sums: Sums
) -> None:
    """Score the tokens of a window from `first` on; the logits of the token before predict it."""
    size = max(1, min(PIECE_TOKENS, PIECE_BYTES // (4 * model.decoder.vocab_size)))
    last = len(tokens) - 1  # the last token, which has no target
    for start in range(0, last, size):
        stop = min(start + size, last)
        wanted = np.arange(max(first - 1, start), stop)
        indices = (wanted if len(wanted) else np.array([stop - 1])) - start
        logits, against = (
            session.step(tokens[None, start:stop], logit_indices=indices[None])[0] if session else None
            for session in (model, other)
        )
        if len(wanted):
            assert logits is not None
            sums.add(logits, against, tokens[wanted + 1])
