"""Answers to a question from a text, chosen as transformers' question-answering pipeline chooses them.

The score of a span is the product of the probabilities that it starts with its first token and ends with its last.
Windows of a long text have probabilities of their own; equal answers of several windows add up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from intaglio.runtime.engines.engine import Array
from intaglio.runtime.text.tasks import AnswerSpan, Numbers, softmax
from intaglio.runtime.text.tokenizer import Tokenizer
from intaglio.runtime.text.windows import Window

IMPOSSIBLE = -10000.0  # the logit of a token that cannot be in an answer
CONTEXT = 1  # the text, of the question and the text

Flags = npt.NDArray[np.bool_]


def answers_of(
    tokenizer: Tokenizer,
    text: str,
    windows: Sequence[Window],
    logits: Sequence[tuple[Array, Array]],
    top: int,
    longest: int,
    no_answer: bool,
) -> list[AnswerSpan]:
    """The best `top` answers, of at most `longest` tokens, from the start and end logits [tokens] of each window."""
    found: dict[str, AnswerSpan] = {}  # by its lower-case characters
    empty = 1.0
    for window, pair in zip(windows, logits, strict=True):
        possible = _possible(tokenizer, window)
        start, end = (softmax(np.where(possible, each.astype(np.float64), IMPOSSIBLE)) for each in pair)
        empty = min(empty, float(start[0] * end[0]))
        start[0] = end[0] = 0.0
        for first, last, score in _best(start, end, possible, 2 * top + 10, longest):
            begin, stop = _characters(window, first, last)
            answer = text[begin:stop]
            if (known := found.get(answer.lower())) is not None:
                known.score += score
            else:
                found[answer.lower()] = AnswerSpan(answer, score, begin, stop)
    answers = [*found.values(), *([AnswerSpan("", empty, 0, 0)] if no_answer else [])]
    return sorted(answers, key=lambda answer: -answer.score)[:top]


def _possible(tokenizer: Tokenizer, window: Window) -> Flags:
    """Which tokens may be in an answer: those of the text, and the first, by which models say that there is none."""
    encoding = window.encoding
    return np.array(
        [
            sequence == CONTEXT or token == tokenizer.cls_token_id
            for sequence, token in zip(encoding.sequence_ids, encoding.ids, strict=True)
        ]
    )


def _best(start: Numbers, end: Numbers, possible: Flags, count: int, longest: int) -> list[tuple[int, int, float]]:
    """The first and last tokens of the best `count` spans, with their scores; those of score 0 are left out."""
    scores = np.tril(np.triu(np.outer(start, end)), longest - 1)
    order = np.argsort(-scores, axis=None, kind="stable")[:count]
    spans = [(int(place) // len(end), int(place) % len(end)) for place in order]
    return [
        (first, last, float(scores[first, last]))
        for first, last in spans
        if scores[first, last] > 0 and possible[first] and possible[last]
    ]


def _characters(window: Window, first: int, last: int) -> tuple[int, int]:
    """The characters of the words that a span begins and ends in; of its tokens where the tokenizer has no words."""
    encoding = window.encoding
    words = [word for token in (first, last) if (word := encoding.token_to_word(token)) is not None]
    if len(words) == 2:
        begin, stop = (encoding.word_to_chars(word, CONTEXT) for word in words)
        if begin is not None and stop is not None:
            return int(begin[0]), int(stop[1])
    return int(encoding.offsets[first][0]), int(encoding.offsets[last][1])
