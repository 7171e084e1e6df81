"""Self-drafting by hidden transfer or Medusa heads: each pass verifies a tree of drafts and makes the next drafts.

Each pass returns the model's own distribution after every token of the tree. The path that the model agrees with is
accepted, and the drafts after its last token form the next tree (Hidden Transfer, section 3.4). The paper drafts after
every token of the tree; here only after the few that are likely to be the last of the path, because on a CPU the pseudo
states of the others cost more time than they save. Paths are also extended with n-gram drafts, copied
from earlier in the text: the model drafts two or three tokens ahead, an n-gram draft is as long as the repetition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from intaglio.bundle.bundle import Axis
from intaglio.errors import UsageError
from intaglio.networks.drafts import HIDDEN_TRANSFER, MEDUSA
from intaglio.runtime.sampling.likelihood import softmax
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.device_logits import StepLogits
from intaglio.runtime.sessions.token_tree import depths
from intaglio.runtime.strategies.contract import Emitted, GeneratedSequence, Steps, Strategy
from intaglio.runtime.strategies.ngram_drafts import NgramDrafter
from intaglio.runtime.strategies.options import option
from intaglio.runtime.strategies.tree_growth import Tree, grow
from intaglio.runtime.strategies.verification import check_count, check_probability


@dataclass(frozen=True)
class DraftTree(Strategy):
    """The model chooses every token, so the text is the same as without drafts, or has the same distribution.

    With `typical`, draft tokens with a probability of at least min(typical, sqrt(typical)·exp(-entropy)) at a
    temperature of 1 are accepted too (Medusa's typical acceptance).
    """

    needs_draft: ClassVar[bool] = False
    kind: ClassVar[str]
    tree: int = option(8, "maximum draft tokens in a tree")
    min_draft_prob: float = option(0.05, "minimum draft probability")  # of a path, up to its last token
    # Those tokens of a tree that are most likely to be the last of the path.
    draft_positions: int = option(1, "number of tokens in a tree to draft after")
    ngram: int = option(6, "longest n-gram to look up in the text so far, 0 for none")
    typical: float | None = option(None, "also accept draft tokens of this probability; changes the text")

    def __post_init__(self) -> None:
        check_count("tree", self.tree)
        check_count("draft positions", self.draft_positions)
        check_count("ngram", self.ngram, least=0)
        check_probability("min draft prob", self.min_draft_prob)
        if self.typical is not None:
            check_probability("typical", self.typical)

    def prepare(self, target: DecoderSession, draft: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` for a model that does not draft this way."""
        if target.decoder.draft_kind != self.kind:
            drafts = f"drafts with {target.decoder.draft_kind}" if target.decoder.draft_kind else "has no drafts"
            raise UsageError(
                f"strategy {self.kind!r}: the bundle's model {drafts}. "
                f"Train it (intaglio train {self.kind}), export the result, and generate with that bundle."
            )
        most = target.engine.axes.get("drafting", Axis()).maximum
        if most is not None and self.draft_positions > most:
            raise UsageError(
                f"draft positions {self.draft_positions}: the engine drafts after at most {most} tokens at a time."
            )

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        return self.write_trees(sequence, len)

    def write_trees(self, sequence: GeneratedSequence, enough: Callable[[Sequence[float]], int]) -> Steps:
        """Generate. `enough`: returns how many of a tree's tokens to verify, given their chances of acceptance."""
        target, sampler = sequence.target, sequence.sampler
        drafter = NgramDrafter(self.ngram)
        logits = yield target.forward(sequence.tokens)
        token, drafts = sampler.choose(logits[0], sequence.tokens), target.drafts[0]
        while True:
            yield Emitted(token, "large")
            drafter.extend(sequence.tokens)
            most = min(self.tree, sequence.remaining - 1, target.max_tree_tokens(self.draft_positions) - 1)
            tree = grow(token, drafts, most, self.min_draft_prob, drafter, sequence.allows)
            tree = tree.first(enough(tree.chances[1:]))
            origins, start = tree.likely_ends(self.draft_positions), len(sequence.tokens) - 1
            logits = yield target.append_tree(sequence.tokens[:start], tree.tokens, tree.parents, origins)
            path, token = self._walk(sequence, tree, logits)
            target.keep(start, path)
            drafter.observe([*(tree.tokens[place] for place in path[1:]), token])
            drafts = drafts_after(path, origins, target.drafts)
            ahead = depths(tree.parents)
            # By depth, rejected tokens first: a trace shows them in the place of the accepted one.
            for place in sorted(range(1, len(ahead)), key=lambda place: (ahead[place], place in path)):
                yield Emitted(tree.tokens[place], "small", rolled_back=place not in path)

    def _walk(self, sequence: GeneratedSequence, tree: Tree, logits: StepLogits) -> tuple[list[int], int]:
        """Return the places of the accepted path, from the root on, and the token that the model chooses after it."""
        path, seen = [0], list(sequence.tokens)
        while True:
            here = logits[path[-1]]
            chosen = sequence.sampler.choose(here, seen)
            children = {tree.tokens[place]: place for place, parent in enumerate(tree.parents) if parent == path[-1]}
            if chosen not in children and self.typical and children:
                likely = softmax(sequence.sampler.penalised(here, seen))
                best = max(children, key=lambda token: likely[token])
                entropy = -float((likely * np.log(likely, where=likely > 0, out=np.zeros_like(likely))).sum())
                if likely[best] >= min(self.typical, math.sqrt(self.typical) * math.exp(-entropy)):
                    chosen = best
            if chosen not in children:
                return path, chosen
            path.append(children[chosen])
            seen.append(chosen)


@dataclass(frozen=True)
class HiddenTransfer(DraftTree):
    """Drafts from pseudo hidden states that run through the model's later layers."""

    kind: ClassVar[str] = HIDDEN_TRANSFER


@dataclass(frozen=True)
class Medusa(DraftTree):
    """Drafts from the model's last hidden states, for comparison."""

    kind: ClassVar[str] = MEDUSA


DRAFT_TREES: Mapping[str, type[DraftTree]] = {tree.kind: tree for tree in (HiddenTransfer, Medusa)}


def drafts_after(path: Sequence[int], origins: Sequence[int], drafts: StepLogits) -> StepLogits:
    """Return the drafts after the last token of a path, [steps, vocab], from `drafts` [origins, steps, vocab].

    If the last token is not an origin, these are the remaining drafts of the nearest origin before it.
    """
    for ahead, place in enumerate(reversed(path)):
        if place in origins:
            return drafts[origins.index(place), ahead:]
    return drafts[0, :0]
