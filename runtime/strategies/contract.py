"""The contract of a strategy: its inputs and outputs.

A strategy is written for one sequence. It requests a forward pass of a model by yielding a `Forward`, and gets the
logits as the value of that `yield`, valid until it yields the next one; it outputs tokens by yielding them as
`Emitted`. The scheduler (runtime/generation) answers the requests of several sequences in one pass, and closes a
strategy when its sequence ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import msgspec
import numpy as np

from intaglio.runtime.sampling.sampler import Sampler
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.device_logits import Logits, StepLogits

NO_LOGITS: Logits = np.zeros((0, 0), np.float32)  # the answer to a yield without logits, such as of a token
Author = Literal["small", "large"]  # "small": the draft model, or another source of drafts; "large": the target model


class Calls(msgspec.Struct):
    """Forward passes of the draft model (small) and of the target model (large)."""

    small: int = 0
    large: int = 0


class Tokens(msgspec.Struct):
    """Tokens that went through each model, including the prompt's."""

    small: int = 0
    large: int = 0


class Seconds(msgspec.Struct):
    """Seconds that the sequence waited for each model."""

    small: float = 0.0
    large: float = 0.0


class Counts(msgspec.Struct):
    """Statistics of one sequence. The scheduler updates them."""

    calls: Calls = msgspec.field(default_factory=Calls)
    processed: Tokens = msgspec.field(default_factory=Tokens)
    seconds: Seconds = msgspec.field(default_factory=Seconds)
    accepted: int = 0  # draft tokens that are in the text
    rolled_back: int = 0  # draft tokens that are not
    blocks: int = 0  # blocks run for all emitted tokens together; 0: the strategy skips none
    origins: int = 0  # positions after which the target model itself drafted, in all passes

    def called(self, author: Author, tokens: int, seconds: float, origins: int = 0) -> None:
        """Count a forward pass of a decoder."""
        if author == "large":
            self.calls.large += 1
            self.processed.large += tokens
            self.seconds.large += seconds
            self.origins += origins
        else:
            self.calls.small += 1
            self.processed.small += tokens
            self.seconds.small += seconds

    def encoded(self, author: Author, seconds: float) -> None:
        """Count the time of an encoder."""
        setattr(self.seconds, author, getattr(self.seconds, author) + seconds)


class Emitted(NamedTuple):
    """A token: the next one of the sequence, or a rejected draft token."""

    token: int
    by: Author
    rolled_back: bool = False


class Forward(NamedTuple):
    """A request for a forward pass over the tokens of a sequence that are not in the model's cache, then over a tree.

    Which tokens are missing is determined when the pass runs: the cache may have been shortened, or filled, meanwhile.
    """

    model: CachedModel
    sequence: Sequence[int]
    wanted: int = 1  # number of last tokens to return logits for; with a tree, of the tree's tokens
    tree: Sequence[int] = ()  # tokens that may follow the sequence
    parents: Sequence[int] = ()  # of the tree's tokens, see `token_tree`
    origins: Sequence[int] = ()  # places of the tree's tokens after which a self-drafting model computes drafts
    chooses: bool = False  # the next token is chosen from the last logits: on a GPU, together with those of other rows


class EncodeSource(NamedTuple):
    """A request to run the encoder of an encoder-decoder on the source of the sequence."""

    model: CachedModel


