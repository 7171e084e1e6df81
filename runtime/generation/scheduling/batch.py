"""What a step runs: the chunks of requests that share a forward pass, and copies of cached prefixes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from intaglio.runtime.generation.scheduling.observer import Kind
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import EncodeSource, Forward


class Chunk(NamedTuple):
    """What one request adds to a forward pass: tokens of its prompt or draft."""

    state: RequestState
    forward: Forward
    tokens: Sequence[int]
    wanted: int  # number of logits to return
    answers: bool  # False: the request needs more passes before it can continue


class PrefixCopy(NamedTuple):
    """The first tokens of a prompt, copied from the cache of another row."""

    state: RequestState
    session: DecoderSession
    source: int  # the row that holds them
    row: int
    tokens: int  # of the prompt in the row's cache afterwards

    @property
    def copied(self) -> int:
        """Of these, how many the row does not hold before."""
        return self.tokens - self.session.lengths[self.row]


class Batch(NamedTuple):
    """What a step runs: copies of cached prefixes, then one forward pass over `chunks`, or the encoder of a source."""

    kind: Kind = "decode"
    chunks: Sequence[Chunk] = ()  # of one session
    copies: Sequence[PrefixCopy] = ()
    prefilled: Sequence[RequestState] = ()  # their prompts are complete with the copies
    source: tuple[RequestState, EncodeSource] | None = None


def chunk_of(state: RequestState, forward: Forward, cached: int, limit: int) -> Chunk:
    """Plan the next pass for `forward`, of whose sequence `cached` tokens are in the cache.

    It has at most `limit` tokens, unless logits are wanted after more of them.
    """
    missing = state.in_cache(forward.sequence)[cached:]
    if forward.tree and not missing:
        return Chunk(state, forward, forward.tree, forward.wanted, answers=True)
    unwanted = len(missing) if forward.tree else len(missing) - forward.wanted
    if forward.tree or (len(missing) > limit and unwanted):
        return Chunk(state, forward, missing[: min(limit, unwanted)], 0, answers=False)
    return Chunk(state, forward, missing, forward.wanted, answers=True)
