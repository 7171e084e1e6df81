"""The prefixes of a beam search: a tree of tokens, with the language model's score of each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

from intaglio.runtime.speech.ngram_model import END, NgramModel
from intaglio.runtime.speech.vocabulary import Vocabulary

NEVER = -math.inf  # the logarithm of what is impossible

Times: TypeAlias = "tuple[Times, int, int, float] | None"


class Prefix:
    """The tokens from the root to this node."""

    __slots__ = ("children", "depth", "language", "parent", "state", "token", "word")

    def __init__(self, parent: Prefix | None, token: int, depth: int, language: float, state: int, word: str):
        self.parent = parent
        self.token = token  # -1 at the root
        self.depth = depth  # number of tokens
        self.language = language  # weighted score of the complete words, natural logarithm
        self.state = state  # of the language model, after the complete words
        self.word = word  # text of the word that is not complete; empty without a language model
        self.children: dict[int, Prefix] = {}


class PrefixTree:
    """Makes each prefix once, and scores its words as they become complete."""

    def __init__(
        self, vocabulary: Vocabulary, model: NgramModel | None, alpha: float, beta: float, unknown_word: float
    ):
        self._pieces = vocabulary.pieces
        self._model = model
        self._alpha = alpha * math.log(10)  # the model's logarithms are to base 10
        self._beta = beta
        self._unknown_word = unknown_word
        self.root = Prefix(None, -1, 0, 0.0, model.begin if model is not None else 0, "")

    def grow(self, prefix: Prefix, token: int) -> Prefix:
        """Add the child of `prefix` with this token, which it does not have yet."""
        language, state, word = prefix.language, prefix.state, prefix.word
        if self._model is not None:
            first, *others = self._pieces[token]
            word += first
            for piece in others:
                if word:
                    added, state = self._word(state, word)
                    language += added
                word = piece
        child = prefix.children[token] = Prefix(prefix, token, prefix.depth + 1, language, state, word)
        return child

    def end(self, prefix: Prefix) -> float:
        """The increase of the score of `prefix` if the recording ends: its last word, and the end of the sentence."""
        if self._model is None:
            return 0.0
        added, state = self._word(prefix.state, prefix.word) if prefix.word else (0.0, prefix.state)
        return added + (self._alpha * self._model.score(state, END)[0] if END in self._model else 0.0)

    def _word(self, state: int, word: str) -> tuple[float, int]:
        assert self._model is not None
        log10, state = self._model.score(state, word)
        if word not in self._model:
            log10 += self._unknown_word
        return self._alpha * log10 + self._beta, state

    def common(self, live: Iterable[Prefix]) -> Prefix:
        """Drop all nodes but the `live` ones and those on the way to them; return the last that all have in common."""
        live = list(live)
        on_the_way: set[Prefix] = set()
        for prefix in live:
            node: Prefix | None = prefix
            while node is not None and node not in on_the_way:
                on_the_way.add(node)
                node = node.parent
        for node in on_the_way:
            node.children = {token: child for token, child in node.children.items() if child in on_the_way}
        node, leaves = self.root, set(live)
        while node not in leaves and len(node.children) == 1:
            (node,) = node.children.values()
        return node

    def tokens(self, prefix: Prefix) -> list[int]:
        """The tokens from the root to `prefix`."""
        found = []
        while prefix is not self.root:
            found.append(prefix.token)
            prefix = _parent(prefix)
        return found[::-1]

    def ancestor(self, prefix: Prefix, tokens: int) -> Prefix:
        """The first `tokens` of those from the root to `prefix`."""
        depth = self.root.depth + tokens
        while prefix.depth > depth:
            prefix = _parent(prefix)
        return prefix

    def below(self, prefix: Prefix, node: Prefix) -> bool:
        """Whether `prefix` begins with the tokens of `node`, or is it."""
        return self.ancestor(prefix, node.depth - self.root.depth) is node

    def begin_at(self, node: Prefix) -> None:
        """Forget all that comes before `node`."""
        node.parent = None
        self.root = node


def _parent(prefix: Prefix) -> Prefix:
    assert prefix.parent is not None
    return prefix.parent


class Paths:
    """The alignments of one prefix with the frames so far: those that end in a blank, and those in its last token.

    `blank` and `token` are their summed probabilities, scaled; `best_blank` and `best_token` the logarithms of the most
    probable alignment of each kind, with the times of its tokens: a chain of (those before, first frame, last frame,
    highest logarithm of its frames).
    """

    __slots__ = ("best_blank", "best_token", "blank", "blank_times", "token", "token_times")

    def __init__(self, blank: float = 0.0, best_blank: float = NEVER):
        self.blank = blank
        self.token = 0.0
        self.best_blank = best_blank
        self.best_token = NEVER
        self.blank_times: Times = None
        self.token_times: Times = None

    def enter(self, probability: float, best: float, times: Times, frame: int, log_prob: float) -> None:
        """Add alignments in which the last token begins in `frame`."""
        self.token += probability
        if best > self.best_token:
            self.best_token = best
            self.token_times = (times, frame, frame, log_prob)

    def extend_last(self, before: Paths, probability: float, log_prob: float, frame: int) -> None:
        """Add those alignments of the frame `before` in which the last token continues."""
        self.token += before.token * probability
        best = before.best_token + log_prob
        if best > self.best_token:
            assert before.token_times is not None
            earlier, first, _, highest = before.token_times
            self.best_token = best
            self.token_times = (earlier, first, frame, max(highest, log_prob))

    def end(self) -> bool:
        """Drop the alignments in which the last token still continues; return whether there are others."""
        self.token, self.best_token = 0.0, NEVER
        return self.blank > 0

    def times(self) -> list[tuple[int, int, float]]:
        """First frame, last frame and highest logarithm of each token in the most probable alignment."""
        found = []
        times = self.blank_times if self.best_blank > self.best_token else self.token_times
        while times is not None:
            times, first, last, log_prob = times
            found.append((first, last, log_prob))
        return found[::-1]

    def keep_times(self, count: int) -> None:
        """Forget the times of all tokens but the last `count`."""
        self.blank_times = _last(self.blank_times, count)
        self.token_times = _last(self.token_times, count)


def _last(times: Times, count: int) -> Times:
    """The last `count` of a chain of times."""
    kept: list[tuple[Times, int, int, float]] = []
    while times is not None and len(kept) < count:
        kept.append(times)
        times = times[0]
    shorter: Times = None
    for _, first, last, log_prob in reversed(kept):
        shorter = (shorter, first, last, log_prob)
    return shorter
