"""Products of parts of the columns, added batch by batch, are those of all columns, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.graph_passes.calibration import second_moments as module
from intaglio.graph_passes.calibration.second_moments import column_parts, mirrored, products_of, second_moments
from intaglio.processes.threads import bounded


@given(st.integers(1, 40_000), st.integers(1, 1 << 26))
def test_parts_are_all_columns_and_bounded(channels: int, numbers: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NUMBERS", numbers)
        parts = column_parts(channels)
    assert [column for part in parts for column in (part.start, part.stop)][1:-1:2] == [p.start for p in parts[1:]]
    assert parts[0].start == 0 and parts[-1].stop == channels
    for part in parts:
        assert part.start % module.COLUMNS == 0 and part.start < part.stop
        assert (part.stop - part.start) * (channels - part.start) < numbers + module.COLUMNS * channels


@given(st.integers(1, 1200), st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(0, 1 << 20))
def test_sum_of_parts_equals_the_sum_in_this_process(channels: int, lengths: list[int], numbers: int) -> None:
    random = np.random.default_rng(channels)
    batches = [random.standard_normal((length, channels), np.float32) for length in lengths]
    sums = np.zeros((channels, channels), np.float32)
    with bounded(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NUMBERS", numbers)
        for rows in batches:
            for part in column_parts(channels):
                sums[part, part.start :] += products_of(rows[:, part.start :].copy(), part.stop - part.start)
        np.testing.assert_array_equal(mirrored(sums), second_moments(batches, channels))
