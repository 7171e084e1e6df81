"""Logits on a GPU, which is a stand-in whose kernels run on the emulator: the same tokens as on the host."""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import examples
from cuda_ledger import gpu
from device_meter import Ledger
from devices import built
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_decoders import VOCABULARY

from intaglio.bundle.bundle import Bundle
from intaglio.errors import EngineError, MissingExtraError, UsageError
from intaglio.plugins.cuda import launcher
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed
from intaglio.runtime.sampling.constraint import LogitConstraint, Suppression
from intaglio.runtime.sampling.likelihood import largest_probability, likeliest, softmax, surprise
from intaglio.runtime.sampling.sampler import Sampler, Sampling
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.device_logits import DeviceLogits, LogitsOnTheHost, TokenChooser
from intaglio.runtime.sessions.step import decoder_of

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
def test_likeliest_tokens_are_those_of_the_host(seed: int, count: int, device: Device) -> None:
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


# --- texts ------------------------------------------------------------------------------------------------------------

PROMPTS = ("the cache stays", "a longer prompt than the first one", "b")
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "repetition_penalty": 1.2, "seed": 11}
PENALISED: dict[str, Any] = {"repetition_penalty": 1.2}


class NothingAfter(LogitConstraint):
    """Allows some tokens, and none after `most` of them, though the text is not complete."""

    def __init__(self, most: int) -> None:
        self._most = most

    def allowed(self, written: Sequence[int]) -> np.ndarray:
        return np.arange(VOCABULARY) % 3 == (0 if len(written) < self._most else 3)


@pytest.fixture(scope="module")
def bundle(make_decoder: Callable[..., tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(make_decoder("llama")[1], tmp_path_factory.mktemp("chosen"), 64)


def texts(generator: TextGenerator) -> list[list[int]]:
    return [text.tokens for text in generator.write_batch(PROMPTS).whole()]


@pytest.mark.parametrize("target", ["tensorrt-rtx", "ort-cuda"])
@pytest.mark.parametrize("sampling", [SAMPLED, PENALISED], ids=["sampled", "greedy"])
def test_rows_are_chosen_together(bundle: Path, target: str, sampling: dict[str, Any], tmp_path: Path) -> None:
    """Two launches a step for all rows, and only their tokens come down."""
    options: dict[str, Any] = {**sampling, "batch": 3, "max_new_tokens": 12, "ignore_eos": True}
    path = bundle if target == "ort-cuda" else built(bundle, tmp_path, 64, target)
    with TextGenerator(bundle, **options) as generator:
        expected = texts(generator)
    with gpu() as ledger, TextGenerator(path, target=target, **options) as generator:
        ledger.steps.clear()
        assert texts(generator) == expected
        launches = Counter(ledger.runtime.driver.launches)
        assert launches["choose_tokens", 1] == sum(launches["prepare_scores", rows] for rows in (1, 2, 3))
        assert launches["choose_tokens", 1] <= len(ledger.steps) and launches["prepare_scores", 3] >= 10
        assert max(step.down for step in ledger.steps) == 3 * TOKEN
    assert not ledger.allocated


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9, "repetition_penalty": 1.3}], ids=["all", "filtered"])
@pytest.mark.parametrize("strategy", ["speculative", "ngram"])
def test_sampled_drafts_are_verified_on_the_device(
    bundle: Path, make_decoder: Callable[..., tuple[Path, Path]], strategy: str, options: dict[str, Any]
) -> None:
    """Of each draft, some bytes go to the host, for any vocabulary; rejected tokens are replaced there."""
    options = {**options, "strategy": strategy, "temperature": 1.5, "seed": 2, "batch": 2}
    options |= {"max_new_tokens": 40, "ignore_eos": True}
    if strategy == "speculative":
        options |= {"draft": make_decoder("mistral")[1], "window": 3}
    else:
        options |= {"min_draft_prob": 1e-9, "ngram": 1}
    prompts = ["abcabcabcabc", "the the the the"]
    with TextGenerator(bundle, **options) as generator:
        expected = [text.tokens for text in generator.write_batch(prompts).whole()]
    with gpu() as ledger, TextGenerator(bundle, target="ort-cuda", **options) as generator:
        ledger.steps.clear()
        assert [text.tokens for text in generator.write_batch(prompts).whole()] == expected
        launches = Counter(name for name, _ in ledger.runtime.driver.launches)
        assert launches["subtract_weights"] and launches["draw_token"] >= launches["subtract_weights"]
        assert max(step.down for step in ledger.steps) < VOCABULARY * LOGIT
    assert not ledger.allocated


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, frequency_penalty=0.5)])
def test_request_whose_constraint_ends_fails_alone(bundle: Path, sampling: Sampling) -> None:
    with gpu(), TextGenerator(bundle, target="ort-cuda", batch=2) as generator:
        scheduler = generator.scheduler
        requests = [
            GenerationRequest([5, 6], sampling, seed=1, max_new_tokens=9, ignore_eos=True, constraint=constraint)
            for constraint in (NothingAfter(4), None)
        ]
        failing, other = (scheduler.submit(request) for request in requests)
        events = [event for _ in range(20) for event in scheduler.step()]
        (failed,) = (event for event in events if isinstance(event, Failed))
        assert failed.state is failing and isinstance(failed.error, UsageError)
        assert "allows no token after 4 tokens" in str(failed.error)
        assert len(failing.tokens) == 4 and len(other.tokens) == 9


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> None:
        raise MissingExtraError("NVRTC cannot be loaded (not there). Install it with: pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(launcher, "compile_kernel", missing)


def test_without_kernels_logits_go_to_the_host(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {**SAMPLED, "batch": 3, "max_new_tokens": 6}
    with TextGenerator(bundle, **options) as generator:
        expected = texts(generator)
    with gpu() as ledger:
        without_kernels(monkeypatch)
        with pytest.warns(LogitsOnTheHost, match="chosen on the CPU: NVRTC cannot be loaded"):
            generator = TextGenerator(bundle, target="ort-cuda", **options)
        with generator:
            assert texts(generator) == expected
        assert not ledger.runtime.driver.launches


@pytest.mark.parametrize("allowed", [True, False], ids=["pinned", "not allowed"])
def test_logits_on_the_host_are_pinned(bundle: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    """As other large outputs of many runs; not while nothing runs, nor once the arrays are gone."""
    monkeypatch.setattr("intaglio.runtime.engines.tensorrt.engine.PINNED", 1)
    decoder = decoder_of(Bundle.open(bundle))
    with open_engine(bundle) as engine:
        expected = np.asarray(DecoderSession(engine, decoder).prefill([[1, 2, 3]]))
    with gpu() as ledger, open_engine(bundle, "tensorrt-rtx") as engine:
        without_kernels(monkeypatch)
        ledger.runtime.refuses_pinning = not allowed
        with pytest.warns(LogitsOnTheHost):
            session = DecoderSession(engine, decoder)
        for _ in range(2):
            np.testing.assert_allclose(np.asarray(session.prefill([[1, 2, 3]])), expected, atol=1e-3, rtol=1e-4)
            assert len(ledger.runtime.pinned) == allowed
            session.rollback(0)
        session.close()
        del session
        gc.collect()
        assert not ledger.runtime.pinned
