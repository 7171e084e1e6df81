"""The scores of a text's windows, by one model or by two side by side. A window can be a task of an executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step
from intaglio.executors.kept import kept
from intaglio.executors.shared_files import SharedBundle
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession, open_session
from intaglio.validation.measures.distributions import Sums

PIECE_TOKENS = 512  # per step
PIECE_BYTES = 64 << 20  # of the logits of one piece, of each model


@dataclass(frozen=True)
class Window:
    """Tokens [start, stop) of a text; those from `first` on are scored."""

    start: int
    first: int
    stop: int


class WindowTokens(NamedTuple):
    """What is scored of a window."""

    tokens: list[int]
    first: int  # index of the first scored one
    source: list[int] | None  # of an encoder-decoder
    slots: int  # of the caches, the same for every window: a kernel may round differently in a longer cache


class Sessions(NamedTuple):
    """The model, and the one that it is compared with."""

    model: DecoderSession
    other: DecoderSession | None

    @property
    def limit(self) -> int:
        """The maximum number of tokens of a window."""
        return min(session.limit for session in self if session)


def windows(tokens: int, context: int, stride: int) -> Iterator[Window]:
    """The windows of a text of `tokens` tokens; together they score each token but the first once."""
    scored = 1
    for start in range(0, tokens, stride):
        stop = min(start + context, tokens)
        yield Window(start, scored, stop)
        scored = stop
        if stop == tokens:
            return


@contextmanager
def open_sessions(bundle: Bundle, against: Bundle | None, target: str, cache_bits: int | None) -> Iterator[Sessions]:
    """Open `bundle` on `target`, and `against` on "ort-cpu". Raises as `perplexity` does."""
    with step("opening the model"):
        model = open_session(bundle, target, cache_bits=cache_bits)
    with model:
        if against is None:
            yield Sessions(model, None)
            return
        with step("opening the other model"):
            other = open_session(against)
        with other:
            yield Sessions(model, other)


def score(sessions: Sessions, window: WindowTokens) -> Sums:
    """Score a window; the logits of the token before predict each."""
    for session in filter(None, sessions):
        session.cache.reserve(window.slots)
        if isinstance(session, EncoderDecoderSession) and window.source is not None:
            session.encode([window.source])
        else:
            session.rollback(0)
    tokens, sums = np.array(window.tokens, np.int64), Sums()
    size = max(1, min(PIECE_TOKENS, PIECE_BYTES // (4 * sessions.model.decoder.vocab_size)))
    last = len(tokens) - 1  # the last token, which has no target
    for start in range(0, last, size):
        stop = min(start + size, last)
        wanted = np.arange(max(window.first - 1, start), stop)
        indices = (wanted if len(wanted) else np.array([stop - 1])) - start
        logits, against = (
            session.step(tokens[None, start:stop], logit_indices=indices[None])[0] if session else None
            for session in sessions
        )
        if len(wanted):
            assert logits is not None
            sums.add(logits, against, tokens[wanted + 1])
    return sums


SharedModels = tuple[SharedBundle, SharedBundle | None, str, int | None]  # the arguments of `open_sessions`


def shared_models(bundle: Bundle, against: Bundle | None, target: str, cache_bits: int | None) -> SharedModels:
    """The arguments of `open_sessions`, to be passed to workers."""
    return SharedBundle.of(bundle), None if against is None else SharedBundle.of(against), target, cache_bits


@contextmanager
def _open_shared(
    bundle: SharedBundle, against: SharedBundle | None, target: str, cache_bits: int | None
) -> Iterator[Sessions]:
    other = None if against is None else against.open()
    with open_sessions(bundle.open(), other, target, cache_bits) as sessions:
        yield sessions


def limit_in_worker(models: SharedModels) -> int:
    """The `limit` of the sessions of a worker, which stay open."""
    return kept(_open_shared, *models).limit


def score_in_worker(models: SharedModels, window: WindowTokens) -> Sums:
    """`score` by the sessions of a worker, which stay open."""
    return score(kept(_open_shared, *models), window)
