"""Perplexity of a generative model on a text, and the difference of its distributions from another model's.

A text is split into overlapping windows, as is usual with `transformers`: each window begins `stride` tokens after the
previous one, and scores only the tokens that no earlier window has scored. So each token but the first is scored once,
with at least `context` - `stride` tokens before it, or all there are. An encoder-decoder scores the reference of each
pair, given its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from intaglio.bundle.bundle import Bundle, Encoder
from intaglio.display.progress import track
from intaglio.errors import UsageError
from intaglio.executors.executor import INLINE, Executor
from intaglio.files.input_files import read_text
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.prompts import Example, read_examples
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.text.tokenizer import check_words, read_backend
from intaglio.samples.sentences import sentences
from intaglio.validation.measures.distributions import Sums, perplexity_rise
from intaglio.validation.measures.measures import Distributions, distribution_results
from intaglio.validation.scores.window_scores import (
    WindowTokens,
    limit_in_worker,
    open_sessions,
    score,
    score_in_worker,
    shared_models,
    windows,
)

OPTION = "--perplexity"
SCORED = Distributions(continues=True).names  # the measures of two models on a text
CONTEXT = 1024  # tokens of a window, or the model's limit
MIN_TOKENS = 16  # of a text; the perplexity of fewer is meaningless
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


class Plan(NamedTuple):
    """The windows of the texts."""

    text_tokens: int
    context: int | None  # tokens of a window; None for pairs
    stride: int | None
    windows: list[WindowTokens]


def perplexity(
    bundle: Bundle,
    text: str | Path | None,
    against: Bundle | None = None,
    target: str = "ort-cpu",
    context: int | None = None,
    stride: int | None = None,
    cache_bits: int | None = None,
    executor: Executor = INLINE,
) -> Perplexity:
    """The perplexity of the model in `bundle`, run on `target`, on the file `text`.

    `text` is UTF-8 text; for an encoder-decoder lines of JSON with "prompt", the source, and "reference". Without a
    file an encoder-decoder is scored on the greedy output of `against` for the sentences that ship with intaglio.
    `against`: the model to compare distributions with, such as the one it was compressed from, run on "ort-cpu".
    `context`: tokens of a window, by default 1024 or the model's limit; `stride`: the distance between windows in
    tokens, by default half the context. `cache_bits`: of the model's cached keys and values, 8 or 4, by default as its
    graph has them. `executor` scores the windows, with both models open in each worker; the sums are added in the order
    of the windows. Raises `UsageError` for a text that is too short, for windows that are too long for the model, and
    for two models with different tokens; `BundleError` for a model that does not generate.
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
    if executor is INLINE:
        with open_sessions(bundle, against, target, cache_bits) as sessions:
            plan = _plan(texts, sessions.limit, context, stride)
            return _result(plan, (score(sessions, window) for window in plan.windows), against is not None)
    models = shared_models(bundle, against, target, cache_bits)
    (limit,) = executor.map(limit_in_worker, [(models,)])
    plan = _plan(texts, limit, context, stride)
    scores = executor.map(score_in_worker, ((models, window) for window in plan.windows))
    return _result(plan, scores, against is not None)


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


def _plan(texts: Sequence[Text], limit: int, context: int | None, stride: int | None) -> Plan:
    """The windows to score, of at most `limit` tokens. Raises `UsageError` for a context or stride out of range."""
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
    slots = max(window.stop - window.start for _, window in several)
    return Plan(
        text_tokens=sum(len(text.tokens) for text in texts),
        context=None if pairs else context,
        stride=None if pairs else stride,
        windows=[
            WindowTokens(text.tokens[window.start : window.stop], window.first - window.start, text.source, slots)
            for text, window in several
        ],
    )


def _result(plan: Plan, scores: Iterable[Sums], compared: bool) -> Perplexity:
    """Add the scores of the windows, in order; `compared`: with those of another model."""
    sums = sum(track(scores, "perplexity", len(plan.windows)), Sums())
    return Perplexity(
        perplexity=sums.perplexity,
        tokens=sums.tokens,
        text_tokens=plan.text_tokens,
        context=plan.context,
        stride=plan.stride,
        windows=len(plan.windows),
        kl_divergence=sums.kl_divergence if compared else None,
        against_perplexity=sums.against_perplexity if compared else None,
        same_top=sums.same_top / sums.tokens if compared else None,
    )
