"""Grow draft trees from a model's drafts and from n-gram drafts, most probable tokens first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from intaglio.runtime.sampling.likelihood import likeliest
from intaglio.runtime.sessions.device_logits import StepLogits
from intaglio.runtime.strategies.ngram_drafts import NgramDrafter

COPIED = -1  # the rank of a copied token, which is not a draft of the model


class Tree(NamedTuple):
    """A tree whose root is final and whose other tokens are drafts; parents precede children, in descending chance."""

    tokens: list[int]
    parents: list[int]  # the places of the tokens before each; -1 for the first
    chances: list[float]  # probability that the path to each token is accepted

    def first(self, drafted: int) -> Tree:
        """Return the tree of the root and the `drafted` most probable tokens after it."""
        size = 1 + drafted
        return Tree(self.tokens[:size], self.parents[:size], self.chances[:size])

    def likely_ends(self, most: int) -> list[int]:
        """Return the places, ascending, of the `most` tokens that are most likely to be the last accepted one.

        A path continues with one of its children, or ends.
        """
        ends = list(self.chances)
        for parent, chance in zip(self.parents, self.chances, strict=True):
            if parent >= 0:
                ends[parent] -= chance
        return sorted(sorted(range(len(ends)), key=lambda place: -ends[place])[:most])


def grow(
    root: int,
    drafts: StepLogits,
    most: int,
    least: float,
    drafter: NgramDrafter,
    allows: Callable[[Sequence[int]], bool] = lambda path: True,
) -> Tree:
    """Build the tree of `root` and the most probable paths after it.

    drafts  [steps, vocab], logits of the tokens after `root`; steps are assumed to be independent
    most    maximum number of tokens besides `root`
    least   minimum chance of a path
    drafter proposes tokens after the text and each path; a token from both sources has the higher of the two chances
    allows  whether a path after `root` may be in the tree
    """
    steps = likeliest(drafts, most) if most > 0 and len(drafts) else []
    tree, paths = Tree([root], [-1], [1.0]), [list[int]()]
    # Candidates: (-chance of the path to the token, parent, token, rank among the step's drafts)
    ahead: list[tuple[float, int, int, int]] = []

    def draft(parent: int, rank: int) -> None:
        step = len(paths[parent])
        if step < len(steps) and rank < len(steps[step][0]):
            candidates, chances = steps[step]
            heapq.heappush(ahead, (-tree.chances[parent] * chances[rank], parent, candidates[rank], rank))

    def branch(parent: int) -> None:
        draft(parent, 0)
        if copied := drafter.after(paths[parent]):
            heapq.heappush(ahead, (-tree.chances[parent] * copied.chance, parent, copied.token, COPIED))

    branch(0)
    while ahead and len(tree.tokens) <= most:
        negated, parent, token, rank = heapq.heappop(ahead)
        if -negated < least:
            break
        if rank != COPIED:
            draft(parent, rank + 1)
        path = [*paths[parent], token]
        if path not in paths and allows(path):
            tree.tokens.append(token)
            tree.parents.append(parent)
            tree.chances.append(-negated)
            paths.append(path)
            branch(len(paths) - 1)
    return tree
