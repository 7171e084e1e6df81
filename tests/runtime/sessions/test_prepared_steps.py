"""The inputs that sessions prepare for a step equal the output of `step_feeds`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from intaglio.bundle.bundle import Decoder, TensorSpec
from intaglio.runtime.engines.engine import Array, Engine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.step import (
    DRAFT_INDICES,
    DRAFT_LOGITS,
    DRAFT_MASK,
    DRAFT_POSITIONS,
    LOGITS,
    PAST,
    PRESENT,
    STEP,
    cache_axes,
    cache_names,
    logits_spec,
    step_feeds,
)


class Recorder(Engine):
    """Records the inputs of a session's last step. Its outputs are zeros, which nothing here reads."""

    def __init__(self, decoder: Decoder):
        drafts = [DRAFT_INDICES] if decoder.drafts else []
        drafts += [DRAFT_POSITIONS, DRAFT_MASK] if decoder.draft_kind == "hidden-transfer" else []
        caches = {
            when: [TensorSpec(when + name, "float32", cache_axes(decoder)) for name in cache_names(decoder.layers)]
            for when in (PAST, PRESENT)
        }
        self.inputs = (*STEP, *drafts, *caches[PAST])
        logits = [LOGITS, *([DRAFT_LOGITS] if decoder.drafts else [])]
        self.outputs = (*(logits_spec(name, decoder) for name in logits), *caches[PRESENT])
        self.axes = {}
        self.given: dict[str, Array] = {}

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self.given = {name: array.copy() for name, array in feeds.items()}
        return {spec.name: np.zeros((), spec.dtype) for spec in self.outputs}

    def close(self) -> None:
        """Nothing is held."""


@given(st.data())
def test_prepared_step_equals_step_feeds(data: st.DataObject) -> None:
    """Several steps on one session, so that buffers of a shape are filled again, over earlier values."""
    drafts, kind = data.draw(st.sampled_from([(0, ""), (2, "medusa"), (1, "hidden-transfer"), (3, "hidden-transfer")]))
    window = data.draw(st.none() | st.integers(1, 9))
    decoder = Decoder(1, 1, 1, 2, 5, 24, sliding_window=window, drafts=drafts, draft_kind=kind)
    batch = data.draw(st.integers(1, 3))
    engine = Recorder(decoder)
    with DecoderSession(engine, decoder, batch) as session:
        for _ in range(data.draw(st.integers(1, 4))):
            counts = data.draw(st.lists(st.integers(1, 4), min_size=batch, max_size=batch))
            lengths = [data.draw(st.integers(0, decoder.max_positions - count)) for count in counts]
            drafting = data.draw(st.integers(1, 3))
            origins = [[data.draw(st.integers(0, count - 1)) for _ in range(drafting)] for count in counts]
            texts = [data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)) for count in counts]
            session.lengths = [*lengths]
            session.append(texts, counts, origins=origins)
            ids = np.zeros((batch, max(counts)), np.int64)
            expected = step_feeds(decoder, ids, lengths, session.capacity, origins)
            for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
                assert engine.given["input_ids"][row, :count].tolist() == text  # beyond: any tokens
                assert engine.given["logit_indices"][row, :count].tolist() == [*range(count)]
            for name in expected.keys() - {"input_ids", "logit_indices"}:
                np.testing.assert_array_equal(engine.given[name], expected[name], err_msg=name)
            assert session.lengths == [length + count for length, count in zip(lengths, counts, strict=True)]
