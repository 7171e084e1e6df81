"""Caches of 8 and 4 bits in engines: built by TensorRT-RTX without a GPU, and opened and run on a stand-in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from covering import few
from cuda_ledger import gpu as stand_in
from devices import built

from intaglio.bundle.bundle import Bundle
from intaglio.deploy.triton.repository import deploy_triton
from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.extras import load
from intaglio.plugins import ort
from intaglio.plugins.cuda.compiler import images_for
from intaglio.plugins.quantize_cache.slots import slot_bytes
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.tensorrt import network
from intaglio.runtime.generation.generate import TextGenerator

MakeDecoder = Callable[..., tuple[Path, Path]]

# dtype, GPU, bits. TensorRT-RTX has no float32 products for a T4.
BUILDS = [("float16", "t4", 8), ("float32", "a100", 4), ("float16", "a100", 8), ("float16", "t4", 4)]


@pytest.mark.parametrize(("dtype", "gpu", "bits"), few(BUILDS, BUILDS[:2]))
def test_engine_writes_slots_in_place(
    make_decoder: MakeDecoder, tmp_path: Path, dtype: str, gpu: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx_libs")
    pytest.importorskip("cuda.bindings.nvrtc")
    if ort.library() is None:
        pytest.skip("no compiled kernels")
    layers = kept_layers(load("tensorrt_rtx"), monkeypatch)
    export(str(make_decoder("llama")[0]), tmp_path, dtype=dtype, check=False)
    (record,) = build(tmp_path, "tensorrt-rtx", gpus=[gpu], cache_bits=bits).engines
    bundle = Bundle.open(tmp_path)
    decoder = bundle.manifest.decoder
    assert bundle.manifest.engines == [record] and record.cache_bits == bits and record.sm is not None
    assert decoder is not None
    content = (tmp_path / record.path).read_bytes()
    assert all(images_for(folder, record.sm).cubin in content for folder in ("quantize_cache", "cached_attention"))
    words = {"key": slot_bytes(decoder.head_dim, 8) // 4, "value": slot_bytes(decoder.head_dim, bits) // 4}
    caches = {name: shapes["max"][-1] for name, shapes in record.profiles.items() if name.startswith("past_")}
    assert caches == {name: words[name.split("_")[1]] for name in caches} and len(caches) == 2 * decoder.layers
    # A cache has one name, of the output: one kernel scatters into it, one of ours reads it, and none copies it.
    names = sorted(name.replace("past", "present") for name in caches)
    written = [name for _, _, outputs in layers for name in outputs if name in names]
    read = [name for kind, inputs, _ in layers if kind == "custom_layer" for name in inputs if name in names]
    assert sorted(written) == sorted(read) == names
    others = [layer for layer in layers if layer[0] != "custom_layer"]
    assert all(name in outputs for _, inputs, outputs in others for name in inputs if name in names)
    assert caches.keys().isdisjoint(name for _, inputs, _ in layers for name in inputs)


def kept_layers(trt: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], list[str]]]:
    """The layers of the next engine, in a list that is filled by then: kind, inputs, outputs."""
    found: list[tuple[str, list[str], list[str]]] = []
    made = trt.Builder.create_builder_config

    def detailed(builder: Any) -> Any:
        config = made(builder)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        return config

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.ERROR:
                self.errors.append(message)
            for line in message.splitlines():
                if layer := re.match(r"Name: .*?, LayerType: (\w+), Inputs: (.*), Constants: .*, Outputs: (.*)", line):
                    kind, *tensors = layer.groups()
                    inputs, outputs = (re.findall(r"{ Name: (\S+),", each) for each in tensors)
                    found.append((kind, inputs, outputs))

    monkeypatch.setattr(trt.Builder, "create_builder_config", detailed)
    monkeypatch.setattr(network, "logger", lambda _: Log())
    return found


def written(target: str, bundle: Path, bits: int | None = None) -> list[int]:
    with TextGenerator(bundle, target=target, max_new_tokens=12, ignore_eos=True, cache_bits=bits) as generator:
        assert generator._model.engine.cache_bits == (bits or 8)
        return [*generator.write("One day").whole().tokens]


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_engine_is_opened_with_its_bits(make_decoder: MakeDecoder, tmp_path: Path, target: str) -> None:
    original = make_decoder("llama", max_position_embeddings=1024)[1]
    expected = written("ort-cpu", original, 8)
    bundle = built(original, tmp_path, 64, target, cache_bits=8)
    with stand_in():
        assert written(target, bundle) == written(target, bundle, 8) == expected
        with pytest.raises(
            UsageError, match=rf"--cache-bits 4: engine .* of 8 bits\. .* --target {target} --cache-bits 4"
        ):
            TextGenerator(bundle, target=target, cache_bits=4)
        floats = built(original, tmp_path, 64, target)
        with pytest.raises(UsageError, match=r"--cache-bits 8: engine .* has caches of the model's type"):
            TextGenerator(floats, target=target, cache_bits=8)


def test_deployed_engine_has_the_bits_that_are_asked_for(make_decoder: MakeDecoder, tmp_path: Path) -> None:
    bundle = built(make_decoder("llama", max_position_embeddings=1024)[1], tmp_path, 64, cache_bits=8)
    with pytest.raises(UsageError, match=r"--cache-bits 4: engine .* of 8 bits"):
        deploy_triton([bundle], tmp_path / "models", target="tensorrt-rtx", cache_bits=4)
    plain = make_decoder("llama", max_position_embeddings=1024)[1]
    with pytest.raises(UsageError, match=r"has no engine for target tensorrt-rtx. Build one with: intaglio build"):
        deploy_triton([plain], tmp_path / "models", target="tensorrt-rtx", cache_bits=8)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("ort-cpu", {}, "target ort-cpu: --cache-bits is for generate and serve there"),
        ("tensorrt-rtx", {"plugins": False}, "--cache-bits 8: plugins write and read such caches"),
        ("tensorrt-rtx", {"cache_bits": 5}, "--cache-bits 5: expected one of 8, 4"),
    ],
)
def test_builds_without_such_caches_are_refused(
    make_decoder: MakeDecoder, tmp_path: Path, target: str, options: dict[str, Any], message: str
) -> None:
    shutil.copytree(make_decoder("llama")[1], tmp_path / "bundle")
    with pytest.raises(UsageError, match=message):
        build(tmp_path / "bundle", target, gpus=["a100"], **{"cache_bits": 8, **options})
    assert Bundle.open(tmp_path / "bundle").manifest.engines == []


def test_encoders_and_encoder_decoders_are_refused(
    tiny_bundle: Path, make_encoder_decoder: MakeDecoder, tmp_path: Path
) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "encoder")
    with pytest.raises(UsageError, match="--cache-bits is for decoders"):
        build(tmp_path / "encoder", "tensorrt-rtx", gpus=["a100"], cache_bits=8)
    shutil.copytree(make_encoder_decoder("t5")[1], tmp_path / "both")
    with pytest.raises(UsageError, match=r"--cache-bits 8: .* is an encoder-decoder"):
        build(tmp_path / "both", "tensorrt-rtx", gpus=["a100"], cache_bits=8)
