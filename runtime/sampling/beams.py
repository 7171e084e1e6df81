"""The candidates of a beam search: which texts are extended, and which have ended. It runs no model itself.

Candidates, scores and the end are those of `transformers`, so that the texts are equal to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError

Floats = npt.NDArray[np.float32]

NEVER = np.float32(-1e9)  # the score of what may not be chosen, as long as there is something else


@dataclass(frozen=True)
class BeamOptions:
    """How texts are searched. Raises `UsageError` for values out of range."""

    beams: int = 4  # texts that are extended at a time
    max_new_tokens: int = 256
    min_new_tokens: int = 0  # no end token before
    length_penalty: float = 1.0  # a text's log-probability is divided by its length to this power
    no_repeat_ngram: int = 0  # no sequence of so many tokens occurs twice; 0: they may
    early_stopping: bool = False  # end when there are as many finished texts as beams

    def __post_init__(self) -> None:
        for name, value, least in (
            ("beams", self.beams, 1),
            ("max new tokens", self.max_new_tokens, 1),
            ("min new tokens", self.min_new_tokens, 0),
            ("no repeat ngram", self.no_repeat_ngram, 0),
        ):
            if value < least:
                raise UsageError(f"{name} {value}: expected at least {least}.")
        if not np.isfinite(self.length_penalty):
            raise UsageError(f"length penalty {self.length_penalty}: expected a finite number.")


@dataclass
class Beam:
    """A text that is extended: its tokens, its log-probability, and the row whose cache holds it."""

    tokens: list[int]
    score: np.float32
    row: int


@dataclass
class Found:
    """A place for a finished text; `finished`: whether it holds one."""

    tokens: list[int] = field(default_factory=list)
    score: np.float32 = NEVER
    finished: bool = False


class Search:
    """The search for one prompt, in the rows of a session from `first` on."""

    def __init__(
        self,
        options: BeamOptions,
        start: Sequence[int],
        counted: int,
        ends: Sequence[int],
        first: int,
        never: Sequence[int],
    ):
        """`start`: the tokens before the text, of which the first `counted` are no part of its length.

        `ends`: end tokens. `never`: tokens that are not chosen.
        """
        self._options, self._counted, self._ends, self._never = options, counted, list(ends), list(never)
        self._limit = len(start) + options.max_new_tokens
        self.prompt = len(start)  # tokens
        self.rows = range(first, first + options.beams)
        self.beams = [
            Beam(list(start), np.float32(0) if place == 0 else NEVER, row) for place, row in enumerate(self.rows)
        ]
        self._found = [Found() for _ in self.rows]
        self._may_improve = True
        self.ended = False

    @property
    def finished(self) -> list[Found]:
        """The finished texts that are kept, the one with the highest score first."""
        return [each for each in self._found if each.finished]

    @property
    def best(self) -> Found:
        """The finished text with the highest score."""
        return self._found[0]

    def advance(self, logits: Floats) -> list[tuple[int, int]]:
        """Choose the next beams from the logits [beams, vocabulary] after each beam.

        Return the copies (from a row, to a row) that the caches need before the beams are extended.
        """
        options, length = self._options, len(self.beams[0].tokens)
        scores = log_softmax(logits)
        scores[:, self._never] = -np.inf
        if length - self.prompt < options.min_new_tokens:
            scores[:, self._ends] = -np.inf
        if options.no_repeat_ngram:
            for row, beam in enumerate(self.beams):
                scores[row, repeating(beam.tokens, options.no_repeat_ngram)] = -np.inf
        return self.extend(scores)

    def extend(self, log_probs: Floats) -> list[tuple[int, int]]:
        """The same from the log-probabilities [beams, vocabulary] of the tokens that may follow each beam."""
        options, length = self._options, len(self.beams[0].tokens)
        scores = log_probs + np.array([beam.score for beam in self.beams], np.float32)[:, None]
        kept = max(2, 1 + len(self._ends)) * options.beams
        chosen = highest(scores.ravel(), kept)
        parents, tokens = np.divmod(chosen, scores.shape[1])
        values = scores.ravel()[chosen]
        hits = np.isin(tokens, self._ends) | (length + 1 >= self._limit)
        going_on = values + np.where(hits, NEVER, np.float32(0))
        following = highest(going_on, options.beams)
        beams = [
            Beam([*self.beams[parents[each]].tokens, int(tokens[each])], going_on[each], int(parents[each]))
            for each in following
        ]
        self._keep_finished(parents, tokens, values, hits, length)
        copies = self._place(beams)
        self._check_end(bool(hits.all()), length + 1)
        return copies

    def _keep_finished(
        self,
        parents: npt.NDArray[np.intp],
        tokens: npt.NDArray[np.intp],
        values: Floats,
        hits: npt.NDArray[np.bool_],
        length: int,
    ) -> None:
        """Let the candidates that ended now, of the best `beams`, compete with those that ended before."""
        options = self._options
        ended = hits & (np.arange(len(hits)) < options.beams)
        marked = values / np.float32((length + 1 - self._counted) ** options.length_penalty)
        full = options.early_stopping and all(each.finished for each in self._found)
        for reason in (np.full(len(hits), full), np.full(len(hits), not self._may_improve), ~ended):
            marked = marked + np.where(reason, NEVER, np.float32(0))
        candidates = [
            Found([*self.beams[parent].tokens, int(token)], score, bool(end))
            for parent, token, score, end in zip(parents, tokens, marked, ended, strict=True)
        ]
        every = [*self._found, *candidates]
        self._found = [every[place] for place in highest(np.array([each.score for each in every]), options.beams)]

    def _place(self, beams: list[Beam]) -> list[tuple[int, int]]:
        """Give each of `beams`, which name the number of their parent, a row; return the copies between rows.

        The first child of a beam stays in its row. No copy overwrites a row that another one reads.
        """
        rows = [beam.row for beam in self.beams]
        free = [row for place, row in enumerate(rows) if place not in {beam.row for beam in beams}]
        taken: set[int] = set()
        copies = []
        for beam in beams:
            parent = beam.row
            beam.row = rows[parent] if parent not in taken else free.pop()
            if parent in taken:
                copies.append((rows[parent], beam.row))
            taken.add(parent)
        self.beams = beams
        return copies

    def _check_end(self, all_hit: bool, length: int) -> None:
        options = self._options
        possible = self.beams[0].score / np.float32((length - self._counted) ** options.length_penalty)
        worst = min(each.score for each in self._found)
        self._may_improve &= any(possible > (worst if each.finished else NEVER) for each in self._found)
        complete = options.early_stopping and all(each.finished for each in self._found)
        self.ended = not self._may_improve or complete or all_hit


def log_softmax(logits: Floats) -> Floats:
    """The logarithms of the probabilities along the last axis."""
    shifted: Floats = logits - logits.max(-1, keepdims=True)
    total: Floats = np.exp(shifted).sum(-1, keepdims=True)
    shifted -= np.log(total)
    return shifted


def highest(scores: Floats, count: int) -> npt.NDArray[np.intp]:
    """The places of the `count` highest of `scores` [any], the highest first; of equal ones, the first comes first."""
    if count < len(scores):
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
        places = np.sort(np.concatenate([above, equal[: count - len(above)]]))
    else:
        places = np.arange(len(scores))
    return places[np.argsort(-scores[places], kind="stable")]


def repeating(tokens: Sequence[int], length: int) -> list[int]:
    """The tokens that would complete a sequence of `length` tokens which occurs in `tokens` already."""
    last = list(tokens[len(tokens) - length + 1 :])
    if len(tokens) < length:
        return []
    return [
        tokens[place + length - 1]
        for place in range(len(tokens) - length + 1)
        if list(tokens[place : place + length - 1]) == last
    ]
