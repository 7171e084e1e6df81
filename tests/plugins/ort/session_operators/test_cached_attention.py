"""CachedAttention where a score or a value is no number, and at the ends of its blocks."""

from __future__ import annotations

import numpy as np
import pytest
from operator_session import operator_session

from intaglio.plugins import OPS
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.node_model import feeds

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")

KEPT, CAPACITY = 70, 80  # slots attended to: a block of the kernel and a part


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    shapes = {"query": (1, 4, 3, 24), "key": (1, 2, CAPACITY, 24), "value": (1, 2, CAPACITY, 24)}
    made = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "mask": np.broadcast_to(np.arange(CAPACITY) < KEPT, (1, 1, 3, CAPACITY)).copy()}


def run(arrays: dict[str, np.ndarray]) -> np.ndarray:
    case = Case("CachedAttention", tuple(arrays.values()), {"scale": 0.2})
    session = operator_session(case)
    found: np.ndarray = session.run(None, feeds(case))[0]
    return found


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_number_that_is_none_is_not_lost(number: float, arrays: dict[str, np.ndarray], instruction_set: None) -> None:
    arrays["query"][0, 1, 2, 5] = number
    found = np.isnan(run(arrays))
    assert found[0, 1, 2].all() and found.sum() == 24
    arrays["query"][0, 1, 2, 5] = 0
    arrays["key"][0, 1, KEPT - 1, 0] = np.nan  # of two heads of queries
    assert np.isnan(run(arrays))[0, 2:].all() and not np.isnan(run(arrays))[0, :2].any()


def test_scores_that_overflow_are_no_numbers(arrays: dict[str, np.ndarray], instruction_set: None) -> None:
    arrays["query"] *= np.float32(1e25)
    arrays["key"] *= np.float32(1e25)
    assert np.isnan(run(arrays)).all()


def test_masked_slots_may_hold_anything_in_their_keys(arrays: dict[str, np.ndarray], instruction_set: None) -> None:
    expected = run(arrays)
    arrays["key"][:, :, KEPT:] = np.nan
    np.testing.assert_array_equal(run(arrays), expected)
    np.testing.assert_allclose(
        expected, OPS["CachedAttention"].reference(tuple(arrays.values()), {"scale": 0.2})[0], atol=1e-6
    )


def test_few_rows_attend_to_each_slot_of_every_block(arrays: dict[str, np.ndarray], instruction_set: None) -> None:
    """Few, as in decode steps, for which the cache is prefetched."""
    arrays["query"], arrays["mask"] = arrays["query"][:, :, :1], arrays["mask"][:, :, :1]
    for slot in (0, 15, 62, 63, 64, KEPT - 1):
        arrays["value"][:, :, slot] += 100 * (1 + slot)  # none can be lost
    expected = OPS["CachedAttention"].reference(tuple(arrays.values()), {"scale": 0.2})[0]
    np.testing.assert_allclose(run(arrays), expected, rtol=1e-5)


def test_token_without_slots_gets_zeros(arrays: dict[str, np.ndarray], instruction_set: None) -> None:
    arrays["mask"][0, 0, 1] = False
    found = run(arrays)
    assert not found[0, :, 1].any() and found[0, :, 0].all()


LONG = 4500  # slots: two segments and a part, each a piece of work of its own where heads are few


def long_caches(heads: int) -> dict[str, np.ndarray]:
    """Sequences of a token: full, to the second segment, of the first slots alone, and of a window at the end."""
    random = np.random.default_rng(5)
    shapes = {"query": (4, heads, 1, 40), "key": (4, 1, LONG, 40), "value": (4, 1, LONG, 24)}
    made = {name: random.normal(size=shape, scale=3).astype(np.float32) for name, shape in shapes.items()}
    slots = np.arange(LONG)
    masks = [slots < LONG, slots < 3000, slots < 3, slots >= 4100]
    return {**made, "mask": np.stack(masks)[:, None, None]}


@pytest.mark.parametrize("heads", [1, 5])
def test_segments_of_slots_are_added_up(heads: int, instruction_set: None) -> None:
    arrays = long_caches(heads)
    expected = OPS["CachedAttention"].reference(tuple(arrays.values()), {"scale": 0.2})[0]
    np.testing.assert_allclose(run(arrays), expected, rtol=1e-4, atol=1e-5)


def test_rows_have_the_same_bits_whether_segments_are_pieces_of_work_or_not(instruction_set: None) -> None:
    arrays = long_caches(3)
    many = run({name: np.concatenate([array] * 10) for name, array in arrays.items()})
    np.testing.assert_array_equal(many, np.concatenate([run(arrays)] * 10))
    for row in range(4):
        np.testing.assert_array_equal(
            run({name: array[row : row + 1] for name, array in arrays.items()}), many[row : row + 1]
        )


def test_number_that_is_none_is_not_lost_in_any_segment(instruction_set: None) -> None:
    for slot in (0, 2047, 2048, LONG - 1):
        arrays = long_caches(2)
        arrays["key"][0, 0, slot, 7] = np.nan
        found = np.isnan(run(arrays))
        assert found[0].all() and not found[1:].any(), slot
