"""Traffic between host and device in a step: ids, positions, trees, and tokens chosen there; never logits or a cache.

`cuda_ledger` stands in for a GPU, and `device_meter` counts every byte; where there is a GPU, it counts there too. What
a step took when caches were copied to the device and back is printed beside (`pytest -s`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_ledger import gpu
from device_meter import Step
from devices import Device, built
from drafts import save_drafts
from early_exits import save_early_exit
from tiny_decoders import VOCABULARY

from intaglio.bundle.bundle import Axis, Bundle, Decoder
from intaglio.errors import EngineError
from intaglio.exporters import export
from intaglio.runtime.engines import profiles
from intaglio.runtime.engines.onnxruntime.provider import missing_provider
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.sessions import key_value_cache as module
from intaglio.runtime.sessions import limits
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.draft_inputs import drafted
from intaglio.runtime.sessions.step import SOURCE_IDS, decoder_of, empty_caches, step_feeds
from intaglio.targets import TARGETS

PROMPT = "the cache stays"
SOURCE = "A source text that is much longer than what one step of a decoder needs. " * 3
TREE = 16  # drafted tokens at most
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"strategy": "greedy"},
    "speculative": {"strategy": "speculative", "window": 3},
    "bild": {"strategy": "bild", "fallback": 0.0, "rollback": 3.0, "max_draft": 4},
    "hidden-transfer": {"strategy": "hidden-transfer", "tree": TREE},
    "medusa": {"strategy": "medusa", "tree": TREE},
}


@dataclass(frozen=True)
class Models:
    """Bundles of random models with one tokenizer."""

    large: Path
    small: Path
    drafting: Mapping[str, Path]
    exiting: Path

    def options(self, strategy: str) -> dict[str, Any]:
        """What `TextGenerator` is opened with, but for the engines."""
        return {"draft": self.small} if strategy in ("speculative", "bild") else {}

    def bundle(self, strategy: str) -> Path:
        return self.drafting.get(strategy, self.large)


@pytest.fixture(scope="module")
def models(make_decoder: Callable[..., tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("traffic")
    checkpoint, large = make_decoder("llama", max_position_embeddings=1024)
    _, small = make_decoder("mistral", max_position_embeddings=1024)
    drafting = {}
    for kind in ("hidden-transfer", "medusa"):
        export(str(save_drafts(checkpoint, folder / kind, kind)), folder / f"{kind}-bundle", check=False)
        drafting[kind] = folder / f"{kind}-bundle"
    export(str(save_early_exit(checkpoint, folder / "exiting")), folder / "exiting-bundle", check=False)
    return Models(large, small, drafting, folder / "exiting-bundle")


@pytest.fixture(
    params=["stand-in tensorrt-rtx", "stand-in tensorrt", "stand-in ort-cuda", "ort-cuda", "tensorrt-rtx", "tensorrt"]
)
def device(request: pytest.FixtureRequest) -> Device:
    *stand_in, target = request.param.split()
    if stand_in:
        return Device(target, real=False)
    request.getfixturevalue("cuda_device")
    pytest.importorskip(TARGETS[target].library)
    if TARGETS[target].runs_files and (missing := missing_provider(target)):
        pytest.skip(missing)
    return Device(target, real=True)


SUMMARY, LOGIT = 16, 4  # bytes: a token, its logit, and the sum of the weights; a logit


def bound(step: Step, decoder: Decoder) -> tuple[int, int]:
    """Maximum bytes uploaded, and downloaded, in a step; independent of the capacity and the vocabulary."""
    rows, tokens = step.shapes["input_ids"]
    wanted, drafting = step.shapes["logit_indices"][1], step.shapes.get("draft_indices", (0, 0))[1]
    behind = drafted(decoder, drafting)
    numbers = 2 * tokens + 1 + wanted + drafting + behind  # ids, positions, start, indices; the same of drafts
    masks = tokens * tokens + behind * (tokens + behind)  # of trees and pseudo states, a byte each
    drafts = rows * drafting * decoder.drafts * (SUMMARY + 2 * LOGIT * TREE)  # those with the highest logits
    return rows * (8 * numbers + masks), drafts + rows * wanted * (SUMMARY + LOGIT)


def check(step: Step, decoder: Decoder, once: int = 0) -> None:
    """The traffic of a step is within its bounds, which allow for `once` more bytes uploaded."""
    up, down = bound(step, decoder)
    assert step.up <= up + once and step.down <= down


def copied(step: Step, bundle: Bundle) -> int:
    """The bytes of a step that takes all of its inputs from the host, and gives all of its outputs back."""
    axes: dict[str | int, int] = {}
    for spec in bundle.manifest.inputs:
        axes |= zip(spec.shape, step.shapes[spec.name], strict=True)
    return sum(
        prod(axes.get(axis, axis) for axis in spec.shape) * np.dtype(spec.dtype).itemsize  # type: ignore[misc]
        for spec in (*bundle.manifest.inputs, *bundle.manifest.outputs)
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_step_traffic_is_independent_of_capacity(strategy: str, models: Models, tmp_path: Path) -> None:
    options: dict[str, Any] = {**STRATEGIES[strategy], "max_new_tokens": 16, "ignore_eos": True}
    with TextGenerator(models.bundle(strategy), **options, **models.options(strategy)) as generator:
        expected = generator.write(PROMPT).whole().tokens
    traffic: dict[int, list[tuple[int, int]]] = {}
    before = 0
    for capacity in (64, 640):
        large = built(models.bundle(strategy), tmp_path, capacity)
        draft = {name: built(path, tmp_path, capacity) for name, path in models.options(strategy).items()}
        bundle = Bundle.open(large)
        with gpu() as ledger, TextGenerator(large, target="tensorrt-rtx", **options, **draft) as generator:
            ledger.steps.clear()
            assert generator.write(PROMPT).whole().tokens == expected
        assert not ledger.allocated, "closing frees everything"
        for step in ledger.steps:
            check(step, decoder_of(bundle))  # the draft model has no drafts of its own
        traffic[capacity] = [(step.up, step.down) for step in ledger.steps]
        before = max(copied(step, bundle) for step in ledger.steps)
    assert traffic[64] == traffic[640]
    most = max(up + down for up, down in traffic[640])
    sys.stdout.write(f"\n{strategy}: at most {most:,} bytes a step; copied whole, they were {before:,}\n")
    assert most < before / 10


def check_growth(device: Device, bundle: Path, folder: Path, options: dict[str, Any], name: str) -> None:
    """Write a text on the device in caches that grow by few slots at a time: the text, and its traffic."""
    options = {**options, "max_new_tokens": 32, "ignore_eos": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CAPACITY_STEP", 8)
        with TextGenerator(bundle, **options) as generator:
            expected = generator.write(PROMPT).whole().tokens
        if "draft" in options:
            options["draft"] = device.prepared(options["draft"], folder, 96)
        prepared = device.prepared(bundle, folder, 96)
        if device.grows:
            patch.setattr(profiles, "limits", lambda inputs, profile: {})  # of an engine's axes
        with device.running() as traffic, TextGenerator(prepared, target=device.target, **options) as generator:
            found = generator.write(PROMPT).whole().tokens
    assert not traffic.allocated, "closing frees everything"
    assert len(found) == len(expected)
    assert device.real or found == expected  # a GPU rounds otherwise, and a random model's best two tokens may be close
    for step in traffic.steps:
        check(step, decoder_of(Bundle.open(bundle)))
    capacities = {step.shapes["attention_mask"][2] for step in traffic.steps}
    assert len(capacities) >= 4 if device.grows else capacities == {96}
    most = max(step.up + step.down for step in traffic.steps)
    sys.stdout.write(f"\n{name} on {device.target}: {len(capacities)} capacities, at most {most:,} bytes a step\n")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_growing_cache_stays_on_the_device(strategy: str, device: Device, models: Models, tmp_path: Path) -> None:
    """With engines of fixed caches, the same without growth."""
    options = {**STRATEGIES[strategy], **models.options(strategy)}
    check_growth(device, models.bundle(strategy), tmp_path, options, strategy)


@pytest.mark.parametrize("device", ["stand-in ort-cuda", "ort-cuda"], indirect=True)
def test_shared_cache_of_two_engines_grows_on_the_device(device: Device, models: Models, tmp_path: Path) -> None:
    """The whole model and its first blocks; TensorRT's engines compute the whole model only."""
    check_growth(device, models.exiting, tmp_path, {**STRATEGIES["bild"], "early_exit": True}, "early exit")


