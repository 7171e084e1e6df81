"""Decide what a step runs. Nothing is changed here: the scheduler runs the batch, and then updates its requests."""

from __future__ import annotations

from collections.abc import Sequence

from intaglio.runtime.generation.scheduling.batch import Batch, Chunk, PrefixCopy, chunk_of
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.scheduling.row_assignment import Row, Rows, is_prefilling
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import EncodeSource, Forward

Running = Sequence[tuple[Row, RequestState]]


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
        chunks.sort(key=lambda chunk: chunk.state.served)
    drafting = [each for each in chunks if each.forward.model.author == "small"]
    if prefilling and not drafting and not (prefilled_last and chunks):
        return schedule_prefill(prefilling, rows, chunk_size)
    return Batch(chunks=select_batch(drafting or chunks))


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