class CachedModel:
    """A model with its cache of one sequence; the cache grows and is truncated, and never copied."""

    def __init__(self, session: DecoderSession, row: int, author: Author):
        """`row`: the sequence's row in the batch of `session`; `author`: the model its calls are counted for."""
        self.session, self.row, self.author = session, row, author
        self.drafts: StepLogits = NO_LOGITS  # [origins, drafts, vocab] of the last pass of a self-drafting model

    @property
    def length(self) -> int:
        """Number of tokens of the sequence in the cache."""
        return self.session.lengths[self.row]

    def forward(self, tokens: Sequence[int], wanted: int = 1, chooses: bool = False) -> Forward:
        """Request a pass over the tokens that are not in the cache yet; `tokens`: the whole sequence.

        The answer is the logits [wanted, vocab] after the last `wanted` tokens. `chooses`: with them, the sampler of
        the sequence does nothing but choose the token after `tokens`.
        """
        return Forward(self, tokens, wanted, chooses=chooses)

    def append_tree(
        self, sequence: Sequence[int], tokens: Sequence[int], parents: Sequence[int], origins: Sequence[int]
    ) -> Forward:
        """Request a pass over a tree of `tokens` after `sequence`, with drafts after those at the places `origins`.

        The answer is the logits after each of the tree's tokens.
        """
        return Forward(self, sequence, len(tokens), tokens, parents, origins)

    def max_tree_tokens(self, origins: int) -> int:
        """Return the maximum size of the next tree, if drafts follow at most `origins` of its tokens."""
        return self.session.max_tree_tokens(origins, self.row)

    def keep(self, start: int, places: Sequence[int]) -> None:
        """Of the tokens in the cache from `start` on, keep those at `places`: a path through a tree."""
        self.session.keep(self.row, start, places)

    def truncate(self, length: int) -> None:
        """Truncate the cache to at most `length` tokens."""
        self.session.truncate(self.row, length)


@dataclass
class GeneratedSequence:
    """A sequence being generated. The scheduler appends the emitted tokens to `tokens`, and updates `counts`."""

    tokens: list[int]  # the prompt and the tokens generated after it
    remaining: int  # tokens that may still be generated; at least 1 while the strategy runs
    ends: frozenset[int]  # tokens that end the sequence
    sampler: Sampler
    target: CachedModel  # the target model; its cache may hold a prefix of the prompt
    source: Sequence[int] = ()  # the encoder's input, for an encoder-decoder
    draft: CachedModel | None = None  # the draft model, for strategies that use one
    counts: Counts = field(default_factory=Counts)
    needs_logits: bool = False  # whether each token needs logits, as their log-probabilities are recorded

    @property
    def draft_model(self) -> CachedModel:
        """The draft model of a strategy that needs one."""
        assert self.draft is not None, "only strategies with needs_draft use it"
        return self.draft

    def ends_with(self, draft: Sequence[int]) -> bool:
        """Whether the sequence ends with the last token of `draft`: an end token, or one that completes the text."""
        return bool(draft) and (draft[-1] in self.ends or self.sampler.finished([*self.tokens, *draft]))

    def allowed_draft(self, draft: list[int]) -> list[int]:
        """Return the first tokens of `draft`, as many as the constraint of the request allows."""
        return draft[: self.sampler.count_allowed(self.tokens, draft)]

    def allows(self, draft: Sequence[int]) -> bool:
        """Whether the constraint of the request allows all of `draft`."""
        return self.sampler.count_allowed(self.tokens, draft) == len(draft)


Steps = Generator[Forward | Emitted, StepLogits, None]


class Strategy(ABC):
    """A decoding strategy: a dataclass whose fields are its options, each with a default."""

    needs_draft: ClassVar[bool | None]  # None: a draft model is optional
    measures: ClassVar[bool] = False  # `prepare` runs the models, so no sequence may be in their caches
    whole_passes: ClassVar[bool] = True  # False: generated tokens do not run through all blocks of the model

    def prepare(self, target: DecoderSession, draft: DecoderSession | None) -> None:  # noqa: B027  most do not need it
        """Check or measure the models, once, before the first sequence. Raises `UsageError` if they do not fit."""

    @abstractmethod
    def write(self, sequence: GeneratedSequence) -> Steps:
        """Generate tokens without end; the scheduler closes this generator when the sequence ends, after any token.

        A token yielded as `Emitted`, unless marked as rolled back, is final. All final tokens are yielded before the
        next forward pass is requested.
        """
