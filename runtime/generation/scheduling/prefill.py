"""Decide what a prefill runs: a chunk of a long prompt, or several short prompts at once, without cached prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from intaglio.runtime.generation.scheduling.batch import Batch, Chunk, PrefixCopy, chunk_of
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.scheduling.row_assignment import Row, Rows
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import EncodeSource, Forward

Running = Sequence[tuple[Row, RequestState]]


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
