"""Decide what a step runs. Nothing is changed here: the scheduler runs the batch, and then updates its requests."""

from __future__ import annotations

from collections.abc import Sequence

from intaglio.runtime.generation.scheduling.batch import Batch, Chunk, chunk_of
from intaglio.runtime.generation.scheduling.prefill import Running, schedule_prefill
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.scheduling.row_assignment import Row, Rows, is_prefilling
from intaglio.runtime.strategies import EncodeSource


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
