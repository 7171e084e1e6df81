"""Beam search for the text of a window, in the rows of a session; the texts equal those that transformers writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intaglio.runtime.sampling.beams import BeamOptions, Search
from intaglio.runtime.speech.whisper.session import SpeechSession
from intaglio.runtime.speech.whisper.token_rules import Scores, TokenRules, log_softmax

Text = tuple[int, ...]


def search_text(
    session: SpeechSession, before: Sequence[int], logits: Scores, rules: TokenRules
) -> tuple[list[int], float]:
    """The tokens found after `before`, with the end if there is one, and their log-probability, as if written greedily.

    `before` is in the first row of `session`, and `logits` [vocabulary] follow it.
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