def test_cross_kv_is_transferred_once_per_source(
    device: Device, make_encoder_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    """It is downloaded from the encoder's engine and uploaded to the decoder's before the first step."""
    options: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}
    bundle = make_encoder_decoder("t5")[1]
    with TextGenerator(bundle, **options) as generator:
        expected = generator.write(SOURCE).whole().tokens
    prepared = device.prepared(bundle, tmp_path, 64)
    decoder = Bundle.open(prepared).manifest.decoder
    assert decoder is not None
    with device.running() as traffic:
        with TextGenerator(prepared, target=device.target, **options) as generator:
            found = generator.write(SOURCE).whole().tokens
        assert not traffic.allocated
    assert len(found) == len(expected)
    assert device.real or found == expected
    _, encoder, *steps = traffic.steps  # the first encodes padding, for steps before there is a source
    tokens = encoder.shapes[SOURCE_IDS.name][1]
    traffic = 2 * decoder.layers * decoder.kv_heads * tokens * decoder.head_dim * 4  # keys and values, float32
    assert encoder.down == traffic
    assert len(steps) == len(found)
    for index, step in enumerate(steps):
        check(step, decoder, once=traffic + tokens if index == 0 else 0)  # with a mask of its tokens
    most = max(step.up + step.down for step in steps[1:])
    sys.stdout.write(f"\nt5 on {device.target}: at most {most:,} bytes a step; its source took {traffic:,} once\n")
    assert most < traffic / 10


