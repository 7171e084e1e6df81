"""What a strategy is given, and what it gives.

A strategy is written for one text. It asks for a model's forward pass by yielding a `Forward`, and gets the logits back
as the value of that `yield`; it gives tokens by yielding them as `Written`. The scheduler (runtime/generation) answers
what several sequences wait for in one pass, and closes a strategy when its sequence is at its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import msgspec
import numpy as np

from intaglio.runtime.generation.sampling import Sampler
from intaglio.runtime.sessions.decoder import DecoderSession, Logits

NO_LOGITS: Logits = np.zeros((0, 0), np.float32)  # the answer where there is none, such as to a token
Author = Literal["small", "large"]  # what drafts, be it a model or not; the model whose text it is


class Calls(msgspec.Struct):
    """Forward passes of a draft model (small), and of the model whose text it is (large)."""

    small: int = 0
    large: int = 0


class Tokens(msgspec.Struct):
    """Tokens that went through each model, the prompt's among them."""

    small: int = 0
    large: int = 0


class Seconds(msgspec.Struct):
    """How long the text waited for each model."""

    small: float = 0.0
    large: float = 0.0


class Counts(msgspec.Struct):
    """What was done for one sequence. The scheduler keeps it."""

    calls: Calls = msgspec.field(default_factory=Calls)
    processed: Tokens = msgspec.field(default_factory=Tokens)
    seconds: Seconds = msgspec.field(default_factory=Seconds)
    accepted: int = 0  # drafted tokens that stand in the text
    rolled_back: int = 0  # drafted tokens that do not
    blocks: int = 0  # that computed the written tokens, all together; 0: the strategy leaves none out
    origins: int = 0  # tokens that the large model itself drafted after, in all passes

    def called(self, author: Author, tokens: int, seconds: float, origins: int = 0) -> None:
        """Count a forward pass of a decoder."""
        self.origins += origins if author == "large" else 0
        for counts, more in ((self.calls, 1), (self.processed, tokens), (self.seconds, seconds)):
            setattr(counts, author, getattr(counts, author) + more)

    def read(self, author: Author, seconds: float) -> None:
        """Count the time of an encoder."""
        setattr(self.seconds, author, getattr(self.seconds, author) + seconds)


class Written(NamedTuple):
    """A token: the next one of the text, or one that was drafted and is not taken."""

    token: int
    by: Author
    rolled_back: bool = False


class Forward(NamedTuple):
    """A request to read what a model's cache lacks of a sequence of tokens, and then a tree, if there is one.

    What the cache lacks is looked at when the pass is run: it may have been shortened, or filled, meanwhile.
    """

    model: CachedModel
    sequence: Sequence[int]
    wanted: int = (
        1  # logits are wanted after so many of its tokens, the last ones; with a tree, after those of the tree
    )
    tree: Sequence[int] = ()  # tokens that may follow the sequence
    parents: Sequence[int] = ()  # of the tree's tokens, see `token_tree`
    origins: Sequence[int] = ()  # the places of the tree's tokens that a model which drafts does so after


class ReadSource(NamedTuple):
    """A request to let the encoder of an encoder-decoder read what the sequence is written from."""

    model: CachedModel


class CachedModel:
    """A model with its cache of one text, which grows and is shortened, and never copied."""

    def __init__(self, session: DecoderSession, row: int, author: Author):
        """`row`: the text's place in the batch of `session`; `author`: as whose its calls count."""
        self.session, self.row, self.author = session, row, author
        self.drafts: Logits = NO_LOGITS  # [origins, drafts, vocab] of the last pass, of a model that drafts

    @property
    def length(self) -> int:
        """Tokens of the text that the cache holds."""
        return self.session.lengths[self.row]

    def follow(self, tokens: Sequence[int], wanted: int = 1) -> Forward:
        """The request to read what the cache does not hold yet of the sequence `tokens`.

        Its answer are the logits [wanted, vocab] after the last of them.
        """
        return Forward(self, tokens, wanted)

    def append_tree(
        self, sequence: Sequence[int], tokens: Sequence[int], parents: Sequence[int], origins: Sequence[int]
    ) -> Forward:
        """The request to read a tree of `tokens` after `sequence`, and to draft after those at the places `origins`.

        Its answer are the logits after each of the tree's tokens.
        """
        return Forward(self, sequence, len(tokens), tokens, parents, origins)

    def tree_room(self, origins: int) -> int:
        """The most tokens of a tree that can be read next, if at most `origins` of them are drafted after."""
        return self.session.tree_room(origins, self.row)

    def keep(self, start: int, places: Sequence[int]) -> None:
        """Of what the cache holds from `start` on, keep the tokens at `places`: a path through a tree."""
        self.session.keep(self.row, start, places)

    def truncate(self, length: int) -> None:
        """Forget what the cache holds beyond the first `length` tokens, if anything."""
        self.session.truncate(self.row, length)


@dataclass
class Text:
    """One sequence that is being written. The scheduler adds what is written to `tokens`, and counts."""

    tokens: list[int]  # the prompt, and what was written after it
    room: int  # tokens that may still be written; at least 1 while the strategy runs
    ends: frozenset[int]  # tokens that end the text
    sampler: Sampler
    large: CachedModel  # the model whose text it is; its cache may hold a beginning of the prompt
    source: Sequence[int] = ()  # what an encoder-decoder writes the text from
    draft: CachedModel | None = None  # a smaller model, for strategies that take one
    counts: Counts = field(default_factory=Counts)

    @property
    def small(self) -> CachedModel:
        """The smaller model of a strategy that needs one."""
        assert self.draft is not None, "only strategies with needs_draft ask for it"
        return self.draft


Steps = Generator[Forward | Written, Logits, None]


class Strategy(ABC):
    """A way to choose tokens: a dataclass, whose fields are its options, each with a default."""

    needs_draft: ClassVar[bool | None]  # None: it takes a draft model, and does without
    measures: ClassVar[bool] = False  # `prepare` runs the models, so that no sequence may be in their caches
    whole_passes: ClassVar[bool] = True  # False: tokens that it writes do not go through all blocks of the model

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:  # noqa: B027  most have no need of it
        """Look at the models, once, before the first sequence that is written so. Raises `UsageError`."""

    @abstractmethod
    def write(self, text: Text) -> Steps:
        """Write the sequence without end; it is closed at its end, between any two tokens.

        What was given as `Written`, and not as rolled back, is never taken back. Every token that is certain is given
        before the next forward pass is asked for.
        """
