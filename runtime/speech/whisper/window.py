"""Write the text of one window: greedy or by a beam search, and at higher temperatures where that failed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from intaglio.bundle.bundle import Transcriber
from intaglio.runtime.sampling.beams import BeamOptions, Search
from intaglio.runtime.speech.whisper.session import SpeechSession
from intaglio.runtime.speech.whisper.token_rules import Scores, TokenRules, log_softmax
from intaglio.runtime.speech.whisper_options import Fallback

Text = tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """The tokens of a window, without the end of the text."""

    tokens: list[int]
    log_prob: float  # the mean of its tokens' and, if it ended, of the end's
    compression_ratio: float
    no_speech: float  # probability
    temperature: float

    def is_silence(self, fallback: Fallback) -> bool:
        """Whether the window is silence."""
        if fallback.no_speech is None or fallback.log_prob is None:
            return False
        return self.log_prob < fallback.log_prob and self.no_speech > fallback.no_speech

    def failed(self, fallback: Fallback) -> bool:
        """Whether it is to be written again, at a higher temperature."""
        repeats = fallback.compression_ratio is not None and self.compression_ratio > fallback.compression_ratio
        guessed = fallback.log_prob is not None and self.log_prob < fallback.log_prob
        return (repeats or guessed) and not self.is_silence(fallback)


def write_window(
    session: SpeechSession,
    transcriber: Transcriber,
    context: Sequence[int],
    prompt: Sequence[int],
    rules: TokenRules,
    fallback: Fallback,
    random: np.random.Generator,
) -> Written:
    """Write the window that `session` has encoded, after the tokens of `context` and of `prompt`, the text's start."""
    before = [*context, *prompt]
    ends, limit = session.decoder.eos_token_ids, session.decoder.max_positions
    for temperature in fallback.temperatures:
        session.rollback(0)
        logits = session.append_first(before, len(prompt))
        no_speech = float(np.exp(log_softmax(logits[0])[transcriber.no_speech]))  # after the token that starts a text
        if session.batch > 1 and temperature == 0:
            tokens, total = search_text(session, before, logits[-1], rules)
        else:
            tokens, total = _sample_text(session, limit - len(before), logits[-1], rules, temperature, random)
        ratio = compression_ratio(tokens, session.decoder.vocab_size)
        kept = tokens[:-1] if tokens[-1] in ends else tokens
        written = Written(kept, total / len(tokens), ratio, no_speech, temperature)
        if not written.failed(fallback):
            break
    return written


def _sample_text(
    session: SpeechSession,
    limit: int,
    logits: Scores,
    rules: TokenRules,
    temperature: float,
    random: np.random.Generator,
) -> tuple[list[int], float]:
    """At most `limit` tokens after `logits`, with the end if there is one, and their log-probability."""
    tokens: list[int] = []
    total = 0.0
    while True:
        scores = rules.apply(logits, tokens)
        logs = log_softmax(scores)
        token = int(scores.argmax())
        if temperature > 0:
            weights = np.exp(log_softmax(scores / np.float32(temperature)).astype(np.float64))
            token = int(random.choice(len(weights), p=weights / weights.sum()))
        total += float(logs[token])
        tokens.append(token)
        if token in session.decoder.eos_token_ids or len(tokens) >= limit:
            return tokens, total
        logits = session.append_first([token], 1)[-1]


def compression_ratio(tokens: Sequence[int], vocabulary: int) -> float:
    """The bytes of `tokens` by those of their deflated form."""
    width = int(math.log2(vocabulary) / 8) + 1
    data = b"".join(token.to_bytes(width, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))


def search_text(
    session: SpeechSession, before: Sequence[int], logits: Scores, rules: TokenRules
) -> tuple[list[int], float]:
    """The tokens found after `before`, with the end if there is one, and their log-probability, as if written greedily.

    `before` is in the first row of `session`, and `logits` [vocabulary] follow it. The beams are the
    rows of `session`; the texts equal those that transformers writes.
    """
    options = BeamOptions(session.batch, max_new_tokens=session.decoder.max_positions - len(before))
    search = Search(options, before, len(before), session.decoder.eos_token_ids, 0, ())
    for row in range(1, session.batch):
        session.copy(0, row, len(before))
    following = [logits] * session.batch
    totals: dict[Text, float] = {(): 0.0}  # of the beams, and of finished texts
    while True:
        texts = [tuple(beam.tokens[len(before) :]) for beam in search.beams]
        rows = [log_softmax(following[beam.row]) for beam in search.beams]
        log_probs = np.stack([rules.apply(row, text) for row, text in zip(rows, texts, strict=True)])
        copies = search.extend(log_probs)
        normalised = {text: log_softmax(scores) for text, scores in zip(texts, log_probs, strict=True)}
        every = [*(beam.tokens for beam in search.beams), *(found.tokens for found in search.finished)]
        kept = [tuple(tokens[len(before) :]) for tokens in every]
        totals = {
            text: totals[text] if text in totals else totals[text[:-1]] + float(normalised[text[:-1]][text[-1]])
            for text in kept
        }
        if search.ended:
            best = search.best.tokens[len(before) :]
            return best, totals[tuple(best)]
        for source, row in copies:
            session.copy(source, row, session.lengths[source])
        new = [[0]] * session.batch
        for beam in search.beams:
            new[beam.row] = [beam.tokens[-1]]
        following = [each[-1] for each in session.append(new, [1] * session.batch)]