def test_cache_growth_copies_on_the_device(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of different lengths, a prompt in pieces, moved rows of a tree, and a row that is copied."""
    monkeypatch.setattr(module, "CAPACITY_STEP", 16)
    monkeypatch.setattr(limits, "PREFILL_TOKENS", 5)
    bundle = Bundle.open(built(models.large, tmp_path, 64))
    texts = np.random.default_rng(0).integers(0, VOCABULARY, (2, 50)).tolist()

    def written(session: DecoderSession) -> list[Any]:
        found = [session.prefill([texts[0][:12], texts[1][:7]])]
        for place in range(12, 40):
            found += session.append([texts[0][place : place + 1], []], [1, 0])
        found += session.append([[], [5, 6, 7, 8]], [0, 4], trees=[(), (-1, -1, 1, 2)])
        session.keep(1, 7, [1, 2, 3])
        session.truncate(0, 20)
        found += session.append([[9], [10]], [1, 1])
        session.copy(0, 1, 18)
        found += session.append([[11, 12], [13]], [2, 1])
        return [np.asarray(each) for each in found]

    with open_engine(bundle) as engine:
        expected = written(DecoderSession(engine, decoder_of(bundle), 2))
    with gpu() as ledger, open_engine(bundle, "tensorrt-rtx") as engine:
        engine.axes = {**engine.axes, "capacity": Axis(), "tokens": Axis()}  # an engine whose caches may grow
        session = DecoderSession(engine, decoder_of(bundle), 2)
        found = written(session)
        assert session.capacity == 48
        for step in ledger.steps:
            assert step.up <= bound(step, decoder_of(bundle))[0]
            assert step.down <= np.prod(step.shapes["logit_indices"]) * VOCABULARY * LOGIT
        # While it grows, one layer's keys are there twice.
        caches = sum(buffer.nbytes for buffer in session.cache.buffers.values())
        assert ledger.most < 1.3 * caches + 64_000
        session.close()
        assert not ledger.allocated
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-3, rtol=1e-4)


def test_engine_without_in_place_cache_update_is_rejected(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(built(models.large, tmp_path, 64))
    with gpu(), open_engine(bundle, "tensorrt-rtx") as engine:
        monkeypatch.setattr(type(engine), "_aliased", lambda self, output: None)
        with pytest.raises(EngineError, match=r"does not update past_key_0 in place\. Re-build it with TensorRT"):
            DecoderSession(engine, decoder_of(bundle)).prefill([[1, 2]])


def test_host_arrays_are_uploaded_and_downloaded(models: Models, tmp_path: Path) -> None:
    """`run`, which binds nothing, returns the caches as new arrays and does not modify its inputs."""
    bundle = Bundle.open(built(models.large, tmp_path, 64))
    feeds = step_feeds(decoder_of(bundle), np.array([[1, 2, 3]]), capacity=64)
    feeds |= empty_caches(bundle.manifest.inputs, 1, 64)
    with open_engine(bundle) as engine:
        expected = engine.run(feeds)
    with gpu(), open_engine(bundle, "tensorrt-rtx") as engine:
        for _ in range(2):
            found = engine.run(feeds)
            for name, array in expected.items():
                np.testing.assert_allclose(found[name], array, atol=1e-4)
    assert not feeds["past_key_0"].any()
