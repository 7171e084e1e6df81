"""The mask of a text without branches, in both of its forms."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.engines.memory import HostMemory
from intaglio.runtime.sessions.masks import fill_mask, seen_among, seen_slots


@given(capacity=st.integers(1, 40), window=st.none() | st.integers(1, 50))
def test_seen_slots_equal_the_filled_mask(capacity: int, window: int | None) -> None:
    places = np.arange(capacity)
    mask = np.zeros((1, capacity, capacity), np.bool_)
    fill_mask(mask, places[None], places, window)
    assert np.array_equal(seen_slots(HostMemory(), capacity, window)[1], mask[0])
    assert np.array_equal(seen_among(capacity, None, window), mask[0])
