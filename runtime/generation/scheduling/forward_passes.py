"""One forward pass for all rows that wait for the same model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.sessions.decoder import DecoderSession, Logits
from intaglio.runtime.strategies import Forward


class Chunk(NamedTuple):
    """What one request adds to a forward pass: tokens of its prompt or draft."""

    state: RequestState
    forward: Forward
    tokens: Sequence[int]
    wanted: int  # number of logits to return
    answers: bool  # False: the request needs more passes before it can continue


def chunk_of(state: RequestState, forward: Forward, limit: int) -> Chunk:
    """Plan the next pass for `forward`: at most `limit` tokens, unless logits are wanted after more of them."""
    missing = forward.sequence[forward.model.length :]
    if forward.tree and not missing:
        return Chunk(state, forward, forward.tree, forward.wanted, answers=True)
    unwanted = len(missing) if forward.tree else len(missing) - forward.wanted
    if forward.tree or (len(missing) > limit and unwanted):
        return Chunk(state, forward, missing[: min(limit, unwanted)], 0, answers=False)
    return Chunk(state, forward, missing, forward.wanted, answers=True)


def select_batch(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Select the chunks of one session that fit into one pass together with the first.

    A pass is as wide as its widest row. A tree cannot be split over several passes; other tokens can.
    """
    fitting = list(chunks[:1])
    for chunk in chunks[1:]:
        if _fits([*fitting, chunk]):
            fitting.append(chunk)
    return fitting


def _fits(chunks: Sequence[Chunk]) -> bool:
    trees = [chunk for chunk in chunks if chunk.forward.tree and chunk.answers]
    if not trees:
        return True
    width = max(len(chunk.tokens) for chunk in chunks)
    origins = max(len(chunk.forward.origins) for chunk in trees)
    models = (chunk.forward.model for chunk in chunks)
    return all(width <= model.session.max_tree_tokens(origins, model.row) for model in models)


def run_batch(session: DecoderSession, chunks: Sequence[Chunk], number: int) -> list[tuple[RequestState, Logits]]:
    """Run forward pass `number`; return the requests that it answers, with their logits [wanted, vocab]."""
    tokens: list[Sequence[int]] = [()] * session.batch
    wanted = [0] * session.batch
    trees: list[Sequence[int]] | None = None
    origins: list[Sequence[int]] | None = None
    for chunk in chunks:
        row = chunk.forward.model.row
        tokens[row], wanted[row] = chunk.tokens, chunk.wanted
        if chunk.forward.tree and chunk.answers:
            trees, origins = trees or [()] * session.batch, origins or [()] * session.batch
            trees[row], origins[row] = chunk.forward.parents, chunk.forward.origins
    before = session.seconds
    logits = session.append(tokens, wanted, trees, origins, copy=False)
    seconds = session.seconds - before
    for chunk in chunks:
        model = chunk.forward.model
        model.drafts = session.draft_logits[model.row]
        origin_count = max(len(chunk.forward.origins), 1) if chunk.answers else 1
        after = origin_count if session.decoder.drafts else 0
        chunk.state.served = number
        chunk.state.counts.called(model.author, len(chunk.tokens), seconds, after)
    return [(chunk.state, logits[chunk.forward.model.row]) for chunk in chunks if chunk.answers]
