"""What a strategy is given, and what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import msgspec

from intaglio.runtime.decoder import DecoderSession
from intaglio.runtime.sampling import Sampler


class Calls(msgspec.Struct):
    """Forward passes: of a draft model (small), and of the model whose text it is (large)."""

    small: int = 0
    large: int = 0


class Counts(msgspec.Struct):
    """What a strategy did for one text."""

    calls: Calls = msgspec.field(default_factory=Calls)
    accepted: int = 0  # drafted tokens that stand in the text
    rolled_back: int = 0  # drafted tokens that were taken back


@dataclass(frozen=True)
class Decoding:
    """One text being written: the models, with empty caches, and how tokens are chosen."""

    model: DecoderSession
    draft: DecoderSession | None  # what proposes tokens, for strategies that need one
    sampler: Sampler
    counts: Counts = field(default_factory=Counts)  # the strategy keeps them


class Strategy(Protocol):
    """A way to choose tokens. Its options are the arguments of its constructor, each with a default."""

    needs_draft: ClassVar[bool]

    def tokens(self, decoding: Decoding, prompt: Sequence[int]) -> Iterator[int]:
        """Yield the tokens after `prompt`, one by one and without end; what was yielded is never taken back.

        The caller stops at the end of the text, between any two tokens. A token is yielded before anything is
        computed for the one after it. Each call of a model is counted once it is done.
        """
        ...
