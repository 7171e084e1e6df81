"""Masks and positions of pseudo states, against the rules applied slot by slot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.bundle.bundle import Decoder
from intaglio.runtime.sessions.draft_inputs import draft_mask, drafted
from intaglio.runtime.sessions.masks import seen_among
from intaglio.runtime.sessions.step import STEP, step_feeds


@given(st.data())
def test_pseudo_states_attend_to_origin_context_and_earlier_steps(data: st.DataObject) -> None:
    tokens, steps = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    start = np.array(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3)))
    drafting = data.draw(st.lists(st.integers(0, tokens - 1), min_size=1, max_size=4))
    window = data.draw(st.none() | st.integers(1, 6))
    batch, capacity = len(start), int(start.max()) + tokens + steps * len(drafting) + 1
    indices = np.tile(drafting, (batch, 1))
    places = start[:, None] + np.arange(tokens)
    among = np.tile(seen_among(tokens, None, window), (batch, 1, 1))
    positions, found = draft_mask(places, among, start, indices, steps, window, capacity)
    for row in range(batch):
        for step in range(steps):
            for number, origin in enumerate(drafting):
                own = step * len(drafting) + number
                position = start[row] + origin + step + 1
                assert positions[row, own] == position
                seen = {slot for slot in range(start[row] + origin + 1) if window is None or slot > position - window}
                seen |= {
                    start[row] + tokens + earlier * len(drafting) + number
                    for earlier in range(step + 1)
                    if window is None or step - earlier < window
                }
                assert set(np.flatnonzero(found[row, own])) == seen


def test_pseudo_states_in_trees_attend_to_their_branch_only() -> None:
    """The last token of three stands beside the second: a tree of two leaves after a cached text of one token."""
    among = seen_among(3, [-1, 0, 0], None)[None]
    places, origins = np.array([[1, 2, 2]]), np.array([[1, 2]])
    positions, found = draft_mask(places, among, np.array([1]), origins, 2, None, 10)
    assert positions.tolist() == [[3, 3, 4, 4]]
    seen = [np.flatnonzero(row).tolist() for row in found[0]]
    assert seen == [
        [0, 1, 2, 4],
        [0, 1, 3, 5],
        [0, 1, 2, 4, 6],
        [0, 1, 3, 5, 7],
    ]


@pytest.mark.parametrize(("kind", "slots"), [("hidden-transfer", 6), ("medusa", 0)])
def test_only_hidden_transfer_needs_positions_mask_and_slots(kind: str, slots: int) -> None:
    decoder = Decoder(2, 2, 2, 8, 16, 32, drafts=3, draft_kind=kind)
    assert drafted(decoder, 2) == slots
    feeds = step_feeds(decoder, np.ones((1, 4), np.int64), draft_indices=[[1, 3]])
    further = {"draft_indices"} | ({"draft_positions", "draft_mask"} if slots else set())
    assert set(feeds) == {spec.name for spec in STEP} | further
