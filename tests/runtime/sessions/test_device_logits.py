"""Logits on a GPU, which is a stand-in whose kernels run on the emulator: the same tokens as on the host."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from covering import examples
from cuda_ledger import gpu
from device_meter import Ledger
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intaglio.errors import EngineError
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.sampling.constraint import Suppression
from intaglio.runtime.sampling.likelihood import largest_probability, likeliest, softmax, surprise
from intaglio.runtime.sampling.sampler import Sampler, Sampling
from intaglio.runtime.sessions.device_logits import DeviceLogits
from intaglio.runtime.sessions.token_chooser import TokenChooser

SIZE = 700
TOKEN = LOGIT = 4  # bytes
samplings = st.builds(
    Sampling,
    temperature=st.one_of(st.just(0.0), st.floats(1e-3, 100)),
    top_k=st.one_of(st.just(0), st.integers(0, 70)),
    top_p=st.one_of(st.just(1.0), st.floats(0, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.25, 4)),
    presence_penalty=st.one_of(st.just(0.0), st.floats(-2, 2)),
    frequency_penalty=st.one_of(st.just(0.0), st.floats(-2, 2)),
    logit_bias=st.dictionaries(st.integers(0, SIZE - 1), st.floats(-100, 100), max_size=3),
)


class Device:
    """A GPU's memory, and logits in it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.memory = ledger, DeviceMemory()
        ledger.ran({})  # for which downloads count
        self.chooser = TokenChooser(self.memory)

    def logits(self, array: np.ndarray) -> DeviceLogits:
        """A copy of [rows, wanted, vocab], in memory that has more columns."""
        held = self.memory.zeros((*array.shape[:2], array.shape[2] + 5), np.float32)
        view = held[:, :, : array.shape[2]]
        self.memory.copy(view, array)
        return DeviceLogits(self.chooser, view)


@pytest.fixture
def device() -> Iterator[Device]:
    with gpu() as ledger:
        device = Device(ledger)
        yield device
        device.chooser.close()
        device.memory.close()
        assert not ledger.allocated


@given(sampling=samplings, seed=st.integers(0, 2**32), constrained=st.booleans())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_samplers_choose_the_same_token_as_on_the_host(
    sampling: Sampling, seed: int, constrained: bool, device: Device
) -> None:
    random = np.random.default_rng(seed)
    array = (4 * random.standard_normal((2, 2, SIZE))).astype(np.float32)
    logits, seen = device.logits(array), random.integers(0, SIZE, 40).tolist()
    constraint = Suppression(random.permutation(SIZE)[:-3], SIZE) if constrained else None
    host, there = (Sampler(sampling, seed, constraint, prompt_tokens=10) for _ in range(2))
    for row, place in itertools.product(range(2), range(2)):
        assert there.choose(logits[row][place], seen) == host.choose(array[row, place], seen)
        found, expected = (
            sampler.distribution(given[row, place], seen) for sampler, given in ((there, logits), (host, array))
        )
        np.testing.assert_array_equal(found, expected)
        token = int(expected.argmax())
        assert found[token] == expected[token] and there.draw(found) == host.draw(expected)
        np.testing.assert_array_equal(
            there.penalised(logits[row][place], seen), host.penalised(array[row, place], seen)
        )


@given(seed=st.integers(0, 2**32), spread=st.sampled_from([0.1, 3, 30]))
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_probabilities_equal_the_host(seed: int, spread: float, device: Device) -> None:
    random = np.random.default_rng(seed)
    array = (spread * random.standard_normal((1, 3, SIZE))).astype(np.float32)
    logits = device.logits(array)
    for place in range(3):
        row = array[0, place]
        assert largest_probability(logits[0][place]) == pytest.approx(largest_probability(row), rel=1e-5)
        assert surprise(logits[0, place], 7) == pytest.approx(surprise(row, 7), rel=1e-5, abs=1e-5)
        np.testing.assert_array_equal(softmax(logits[0, place]), softmax(row))
    np.testing.assert_array_equal(np.asarray(logits[0, 1:], np.float64), array[0, 1:])
    assert len(logits[0]) == 3 and logits[0].shape == (3, SIZE)


@given(seed=st.integers(0, 2**32), count=st.integers(1, 60))
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_likeliest_tokens_equal_the_host(seed: int, count: int, device: Device) -> None:
    array = np.random.default_rng(seed).normal(0, 4, (2, 3, SIZE)).astype(np.float32)
    found, expected = likeliest(device.logits(array)[1], count), likeliest(array[1], count)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose([chances for _, chances in found], [chances for _, chances in expected], rtol=1e-6)
    array[1, 2, 5] = np.nan
    with pytest.raises(EngineError, match="NaN or infinite"):
        likeliest(device.logits(array)[1], count)


def test_a_summary_is_computed_once_for_all_rows(device: Device) -> None:
    logits = device.logits(np.zeros((3, 2, SIZE), np.float32))
    driver = device.ledger.runtime.driver
    driver.launches.clear()
    greedy = Sampler(Sampling())
    assert [greedy.choose(logits[row][place]) for row in range(3) for place in range(2)] == [0] * 6
    assert driver.launches == [("summarise_logits", 1)]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0), Sampling(presence_penalty=1.0)])
def test_nan_logits_raise_engine_error(bad: float, sampling: Sampling, device: Device) -> None:
    array = np.zeros((1, 1, SIZE), np.float32)
    array[0, 0, 300] = bad
    with pytest.raises(EngineError, match="NaN or infinite"):
        Sampler(sampling, 0).choose(device.logits(array)[0][0], [1, 2])
    with pytest.raises(EngineError, match="NaN or infinite"):
        Sampler(sampling, 0).propose(device.logits(array)[0][0], [1, 2])
    for function in (largest_probability, lambda row: surprise(row, 0)):
        with pytest.raises(EngineError, match="NaN or infinite"):
            function(device.logits(array)[0][0])
    if not sampling.greedy:
        with pytest.raises(EngineError, match="NaN or infinite"):
            Sampler(sampling, 0).distribution(device.logits(array)[0][0])[5]


def test_replacement_of_a_draft_that_is_as_probable(device: Device) -> None:
    array = np.zeros((1, 1, SIZE), np.float32)
    sampler = Sampler(Sampling(1.0), 0)
    target, draft = (sampler.distribution(device.logits(array)[0][0]) for _ in range(2))
    assert 0 <= sampler.replacement(3, target, draft) < SIZE  # drawn from the target, as nothing is left


def test_top_k_of_any_size(device: Device) -> None:
    array = np.random.default_rng(0).normal(size=(1, 1, SIZE)).astype(np.float32)
    for top_k in (SIZE, 2**31, 2**64, 2**80):
        host, there = (Sampler(Sampling(1.0, top_k=top_k), 1) for _ in range(2))
        assert there.choose(device.logits(array)[0][0]) == host.choose(array[0, 0])
        assert np.count_nonzero(host.distribution(array[0, 0])) == SIZE


def test_distributions_may_outlive_the_chooser() -> None:
    with gpu() as ledger:
        device = Device(ledger)
        (kept,) = [Sampler(Sampling(1.0), 0).distribution(device.logits(np.zeros((1, 1, SIZE), np.float32))[0][0])]
        device.chooser.close()
        device.memory.close()
        del kept
        gc.collect()
        assert not ledger.allocated
