"""One forward pass for all rows that wait for the same model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from intaglio.runtime.generation.request_state import RequestState
from intaglio.runtime.sessions.decoder import DecoderSession, Logits
from intaglio.runtime.strategies import Forward


class Part(NamedTuple):
    """The part of a pass that belongs to one request."""

    state: RequestState
    forward: Forward
    tokens: Sequence[int]
    wanted: int  # number of logits to return
    answers: bool  # False: the request needs more passes before it can continue


def part_of(state: RequestState, forward: Forward, chunk: int) -> Part:
    """Plan the next pass for `forward`: at most `chunk` tokens, unless logits are wanted after more of them."""
    missing = forward.sequence[forward.model.length :]
    if forward.tree and not missing:
        return Part(state, forward, forward.tree, forward.wanted, answers=True)
    unwanted = len(missing) if forward.tree else len(missing) - forward.wanted
    if forward.tree or (len(missing) > chunk and unwanted):
        return Part(state, forward, missing[: min(chunk, unwanted)], 0, answers=False)
    return Part(state, forward, missing, forward.wanted, answers=True)


def that_fit(parts: Sequence[Part]) -> list[Part]:
    """Select from parts of one session those that fit into one pass together with the first.

    A pass is as wide as its widest row. A tree cannot be split over several passes; other tokens can.
    """
    fitting = list(parts[:1])
    for part in parts[1:]:
        if _fits([*fitting, part]):
            fitting.append(part)
    return fitting


def _fits(parts: Sequence[Part]) -> bool:
    trees = [part for part in parts if part.forward.tree and part.answers]
    if not trees:
        return True
    width = max(len(part.tokens) for part in parts)
    origins = max(len(part.forward.origins) for part in trees)
    models = (part.forward.model for part in parts)
    return all(width <= model.session.tree_room(origins, model.row) for model in models)


def run(session: DecoderSession, parts: Sequence[Part], number: int) -> list[tuple[RequestState, Logits]]:
    """Run the pass of this number; return the requests that it answers, with their logits [wanted, vocab]."""
    tokens: list[Sequence[int]] = [()] * session.batch
    wanted = [0] * session.batch
    trees: list[Sequence[int]] | None = None
    origins: list[Sequence[int]] | None = None
    for part in parts:
        row = part.forward.model.row
        tokens[row], wanted[row] = part.tokens, part.wanted
        if part.forward.tree and part.answers:
            trees, origins = trees or [()] * session.batch, origins or [()] * session.batch
            trees[row], origins[row] = part.forward.parents, part.forward.origins
    before = session.seconds
    logits = session.append(tokens, wanted, trees, origins, copy=False)
    seconds = session.seconds - before
    for part in parts:
        model = part.forward.model
        model.drafts = session.draft_logits[model.row]
        origin_count = max(len(part.forward.origins), 1) if part.answers else 1
        after = origin_count if session.decoder.drafts else 0
        part.state.served = number
        part.state.counts.called(model.author, len(part.tokens), seconds, after)
    return [(part.state, logits[part.forward.model.row]) for part in parts if part.answers]
