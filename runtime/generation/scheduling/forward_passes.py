"""One forward pass for all rows that wait for the same model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from intaglio.plugins.native.token_choice.settings import Choice
from intaglio.runtime.generation.scheduling.batch import Chunk
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.device_logits import DeviceLogits, StepLogits, choose_together


def run_batch(session: DecoderSession, chunks: Sequence[Chunk], number: int) -> list[tuple[RequestState, StepLogits]]:
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
    logits = session.append_uncopied(tokens, wanted, trees, origins)
    seconds = session.seconds - before
    for chunk in chunks:
        model = chunk.forward.model
        model.drafts = session.draft_logits[model.row]
        origin_count = max(len(chunk.forward.origins), 1) if chunk.answers else 1
        after = origin_count if session.decoder.drafts else 0
        chunk.state.served = number
        chunk.state.counts.called(model.author, len(chunk.tokens), seconds, after)
    answers = [(chunk, logits[chunk.forward.model.row]) for chunk in chunks if chunk.answers]
    _choose_on_the_device(answers)
    return [(chunk.state, each) for chunk, each in answers]


def _choose_on_the_device(answers: Sequence[tuple[Chunk, StepLogits]]) -> None:
    """Choose the tokens of all rows together, where logits are on a GPU and a token is all that is asked of them."""
    rows: list[DeviceLogits] = []
    choices: list[Choice] = []
    for chunk, logits in answers:
        sequence = chunk.state.sequence
        if not (isinstance(logits, DeviceLogits) and chunk.forward.chooses) or sequence is None:
            continue
        if not sequence.sampler.takes_highest:
            with suppress(Exception):  # raised again where the token is chosen, for its request alone
                choices.append(sequence.sampler.choice(logits.shape[-1], chunk.forward.sequence))
                rows.append(logits)
    if rows:
        choose_together(rows, choices)
