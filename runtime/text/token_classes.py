"""The classes of a text's tokens, joined to spans as transformers' TokenClassificationPipeline joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intaglio.runtime.engines.engine import Array
from intaglio.runtime.text.tasks import Numbers, Span, softmax
from intaglio.runtime.text.tokenizer import Tokenizer
from intaglio.runtime.text.windows import Window

OUTSIDE = "O"  # the class of tokens that belong to nothing, which is left out


@dataclass(frozen=True)
class _Token:
    """A token, or all tokens of a word: the probabilities of its classes, and its characters in the text."""

    word: str
    scores: Numbers  # [classes]
    start: int
    end: int
    index: int | None = None  # among the tokens of the window
    continues: bool = False  # the word before it


def spans_of(
    tokenizer: Tokenizer, text: str, windows: Sequence[Window], logits: Sequence[Array], labels: Sequence[str], how: str
) -> list[Span]:
    """The spans of `text`, from the logits [tokens, classes] of each window; `how`: see `SpanOptions.aggregation`."""
    found: list[Span] = []
    for window, rows in zip(windows, logits, strict=True):
        tokens = _tokens(tokenizer, text, window, softmax(rows))
        if how in WORDS:
            tokens = [_word(tokenizer, group, WORDS[how]) for group in _words(tokens)]
        spans = [_span(token, labels) for token in tokens]
        if how != "none":
            spans = [_joined(tokenizer, group) for group in _groups(spans)]
        found += [span for span in spans if span.label != OUTSIDE]
    return _without_overlaps(found) if len(windows) > 1 else found


def _tokens(tokenizer: Tokenizer, text: str, window: Window, scores: Numbers) -> list[_Token]:
    """The tokens of the text itself."""
    encoding, unknown = window.encoding, tokenizer.unknown_token_id
    prefix = getattr(tokenizer.backend.model, "continuing_subword_prefix", None)
    tokens = []
    for index, (start, end) in enumerate(encoding.offsets):
        if encoding.special_tokens_mask[index]:
            continue
        word, characters = encoding.tokens[index], text[start:end]
        # Without a prefix of a word's later tokens, a tokenizer does not say where words begin.
        inside = start > 0 and " " not in text[start - 1 : start + 1]
        continues = len(word) != len(characters) if prefix else inside
        if encoding.ids[index] == unknown:
            word, continues = characters, False
        tokens.append(_Token(word, scores[index], start, end, index, continues))
    return tokens


def _words(tokens: Iterable[_Token]) -> list[list[_Token]]:
    """The tokens of each word."""
    words: list[list[_Token]] = []
    for token in tokens:
        if words and token.continues:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _word(tokenizer: Tokenizer, tokens: Sequence[_Token], choose: Callable[[Numbers], Numbers]) -> _Token:
    """A word with the probabilities that `choose` makes of those of its tokens, [tokens, classes]."""
    scores = choose(np.stack([token.scores for token in tokens]))
    return _Token(_decoded(tokenizer, [token.word for token in tokens]), scores, tokens[0].start, tokens[-1].end)


WORDS: dict[str, Callable[[Numbers], Numbers]] = {
    "first": lambda scores: scores[0],
    "average": lambda scores: np.asarray(scores.mean(axis=0)),
    "max": lambda scores: scores[scores.max(axis=-1).argmax()],  # of the most certain token
}


def _span(token: _Token, labels: Sequence[str]) -> Span:
    best = int(token.scores.argmax())
    return Span(labels[best], float(token.scores[best]), token.word, token.start, token.end, token.index)


def _groups(spans: Iterable[Span]) -> list[list[Span]]:
    """Spans that follow each other and have the same class; B- begins a group of its own."""
    groups: list[list[Span]] = []
    for span in spans:
        begins, name = _tag(span.label)
        if groups and not begins and name == _tag(groups[-1][-1].label)[1]:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _tag(label: str) -> tuple[bool, str]:
    """Whether a label says that a span begins here, and the name of its class."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def _joined(tokenizer: Tokenizer, group: Sequence[Span]) -> Span:
    label = group[0].label.split("-", 1)[-1]
    score = float(np.mean([span.score for span in group]))
    return Span(label, score, _decoded(tokenizer, [span.word for span in group]), group[0].start, group[-1].end)


def _decoded(tokenizer: Tokenizer, words: list[str]) -> str:
    decoder: Any = tokenizer.backend.decoder
    return str(decoder.decode(words)) if decoder is not None else " ".join(words)


def _without_overlaps(spans: Iterable[Span]) -> list[Span]:
    """Of spans of several windows that overlap, the longest, or else the one with the best score."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if kept and kept[-1].start <= span.start < kept[-1].end:
            if (span.end - span.start, span.score) > (kept[-1].end - kept[-1].start, kept[-1].score):
                kept[-1] = span
        else:
            kept.append(span)
    return kept
