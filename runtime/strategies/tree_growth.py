"""Trees of tokens that may follow a text: of what a model drafts and what the text repeats, the likeliest first."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from intaglio.runtime.generation.sampling import likeliest
from intaglio.runtime.sessions.decoder import Logits
from intaglio.runtime.strategies.copies import Copies

COPIED = -1  # the rank of a token that is no draft of the model's


class Tree(NamedTuple):
    """A token that is certain, and what may follow it: a token after the one before it, the likeliest first."""

    tokens: list[int]
    parents: list[int]  # the places of the tokens before each; -1 for the first
    chances: list[float]  # that the text goes on as the path to each does

    def first(self, drafted: int) -> Tree:
        """The tree of the first token and the `drafted` likeliest after it."""
        size = 1 + drafted
        return Tree(self.tokens[:size], self.parents[:size], self.chances[:size])

    def likely_ends(self, most: int) -> list[int]:
        """The places, ascending, of at most `most` tokens: the likeliest to be the last ones which are kept.

        A path goes on in one of its children, or ends.
        """
        ends = list(self.chances)
        for parent, chance in zip(self.parents, self.chances, strict=True):
            if parent >= 0:
                ends[parent] -= chance
        return sorted(sorted(range(len(ends)), key=lambda place: -ends[place])[:most])


def grow(root: int, drafts: Logits, most: int, least: float, copies: Copies) -> Tree:
    """The tree of `root` and the likeliest paths after it.

    drafts  [steps, vocab], logits of the tokens after `root`, each step's thought to depend on no other
    most    tokens besides `root`
    least   the chance of a path up to its last token
    copies  what may follow the text, and each path; of a token that is both drafted and copied the higher chance counts
    """
    steps = [likeliest(logits, most) for logits in drafts] if most > 0 else []
    tree, paths = Tree([root], [-1], [1.0]), [list[int]()]
    # Tokens that may be next: (chance of the path to them, negated; parent; token; rank among the step's drafts)
    ahead: list[tuple[float, int, int, int]] = []

    def draft(parent: int, rank: int) -> None:
        step = len(paths[parent])
        if step < len(steps) and rank < len(steps[step][0]):
            candidates, chances = steps[step]
            heapq.heappush(ahead, (-tree.chances[parent] * chances[rank], parent, candidates[rank], rank))

    def branch(parent: int) -> None:
        draft(parent, 0)
        if copy := copies.after(paths[parent]):
            heapq.heappush(ahead, (-tree.chances[parent] * copy.chance, parent, copy.token, COPIED))

    branch(0)
    while ahead and len(tree.tokens) <= most:
        negated, parent, token, rank = heapq.heappop(ahead)
        if -negated < least:
            break
        if rank != COPIED:
            draft(parent, rank + 1)
        path = [*paths[parent], token]
        if path not in paths:
            tree.tokens.append(token)
            tree.parents.append(parent)
            tree.chances.append(-negated)
            paths.append(path)
            branch(len(paths) - 1)
    return tree
