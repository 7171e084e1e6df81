"""Decide what a step runs. Nothing is changed here: the scheduler runs the batch, and then updates its requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from intaglio.runtime.generation.scheduling.observer import Kind
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.scheduling.row_assignment import Row, Rows, is_prefilling
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import EncodeSource, Forward

Running = Sequence[tuple[Row, RequestState]]


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


def schedule(running: Running, rows: Rows, chunk_size: int, prefilled_last: bool) -> Batch:
    """Choose the batch of a step: rows that draft first, so that as many as possible share a pass of the target model.

    Then prefill and decode steps alternate: after a prefill (`prefilled_last`), decode steps go first. The order also
    protects the drafts of an early exit, which are in the target model's cache behind the tokens that it has processed.
    """
    prefilling: list[tuple[Row, RequestState]] = []
    chunks: list[Chunk] = []
    for row, state in running:
        forward = state.forward
        if isinstance(forward, EncodeSource) or (forward is not None and is_prefilling(state)):
            prefilling.append((row, state))
        elif forward is not None:
            chunks.append(chunk_of(state, forward, forward.model.length, chunk_size))
    if len(chunks) > 1:
        chunks.sort(key=_last_served)
    drafting = [each for each in chunks if each.forward.model.author == "small"]
    if prefilling and not drafting and not (prefilled_last and chunks):
        return schedule_prefill(prefilling, rows, chunk_size)
    return Batch(chunks=select_batch(drafting or chunks))


def schedule_prefill(prefilling: Running, rows: Rows, chunk_size: int) -> Batch:
    """Choose a chunk of a prompt, or several short prompts that share a pass, or a source to encode.

    A row waits while an earlier one prefills a prefix that both have; what another row holds is copied.
    """
    _, first = prefilling[0]
    if isinstance(first.forward, EncodeSource):
        return Batch("prefill", source=(first, first.forward))
    planned: dict[DecoderSession, list[int]] = {}  # the lengths of caches after the copies

    def lengths(session: DecoderSession) -> list[int]:
        if session not in planned:
            planned[session] = list(session.lengths)
        return planned[session]

    chunks: list[Chunk] = []
    copies: list[PrefixCopy] = []
    prefilled: list[RequestState] = []
    for place, (row, state) in enumerate(prefilling):
        forward = state.forward
        if not isinstance(forward, Forward):
            continue
        session = forward.model.session
        if chunks and session is not chunks[0].forward.model.session:
            continue
        if rows.awaits_shared_prefix(row, session, [earlier for earlier, _ in prefilling[:place]], lengths):
            continue
        if (found := rows.find_prefix(row, session, lengths)) is not None:
            source, held = found
            copies.append(PrefixCopy(state, session, source, row.number, held))
            lengths(session)[row.number] = held
        chunk = chunk_of(state, forward, lengths(session)[row.number], chunk_size)
        if not chunk.tokens:  # all of it is copied
            prefilled.append(state)
        elif not chunks or (len(chunks) + 1) * max(len(it.tokens) for it in [*chunks, chunk]) <= chunk_size:
            chunks.append(chunk)
    return Batch("prefill", chunks, copies, prefilled)


def chunk_of(state: RequestState, forward: Forward, cached: int, limit: int) -> Chunk:
    """Plan the next pass for `forward`, of whose sequence `cached` tokens are in the cache.

    It has at most `limit` tokens, unless logits are wanted after more of them.
    """
    missing = forward.sequence[cached:]
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


def _last_served(chunk: Chunk) -> int:
    return chunk.state.served
