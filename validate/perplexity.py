"""Perplexity of a decoder on a text, and how far its distributions are from those of another decoder.

A text is read in overlapping windows, as long texts are with `transformers`: each window begins `stride` tokens after
the one before, and scores only the tokens that no window before it has scored. So each token but the first is scored
once, with at least `context` - `stride` tokens before it, or all there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.files import read_text
from intaglio.progress import step, track
from intaglio.runtime.decoder import DecoderSession, decoder_of
from intaglio.runtime.tokenizer import read_backend

Logits = npt.NDArray[np.float32]

CONTEXT = 1024  # tokens of a window, where the model takes as many
MIN_TOKENS = 16  # of a text; the perplexity of fewer says nothing
PIECE_TOKENS = 512  # run at a time
PIECE_BYTES = 64 << 20  # of the logits of one piece, of each model
SCORED_VALUES = 1 << 20  # logits scored at a time; their float64 copies take 8 bytes each


class Perplexity(msgspec.Struct):
    """What was found. Divergences are in nats."""

    perplexity: float
    tokens: int  # that were scored
    text_tokens: int
    context: int
    stride: int
    windows: int
    kl_divergence: float | None  # mean over the tokens of KL(other ‖ this one); None where there is no other
    against_perplexity: float | None  # of the other decoder
    same_top: float | None  # part of the tokens for which both think the same one most probable


@dataclass(frozen=True)
class Window:
    """Tokens [start, stop) of a text, of which those from `first` on are scored."""

    start: int
    first: int
    stop: int


@dataclass
class Sums:
    """What adds up over tokens."""

    tokens: int = 0
    loss: float = 0.0  # -log probability of the text's token
    against_loss: float = 0.0
    divergence: float = 0.0
    same_top: int = 0

    def add(self, logits: Logits, against: Logits | None, targets: npt.NDArray[np.int64]) -> None:
        """Score `targets` [tokens] by logits [tokens, vocabulary], a few rows at a time."""
        rows = max(1, SCORED_VALUES // logits.shape[-1])
        for start in range(0, len(targets), rows):
            part = slice(start, start + rows)
            self._add(logits[part], against[part] if against is not None else None, targets[part])

    def _add(self, logits: Logits, against: Logits | None, targets: npt.NDArray[np.int64]) -> None:
        places = np.arange(len(targets))
        found = log_softmax(logits)
        self.tokens += len(targets)
        self.loss -= float(found[places, targets].sum())
        if against is not None:
            wanted = log_softmax(against)
            self.against_loss -= float(wanted[places, targets].sum())
            self.divergence += float((np.exp(wanted) * (wanted - found)).sum())
            self.same_top += int((logits.argmax(axis=-1) == against.argmax(axis=-1)).sum())


def perplexity(
    bundle: Bundle,
    text: str | Path,
    against: Bundle | None = None,
    target: str = "ort-cpu",
    context: int | None = None,
    stride: int | None = None,
) -> Perplexity:
    """The perplexity of the decoder in `bundle`, run on `target`, on the UTF-8 file `text`.

    `against`: the decoder that its distributions are compared with, such as the one it was compressed from, run on
    "ort-cpu". `context`: tokens of a window, by default 1024 or as many as the model takes; `stride`: tokens that
    each window goes on by, by default half of it. Raises `UsageError` for a text that is too short, for windows that
    the model cannot take, and for two decoders that do not share their tokens; `BundleError` for one that is none.
    """
    sizes = {decoder_of(each).vocab_size for each in (bundle, against) if each}
    content = read_text(Path(text), "--perplexity")
    tokens = read_backend(bundle).encode(content).ids
    if len(tokens) < MIN_TOKENS:
        raise UsageError(
            f"--perplexity {text}: {len(tokens)} tokens, expected at least {MIN_TOKENS}, and thousands for a figure "
            "to rely on. Give a longer text."
        )
    with step("opening the model"):
        model = DecoderSession.open(bundle, target)
    with model:
        if against is None:
            return _measure(model, None, tokens, context, stride)
        if len(sizes) > 1 or read_backend(against).encode(content).ids != tokens:
            raise UsageError(
                f"--against {against.path}: has other tokens than {bundle.path}, so that their distributions cannot be "
                "compared. Give the bundle that this one was made from."
            )
        with step("opening the other model"):
            other = DecoderSession.open(against)
        with other:
            return _measure(model, other, tokens, context, stride)


def windows(tokens: int, context: int, stride: int) -> Iterator[Window]:
    """The windows of a text of so many tokens; together they score each but the first once."""
    scored = 1
    for start in range(0, tokens, stride):
        stop = min(start + context, tokens)
        yield Window(start, scored, stop)
        scored = stop
        if stop == tokens:
            return


def log_softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Logarithms of the probabilities, float64, over the last axis of `logits`."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _measure(
    model: DecoderSession, other: DecoderSession | None, tokens: Sequence[int], context: int | None, stride: int | None
) -> Perplexity:
    limit = min(session.limit for session in (model, other) if session)
    context = min(CONTEXT, limit) if context is None else context
    if not 2 <= context <= limit:
        raise UsageError(f"context {context}: expected 2 to {limit} tokens, which the model takes.")
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride < context:
        raise UsageError(f"stride {stride}: expected 1 to {context - 1}, less than the context of {context} tokens.")
    several = list(windows(len(tokens), context, stride))
    sums = Sums()
    for window in track(several, "perplexity", len(several)):
        _score(model, other, np.array(tokens[window.start : window.stop]), window.first - window.start, sums)
    means = [total / sums.tokens for total in (sums.loss, sums.against_loss, sums.divergence, sums.same_top)]
    with np.errstate(over="ignore"):
        found, wanted = (float(np.exp(mean)) for mean in means[:2])
    return Perplexity(
        perplexity=found,
        tokens=sums.tokens,
        text_tokens=len(tokens),
        context=context,
        stride=stride,
        windows=len(several),
        kl_divergence=max(0.0, means[2]) if other else None,  # rounding makes a tiny one negative
        against_perplexity=wanted if other else None,
        same_top=means[3] if other else None,
    )


def _score(
    model: DecoderSession, other: DecoderSession | None, tokens: npt.NDArray[np.int64], first: int, sums: Sums
) -> None:
    """Score the tokens of a window from the one at `first`; the logits of the one before it are about it."""
    for session in (model, other):
        if session:
            session.rollback(0)
    size = max(1, min(PIECE_TOKENS, PIECE_BYTES // (4 * model.decoder.vocab_size)))
    last = len(tokens) - 1  # the token that nothing comes after
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
