"""The phases of a decoder's engine: its profiles, and engines with several that TensorRT-RTX's builder takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.exporters import export
from intaglio.extras import load
from intaglio.runtime.engines import profiles
from intaglio.runtime.engines.gpus import named
from intaglio.runtime.engines.profiles import Range
from intaglio.runtime.engines.tensorrt.lengths import PROMPT_TOKENS, STEP_TOKENS, engine_lengths, phases
from intaglio.runtime.engines.tensorrt.network import Network
from intaglio.runtime.engines.tensorrt.operators import parsable

MakeDecoder = Callable[..., tuple[Path, Path]]


def test_steps_and_prompts_have_profiles_of_their_own(make_decoder: MakeDecoder) -> None:
    bundle = Bundle.open(make_decoder("llama", max_position_embeddings=1024)[1])
    lengths, _ = engine_lengths(bundle, {})
    step, prompt = phases(bundle, lengths, {})
    assert step["tokens"] == Range(1, 1, STEP_TOKENS)
    assert prompt["tokens"] == Range(1, PROMPT_TOKENS, lengths["tokens"].maximum)
    assert {name: each for name, each in step.items() if name != "tokens"} == {
        name: each for name, each in prompt.items() if name != "tokens"
    }


def test_other_engines_have_one(make_decoder: MakeDecoder, tiny_bundle: Path) -> None:
    encoder = Bundle.open(tiny_bundle)
    lengths, _ = engine_lengths(encoder, {})
    assert phases(encoder, lengths, {}) == [lengths]
    decoder = Bundle.open(make_decoder("llama", max_position_embeddings=1024)[1])
    for asked in ({"tokens": Range(1, 1, 64)}, {"capacity": Range(STEP_TOKENS, STEP_TOKENS, STEP_TOKENS)}):
        lengths, _ = engine_lengths(decoder, asked)
        assert phases(decoder, lengths, asked) == [lengths]


def test_builder_takes_both(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_libs")
    trt = load("tensorrt_rtx")
    checkpoint, _ = make_decoder("llama")
    export(str(checkpoint), tmp_path / "bundle", dtype="float16", check=False)
    bundle = Bundle.open(tmp_path / "bundle")
    lengths, fixed = engine_lengths(bundle, {})
    graph = bundle.manifest.graphs[0]
    both = [profiles.shapes(graph.inputs, phase) for phase in phases(bundle, lengths, {})]
    assert len(both) == 2 and both[0] != both[1]
    with parsable(bundle.path / graph.file, trt, 80, fixed) as model:
        network = Network(trt, model, graph, "a100")
        for count in (1, 2):
            network.compile(named("a100"), both[:count], tmp_path / f"{count}.engine")
    assert (tmp_path / "2.engine").stat().st_size > 0
