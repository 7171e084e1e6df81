"""Special cases of the CPU kernel of IntAttention, on every instruction set of this CPU."""

import itertools

import numpy as np
import pytest
from operator_cases import Case, int8
from operator_session import operator_session

from intaglio.plugins import OPS
from intaglio.plugins.kernel_check.node_model import feeds

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")

UNITY = (np.array([2**30], np.int32), np.array([38], np.int32))  # from Q8 to the values' own unit


@pytest.fixture
def random():
    return np.random.default_rng(7)


def attention(query, key, value, mask=None, heads=1, scale=1e-3):
    return Case("IntAttention", (query, key, value, *UNITY, mask), {"num_heads": heads, "scale": scale})


def run(case):
    session = operator_session(case)
    return session.run(None, feeds(case))[0]


def check(case):
    got = run(case)
    np.testing.assert_array_equal(got, OPS["IntAttention"].reference(case.inputs, case.attributes)[0])
    return got


@pytest.mark.parametrize("value", [127, -128])
@pytest.mark.parametrize("keys", [1, 2, 255, 257, 511, 512, 513, 1024, 1537, 4096])
def test_uniform_rows_keep_their_sum(keys, value, instruction_set):
    query = np.zeros((1, 3, 32), np.int8)
    y = run(attention(query, np.full((1, keys, 32), 5, np.int8), np.full((1, keys, 32), value, np.int8)))
    np.testing.assert_array_equal(y, np.full((1, 3, 32), value, np.int8))


def test_long_tail_keeps_its_probability(instruction_set):
    # One key at exp(0) with the value 100; 4095 keys at exp(-8), together 1.37 of it, with the value -100.
    keys, scale = 4096, 8 / 2**14
    query, key = np.zeros((1, 1, 16), np.int8), np.zeros((1, keys, 16), np.int8)
    value = np.full((1, keys, 16), -100, np.int8)
    query[..., :2], key[0, 1234, :2], value[0, 1234] = -128, (-64, -64), 100
    tail = (keys - 1) * np.exp(-8.0)
    y = check(attention(query, key, value, scale=scale))
    np.testing.assert_allclose(y, np.full(y.shape, 100 * (1 - tail) / (1 + tail)), atol=1)


@pytest.mark.parametrize("axes", list(itertools.product([False, True], repeat=4)))
def test_every_broadcast_form_of_the_mask_is_supported(axes, random, instruction_set):
    sizes = batch, heads, queries, keys = 2, 3, 130, 70
    query, key, value = (int8(random, batch, length, heads * 8) for length in (queries, keys, keys))
    shape = [length if whole else 1 for length, whole in zip(sizes, axes, strict=True)]
    check(attention(query, key, value, random.random(shape) < 0.6, heads))


@pytest.mark.covering(2)
@pytest.mark.parametrize("axes", [(0, 0, 0, 1), (0, 1, 1, 1), (1, 1, 1, 1), (1, 0, 1, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize("masked", ["some keys", "the last key", "each query"])
def test_broadcast_forms_of_the_bias_are_added(axes, masked, random, instruction_set):
    """Masked keys are left out of the product, but not of the bias; values beyond ±2^30 are limited."""
    sizes = batch, heads, queries, keys = 2, 3, 130, 70
    query, key, value = (int8(random, batch, length, heads * 8) for length in (queries, keys, keys))
    bias = random.integers(-3000, 3000, [length if whole else 1 for length, whole in zip(sizes, axes, strict=True)])
    bias.reshape(-1)[::7] = random.choice([-(2**31), 2**31 - 1, 2**30 + 5])
    mask = {"some keys": random.random((batch, 1, 1, keys)) < 0.6, "each query": random.random((queries, keys)) < 0.6}
    kept = mask.get(masked, np.arange(keys) < keys - 1)
    case = attention(query, key, value, kept, heads)
    y = check(Case("IntAttention", (*case.inputs, bias.astype(np.int32)), case.attributes))
    assert (y != check(case)).any() or not axes[3]


@pytest.mark.parametrize("shape", [(70,), (130, 70), (130, 1), (3, 1, 70), (1,), ()])
def test_masks_of_fewer_axes_are_broadcast(shape, random, instruction_set):
    query, key, value = (int8(random, 2, length, 24) for length in (130, 70, 70))
    check(attention(query, key, value, np.asarray(random.random(shape) < 0.6), 3))


@pytest.mark.parametrize("shape", [(2, 1, 1, 600), (1, 1, 5, 600), (2, 2, 5, 1)])
def test_rows_without_any_key_are_zero(shape, random, instruction_set):
    query, key, value = (int8(random, 2, length, 64) for length in (5, 600, 600))
    mask = np.ones(shape, np.bool_)
    mask[-1, :, -1:] = False
    y = check(attention(query, key, value, mask, 2))
    masked = ~np.broadcast_to(mask, (2, 2, 5, 600)).any(axis=-1)
    assert masked.any()
    np.testing.assert_array_equal(y.reshape(2, 5, 2, 32).swapaxes(1, 2)[masked], 0)


def test_empty_keys_give_zero(random, instruction_set):
    query, none = int8(random, 1, 4, 8), int8(random, 1, 0, 8)
    np.testing.assert_array_equal(run(attention(query, none, none)), np.zeros((1, 4, 8), np.int8))


@pytest.mark.parametrize("kept", ["first", "some"])
def test_masked_keys_do_not_change_the_output(kept, random, instruction_set):
    query, key, value = (int8(random, 2, length, 33) for length in (40, 600, 600))
    mask = np.arange(600) < 530 if kept == "first" else random.random(600) < 0.9
    y = run(attention(query, key, value, mask.reshape(1, 1, 1, 600)))
    key[:, ~mask], value[:, ~mask] = 127, -128
    np.testing.assert_array_equal(run(attention(query, key, value, mask.reshape(1, 1, 1, 600))), y)
    np.testing.assert_array_equal(run(attention(query, key[:, mask], value[:, mask])), y)


def test_large_head_sizes_equal_the_reference(random, instruction_set):
    # The distance between the two scores needs all 32 bits without a sign.
    query, key, value = (np.full((1, length, 70000), -128, np.int8) for length in (2, 3, 3))
    key[0, 1] = 127
    check(attention(query, key, value, scale=1e-8))


@pytest.mark.parametrize(
    ("shapes", "mask", "heads", "message"),
    [
        (((1, 4, 8), (1, 5, 8), (1, 6, 8)), None, 2, r"value: shape \[1, 6, 8\], expected the key's \[1, 5, 8\]"),
        (((2, 4, 8), (1, 5, 8), (1, 5, 8)), None, 2, r"key: shape \[1, 5, 8\], expected \[2, keys, 8\]"),
        (((1, 4, 8), (1, 5, 8), (1, 5, 8)), None, 3, r"query: 8 channels do not divide into 3 heads"),
        (((1, 4, 8), (1, 5, 8), (1, 5, 8)), (1, 1, 1, 4), 2, r"mask: shape \[1, 1, 1, 4\] does not broadcast to"),
        (((1, 1, 1), (1, 65536, 1), (1, 65536, 1)), None, 1, r"key: 65536 keys, expected at most 65535"),
    ],
)
def test_wrong_shapes_are_named(shapes, mask, heads, message):
    arrays = [np.zeros(shape, np.int8) for shape in shapes]
    keep = None if mask is None else np.ones(mask, np.bool_)
    with pytest.raises(Exception, match=message):
        run(attention(*arrays, keep, heads))
