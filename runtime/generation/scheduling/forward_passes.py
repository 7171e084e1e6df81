"""One forward pass for all rows that wait for the same model."""

from __future__ import annotations

from collections.abc import Sequence

from intaglio.runtime.generation.scheduling.batch import Chunk
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.sessions.decoder import DecoderSession, Logits


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
