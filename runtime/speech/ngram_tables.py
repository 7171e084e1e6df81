"""The n-grams of a language model in sorted arrays: 24 bytes each."""

from __future__ import annotations

from array import array
from bisect import bisect_left

import numpy as np
import numpy.typing as npt

ROOT = 0  # the node of no words
NONE = 0  # `find` returns this for a missing n-gram; no n-gram is the root


class NgramTables:
    """A trie of n-grams. Its nodes are numbered: the root, the words in their order, then the longer n-grams by length.

    Each node of two words or more is found by its key, the number of its context times the number of words, plus its
    last word. As longer contexts have higher numbers, all the keys together are sorted.

        keys      int64   of the nodes from 1 + words on
        log_prob  float32 of each node: log10 of the probability of its last word after the others
        backoff   float32 of each node: log10 of its back-off weight, 0 without one
        suffix    int64   of each node: the longest end of its words, without the first, that is a node
    """

    def __init__(self, log_prob: array[float], backoff: array[float]):
        """Begin with the words: `log_prob` and `backoff` [words]."""
        self.words = len(log_prob)
        self.keys = array("q")
        self.log_prob = array("f", [0.0, *log_prob])
        self.backoff = array("f", [0.0, *backoff])
        self.suffix = array("q", bytes(8 * (1 + self.words)))
        self._longest = 1  # the first node of the longest n-grams, after which no state is longer

    def find(self, context: int, word: int) -> int:
        """The node of `context` followed by `word`, or `NONE`."""
        if context == ROOT:
            return 1 + word
        key = context * self.words + word
        place = bisect_left(self.keys, key)
        return 1 + self.words + place if place < len(self.keys) and self.keys[place] == key else NONE

    def state(self, node: int) -> int:
        """The state after the words of `node`: itself, or its suffix if no n-gram is longer."""
        return self.suffix[node] if node >= self._longest else node

    def add(self, keys: array[int], log_prob: array[float], backoff: array[float]) -> int | None:
        """Add the n-grams of the next length, in any order; return the place of one that is there twice, else None."""
        unsorted = np.frombuffer(keys, np.int64)
        order = np.argsort(unsorted, kind="stable")
        found = unsorted[order]
        if len(twice := np.flatnonzero(found[1:] == found[:-1])):
            return int(order[twice[0] + 1])
        self._longest = len(self.log_prob)
        self.keys.frombytes(found.tobytes())
        self.log_prob.frombytes(np.frombuffer(log_prob, np.float32)[order].tobytes())
        self.backoff.frombytes(np.frombuffer(backoff, np.float32)[order].tobytes())
        self.suffix.frombytes(self._suffixes(found).tobytes())
        return None

    def _suffixes(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The suffix of each new node: that of its context followed by its word, or of that one's suffix, and so on."""
        all_keys, suffix = np.frombuffer(self.keys, np.int64), np.frombuffer(self.suffix, np.int64)
        contexts, words = np.divmod(keys, self.words)
        contexts = suffix[contexts]
        nodes = np.where(contexts == ROOT, 1 + words, NONE)
        while len(open_ := np.flatnonzero(nodes == NONE)):
            wanted = contexts[open_] * self.words + words[open_]
            places = np.minimum(np.searchsorted(all_keys, wanted), len(all_keys) - 1)
            there = all_keys[places] == wanted
            nodes[open_[there]] = 1 + self.words + places[there]
            lost = open_[~there]
            contexts[lost] = suffix[contexts[lost]]
            nodes[lost[contexts[lost] == ROOT]] = 1 + words[lost[contexts[lost] == ROOT]]
        return nodes
