"""Texts with logits on a GPU, a stand-in whose kernels run on the emulator: as on the host; and what crosses."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_ledger import gpu
from devices import built
from tiny_decoders import VOCABULARY

from intaglio.bundle.bundle import Bundle
from intaglio.errors import EngineError, MissingExtraError, UsageError
from intaglio.plugins.cuda import launcher
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed
from intaglio.runtime.sampling.constraint import LogitConstraint
from intaglio.runtime.sampling.sampler import Sampler, Sampling
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.device_logits import LogitsOnTheHost
from intaglio.runtime.sessions.step import decoder_of

TOKEN = LOGIT = 4  # bytes
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


def test_logits_of_an_earlier_step_are_refused(bundle: Path) -> None:
    with (
        gpu(),
        open_engine(bundle, "tensorrt-rtx") as engine,
        DecoderSession(engine, decoder_of(Bundle.open(bundle))) as session,
    ):
        (logits,) = session.append_uncopied([[1, 2, 3]], [1])
        kept = logits.copy()
        session.append_uncopied([[4, 5]], [2])
        with pytest.raises(EngineError, match="logits of an earlier step"):
            Sampler(Sampling()).choose(logits[0])
        assert kept.shape == (1, VOCABULARY)


def test_padding_behind_the_vocabulary_is_never_chosen(bundle: Path) -> None:
    """Nor do penalties for tokens there reach the next row."""
    decoder = decoder_of(Bundle.open(bundle))
    with gpu(), open_engine(bundle, "tensorrt-rtx") as engine, DecoderSession(engine, decoder, 2) as session:
        whole = np.array([logits[0] for logits in session.append([[1, 2], [3, 4]], [1, 1])])
        session.vocabulary = int(whole.argmax(axis=1).min())  # the best token of one row, at least, is padding
        session.rollback(0)
        rows = session.append_uncopied([[1, 2], [3, 4]], [1, 1])
        seen = list(range(VOCABULARY))
        for sampling in (Sampling(), Sampling(1.0, repetition_penalty=3.0), Sampling(presence_penalty=2.0)):
            for row, logits in enumerate(rows):
                expected = Sampler(sampling, 0).choose(whole[row, : session.vocabulary], seen)
                assert Sampler(sampling, 0).choose(logits[0], seen) == expected < session.vocabulary


def test_memory_does_not_grow_with_the_text(bundle: Path, make_decoder: Callable[..., tuple[Path, Path]]) -> None:
    """With penalties for more and more tokens, and sampled drafts, whose distributions are given back."""
    options: dict[str, Any] = {"draft": make_decoder("mistral")[1], "window": 3, "strategy": "speculative"}
    options |= {"temperature": 1.5, "frequency_penalty": 0.1, "seed": 0, "ignore_eos": True, "max_new_tokens": 40}
    with gpu() as ledger, TextGenerator(bundle, target="ort-cuda", **options) as generator:
        allocations: list[int] = []
        allocate = ledger.runtime.cudaMalloc
        ledger.runtime.cudaMalloc = lambda size: (allocations.append(size), allocate(size))[1]
        generator.write("a").whole()
        first = len(allocations)
        generator.write("a").whole()
        assert len(allocations) <= first + 12 and first < 60  # new shapes of steps


class Broken(LogitConstraint):
    """Fails in a way that is no error of the user's, once."""

    def __init__(self) -> None:
        self._calls = 0

    def allowed(self, written: Sequence[int]) -> None:
        self._calls += 1
        if self._calls == 1:
            raise ValueError("a defect")


def test_defect_of_a_constraint_is_of_its_request_alone(bundle: Path) -> None:
    with gpu(), TextGenerator(bundle, target="ort-cuda", batch=2) as generator:
        scheduler = generator.scheduler
        sampling = Sampling(1.0)
        requests = [
            GenerationRequest([5, 6], sampling, seed=1, max_new_tokens=9, ignore_eos=True, constraint=constraint)
            for constraint in (Broken(), None)
        ]
        _, other = (scheduler.submit(request) for request in requests)
        for _ in range(20):
            scheduler.step()
        assert len(other.tokens) == 9 and other.error is None


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
        with TextGenerator(bundle, target="ort-cuda", **options) as generator:
            with pytest.warns(LogitsOnTheHost, match="chosen on the CPU: NVRTC cannot be loaded"):
                found = texts(generator)
            assert found == expected
        assert not ledger.runtime.driver.launches


def test_kernels_run_on_the_first_gpu_alone(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu() as ledger:
        monkeypatch.setattr(ledger.runtime, "cudaGetDevice", lambda: (type(ledger.runtime).cudaError_t.cudaSuccess, 1))
        with (
            TextGenerator(bundle, target="ort-cuda", max_new_tokens=2) as generator,
            pytest.warns(LogitsOnTheHost, match="run on GPU 0, and the engine on 1"),
        ):
            generator.write("a").whole()
        assert not ledger.runtime.driver.launches


@pytest.mark.parametrize("allowed", [True, False], ids=["pinned", "not allowed"])
def test_logits_on_the_host_are_pinned(bundle: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    """Those of callers that take arrays; not while nothing runs, nor once the arrays are gone."""
    monkeypatch.setattr("intaglio.runtime.engines.tensorrt.engine.PINNED", 1)
    decoder = decoder_of(Bundle.open(bundle))
    with open_engine(bundle) as engine:
        expected = np.asarray(DecoderSession(engine, decoder).prefill([[1, 2, 3]]))
    with gpu() as ledger, open_engine(bundle, "tensorrt-rtx") as engine:
        ledger.runtime.refuses_pinning = not allowed
        session = DecoderSession(engine, decoder)
        for _ in range(2):
            np.testing.assert_allclose(np.asarray(session.prefill([[1, 2, 3]])), expected, atol=1e-3, rtol=1e-4)
            assert len(ledger.runtime.pinned) == allowed
            session.rollback(0)
        session.close()
        del session
        gc.collect()
        assert not ledger.runtime.pinned
