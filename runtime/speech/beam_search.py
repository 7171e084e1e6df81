"""CTC prefix beam search, with a word n-gram model (Hannun et al. 2014, arXiv:1408.2873, algorithm 1)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from intaglio.errors import UsageError
from intaglio.runtime.speech.ctc import LogProbs, Token, check_log_probs
from intaglio.runtime.speech.ngram_model import NgramModel
from intaglio.runtime.speech.prefixes import NEVER, Paths, Prefix, PrefixTree
from intaglio.runtime.speech.vocabulary import Vocabulary

SETTLE = 64  # frames after which the tokens that all prefixes share become final
SMALL = 1e-50  # the paths are scaled up if none is more probable; those 1e-250 times less probable count as none
_FIRST = itemgetter(0)


@dataclass(frozen=True)
class CtcBeamOptions:
    """Pruning of the beam, and the weight of the language model.

    The score of a text is ln p(text | audio) + alpha * ln p(text) + beta * words; without a language model only the
    first term. The defaults are pyctcdecode's, but for `unknown_word`.
    """

    width: int = 100  # prefixes kept after each frame
    min_log_prob: float = -5.0  # tokens less probable than this in a frame are left out, but for the best one
    max_gap: float = 10.0  # prefixes whose score is lower than the best one's by more than this are dropped
    alpha: float = 0.5
    beta: float = 1.5
    unknown_word: float = -5.0  # added to the log10 probability of a word that the language model does not have
    max_open_frames: int = 100  # tokens that ended longer ago become final, as in the best prefix

    def __post_init__(self) -> None:
        if self.width < 1:
            raise UsageError(f"beam width {self.width}, expected at least 1.")
        if self.max_open_frames < 1:
            raise UsageError(f"beam max_open_frames {self.max_open_frames}, expected at least 1.")
        if not self.max_gap > 0:
            raise UsageError(f"beam max_gap {self.max_gap}, expected above 0.")
        if not self.min_log_prob <= 0:
            raise UsageError(f"beam min_log_prob {self.min_log_prob}, expected at most 0.")
        for name in ("alpha", "beta", "unknown_word"):
            if not math.isfinite(getattr(self, name)):
                raise UsageError(f"beam {name} {getattr(self, name)}, expected a number.")


class Hypothesis(NamedTuple):
    """A hypothesis of the spoken text."""

    tokens: list[Token]
    score: float  # see `CtcBeamOptions`
    log_prob: float  # ln p(tokens | audio), summed over all alignments that were kept


class BeamDecoder:
    """Keeps the most probable prefixes of the text, each with the sum of all of its alignments.

    With a width, threshold and gap that leave nothing out, the result of `max_open_frames` frames is exact. The time
    stamps of a hypothesis come from its most probable alignment.

    Every `SETTLE` frames, tokens become final: those that all prefixes share, and those of the best prefix that ended
    `max_open_frames` ago (prefixes without them are dropped; else two texts of equal probability would stay
    undecided). At the border between final and later tokens the times of two alignments meet.
    """

    def __init__(self, vocabulary: Vocabulary, options: CtcBeamOptions | None = None, model: NgramModel | None = None):
        self._options = options or CtcBeamOptions()
        self._vocabulary = vocabulary
        self._tree = PrefixTree(vocabulary, model, self._options.alpha, self._options.beta, self._options.unknown_word)
        self._beam: dict[Prefix, Paths] = {self._tree.root: Paths(1.0, 0.0)}
        self._scale = 0.0  # ln of the factor by which the probabilities of all paths have been divided
        self._frame = 0
        self._after = 0  # the frame after the last final token

    def advance(self, log_probs: LogProbs) -> list[Token]:
        """Take the next frames; return the tokens that became final."""
        check_log_probs(log_probs, len(self._vocabulary), self._frame)
        final: list[Token] = []
        for tokens in _kept(log_probs, self._options.min_log_prob):
            if len(tokens) == 1 and tokens[0][0] == self._vocabulary.blank:
                self._blank(tokens[0][2])
            else:
                self._prune(self._extend(tokens))
            self._frame += 1
            if self._frame % SETTLE == 0:
                final += self._settle()
        return final

    def pending(self) -> list[Token]:
        """The tokens of the best prefix after the final ones."""
        best = max(self._beam, key=lambda prefix: self._log_prob(prefix) + prefix.language)
        return self._tokens(best)

    def finish(self) -> list[Token]:
        """Return the tokens of the best hypothesis after the final ones."""
        return self.hypotheses()[0].tokens

    def hypotheses(self) -> list[Hypothesis]:
        """The hypotheses if the recording ends here, best first, without the final tokens."""
        found = []
        for prefix in self._beam:
            log_prob = self._log_prob(prefix)
            score = log_prob + prefix.language + self._tree.end(prefix)
            found.append(Hypothesis(self._tokens(prefix), score, log_prob))
        return sorted(found, key=lambda each: -each.score)

    def _blank(self, log_prob: float) -> None:
        """Take a frame in which nothing but the blank is probable: no prefix changes, nor their order."""
        for paths in self._beam.values():
            if paths.best_token > paths.best_blank:
                paths.best_blank, paths.blank_times = paths.best_token, paths.token_times
            paths.blank += paths.token
            paths.best_blank += log_prob
            paths.token, paths.best_token, paths.token_times = 0.0, NEVER, None
        self._scale += log_prob

    def _extend(self, tokens: list[tuple[int, float, float]]) -> dict[Prefix, Paths]:
        """The paths of all prefixes after a frame with these tokens: index, probability, and its logarithm."""
        following: dict[Prefix, Paths] = {}
        frame, blank = self._frame, self._vocabulary.blank
        for prefix, paths in self._beam.items():
            total, best, times = paths.blank + paths.token, paths.best_blank, paths.blank_times
            if paths.best_token > best:
                best, times = paths.best_token, paths.token_times
            stays = following.get(prefix)  # there if a shorter prefix has come to it
            if stays is None:
                stays = following[prefix] = Paths()
            for token, probability, log_prob in tokens:
                if token == blank:
                    stays.blank, stays.best_blank, stays.blank_times = total * probability, best + log_prob, times
                    continue
                mass, highest, before = total, best, times
                if token == prefix.token:  # without a blank the token continues, after one it repeats
                    stays.extend_last(paths, probability, log_prob, frame)
                    mass, highest, before = paths.blank, paths.best_blank, paths.blank_times
                    if not mass:
                        continue
                child = prefix.children.get(token) or self._tree.grow(prefix, token)
                into = following.get(child)
                if into is None:
                    into = following[child] = Paths()
                into.enter(mass * probability, highest + log_prob, before, frame, log_prob)
        return following

    def _prune(self, following: dict[Prefix, Paths]) -> None:
        """Keep the best prefixes."""
        ranked = [
            (math.log(total) + prefix.language, total, prefix, paths)
            for prefix, paths in following.items()
            if (total := paths.blank + paths.token)
        ]
        ranked.sort(key=_FIRST, reverse=True)
        lowest = ranked[0][0] - self._options.max_gap
        kept = [each for each in ranked[: self._options.width] if each[0] >= lowest]
        self._beam = {prefix: paths for _, _, prefix, paths in kept}
        largest = max(total for _, total, _, _ in kept)
        if largest < SMALL:
            for paths in self._beam.values():
                paths.blank /= largest
                paths.token /= largest
            self._scale += math.log(largest)

    def _settle(self) -> list[Token]:
        """Make tokens final, except the last shared one, which may continue, unless it ended long ago."""
        best = max(self._beam, key=lambda prefix: self._log_prob(prefix) + prefix.language)
        tokens, decided = self._tokens(best), self._frame - self._options.max_open_frames
        if old := sum(token.last < decided for token in tokens):
            node = self._tree.ancestor(best, old)
            self._beam = {prefix: paths for prefix, paths in self._beam.items() if self._tree.below(prefix, node)}
        shared = self._tree.common(self._beam)
        count = max(old, shared.depth - self._tree.root.depth - 1)
        if count == 0:
            return []
        root = self._tree.ancestor(shared, count)
        self._tree.begin_at(root)
        self._after = tokens[count - 1].last + 1
        for prefix, paths in self._beam.items():
            paths.keep_times(prefix.depth - root.depth)
        if root in self._beam and not self._beam[root].end():
            del self._beam[root]
        return tokens[:count]

    def _log_prob(self, prefix: Prefix) -> float:
        paths = self._beam[prefix]
        return math.log(paths.blank + paths.token) + self._scale

    def _tokens(self, prefix: Prefix) -> list[Token]:
        """The tokens of a prefix after the final ones, none of which they overlap."""
        found, after = [], self._after
        for index, (first, last, log_prob) in zip(self._tree.tokens(prefix), self._beam[prefix].times(), strict=True):
            first = max(first, after)
            after = max(first, last) + 1
            found.append(Token(index, first, after - 1, log_prob))
        return found


def beam_search(
    log_probs: LogProbs, vocabulary: Vocabulary, options: CtcBeamOptions | None = None, model: NgramModel | None = None
) -> list[Hypothesis]:
    """Decode a whole recording: log_probs [frames, vocabulary] -> hypotheses, best first."""
    decoder = BeamDecoder(vocabulary, options, model)
    final = decoder.advance(log_probs)
    return [each._replace(tokens=final + each.tokens) for each in decoder.hypotheses()]


def _kept(log_probs: LogProbs, least: float) -> Iterator[list[tuple[int, float, float]]]:
    """Of each frame the tokens of at least this log-probability, and the best one: index, probability, logarithm."""
    kept = (log_probs >= least) & (log_probs > NEVER)
    kept[np.arange(len(log_probs)), log_probs.argmax(axis=1)] = True
    frames, tokens = np.nonzero(kept)
    values = np.minimum(log_probs[frames, tokens].astype(np.float64), 0.0)
    found = list(zip(tokens.tolist(), np.exp(values).tolist(), values.tolist(), strict=True))
    borders = np.searchsorted(frames, np.arange(len(log_probs) + 1)).tolist()
    for start, end in itertools.pairwise(borders):
        yield found[start:end]
