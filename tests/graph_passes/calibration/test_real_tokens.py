"""Padding is removed on every axis that has padding, and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intaglio.graph_passes.calibration.real_tokens import Axis, Length, axes_of, real_parts

BATCH, SEQUENCE, TOKENS, OTHER = Axis.BATCH, Axis.SEQUENCE, Axis.TOKENS, Axis.OTHER
NAMES = ("batch", "sequence")
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], bool)


@pytest.mark.parametrize(
    ("shape", "stated", "expected"),
    [
        ((3, 5, 7), ("batch", "sequence", 7), [BATCH, SEQUENCE, OTHER]),
        ((3, 2, 5, 5), ("batch", 2, "sequence", "sequence"), [BATCH, OTHER, SEQUENCE, SEQUENCE]),
        ((3, 5, 5), ("batch", "sequence", 5), [BATCH, SEQUENCE, OTHER]),  # a width that equals the length
        ((3, 3), ("batch", 3), [BATCH, OTHER]),
        ((1, 5, 4), (1, "sequence", 4), [OTHER, SEQUENCE, OTHER]),
        ((5, 3, 4), ("sequence", "batch", 4), [SEQUENCE, BATCH, OTHER]),
        ((3, 5, 7), None, [BATCH, SEQUENCE, OTHER]),  # the graph does not declare it: lengths decide
        ((3, 2, 5, 5), (None, None, "unk_1", "unk_2"), [BATCH, OTHER, SEQUENCE, SEQUENCE]),
        ((15, 4), (None, 4), [TOKENS, OTHER]),
        ((15, 4), (15, 4), [OTHER, OTHER]),
        ((3, 9), ("batch", "sequence"), [BATCH, OTHER]),  # the declaration of the graph is wrong
        ((), (), []),
    ],
)
def test_axes_are_matched_by_name_then_by_length(
    shape: tuple[int, ...], stated: Sequence[Length] | None, expected: list[Axis]
) -> None:
    assert axes_of(np.zeros(shape, np.float32), stated, MASK, NAMES) == expected


def kept(array: npt.NDArray[np.float32], axes: Sequence[Axis], mask: npt.NDArray[np.bool_]) -> Counter[float]:
    """The expected values, selected one by one."""
    found: Counter[float] = Counter()
    for text, real in enumerate(mask):
        for place, number in np.ndenumerate(array):
            at = list(zip(axes, place, strict=True))
            texts = [index for axis, index in at if axis is BATCH]
            if (not texts or texts[0] == text) and all(real[index] for axis, index in at if axis is SEQUENCE):
                found[float(number)] += 1
    return found


@given(
    st.lists(st.sampled_from([BATCH, SEQUENCE, OTHER]), max_size=4).filter(lambda axes: axes.count(BATCH) <= 1),
    st.data(),
)
def test_padding_is_removed_from_each_text(axes: list[Axis], data: st.DataObject) -> None:
    batch, sequence, width = (data.draw(st.integers(1, 4)) for _ in range(3))
    mask = data.draw(hnp.arrays(np.bool_, (batch, sequence)))
    shape = [{BATCH: batch, SEQUENCE: sequence, OTHER: width}[axis] for axis in axes]
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    parts = list(real_parts(array, axes, mask))
    assert all(part.ndim == array.ndim for part in parts)
    assert Counter(float(number) for part in parts for number in part.reshape(-1)) == kept(array, axes, mask)


def test_texts_and_positions_may_share_an_axis() -> None:
    array = np.arange(30, dtype=np.float32).reshape(15, 2)
    (part,) = real_parts(array, [TOKENS, OTHER], MASK)
    np.testing.assert_array_equal(part, array.reshape(3, 5, 2)[MASK])
