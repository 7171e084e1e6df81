"""Word n-gram language models with back-off."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from intaglio.runtime.speech.arpa import read_arpa
from intaglio.runtime.speech.ngram_tables import ROOT, NgramTables

BEGIN, END = "<s>", "</s>"
UNKNOWN = ("<unk>", "<UNK>")
NO_WORD = -90.0  # log10; below, an ARPA file means "never", as for <s>


class NgramModel:
    """Probabilities of words after the words before them (Katz 1987 back-off, the meaning of ARPA files).

        p(w | a b) = p(a b w) of the file if it has that n-gram, else backoff(a b) * p(w | b)

    with a back-off of 1 for contexts that the file does not have. A state is the longest end of the words so far that
    the file has as a context; it is an int, so that states can be compared and kept cheaply.

    A word that the model does not have counts as its <unk>; without one, as its rarest word, with no state after it.
    """

    def __init__(self, words: Mapping[str, int], tables: NgramTables):
        self._words = words
        self._tables = tables
        self._unknown = next((words[name] for name in UNKNOWN if name in words), None)
        probabilities = (tables.log_prob[1 + number] for number in words.values())
        self._rarest = min((value for value in probabilities if value > NO_WORD), default=0.0)

    @classmethod
    def open(cls, path: str | Path) -> NgramModel:
        """Read an ARPA file, plain or compressed (.gz). Raises `UsageError` with the line that is wrong."""
        return cls(*read_arpa(Path(path)))

    @property
    def begin(self) -> int:
        """The state at the beginning of a sentence."""
        return 1 + self._words[BEGIN] if BEGIN in self._words else ROOT

    def __contains__(self, word: str) -> bool:
        return word in self._words

    def score(self, state: int, word: str) -> tuple[float, int]:
        """The log10 probability of `word` in `state`, and the state after it."""
        tables, number, total = self._tables, self._words.get(word, self._unknown), 0.0
        while number is None or not (found := tables.find(state, number)):
            if state == ROOT:
                return total + self._rarest, ROOT
            total += tables.backoff[state]
            state = tables.suffix[state]
        return total + tables.log_prob[found], tables.state(found)
