"""Our operators on ONNX Runtime's CUDA provider, on an emulated GPU: where they run, and that they compute the same."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from covering import few
from emulated_driver import emulated_gpu
from onnx_ir import serde
from operator_cases import MAKERS

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load, save
from intaglio.errors import EngineError, MissingExtraError
from intaglio.graph_passes import compress
from intaglio.plugins import CUDA_DOMAIN, DOMAIN, OPS
from intaglio.plugins import ort as kernels
from intaglio.plugins.cuda import compiler
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.onnxruntime import cuda_kernels
from intaglio.runtime.engines.onnxruntime.cuda_kernels import OnTheCpu
from intaglio.runtime.engines.onnxruntime.stored import stored_model
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.generation.generate import TextGenerator

MakeDecoder = Callable[..., tuple[Path, Path]]

if kernels.library() is None:
    pytest.skip("no compiled kernels", allow_module_level=True)


def feeds(bundle: Path) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shape = (2, 7)
    mask = np.ones(shape, np.int64)
    mask[1, 4:] = 0
    given = {"input_ids": random.integers(0, 99, shape), "attention_mask": mask, "token_type_ids": 0 * mask}
    return {spec.name: given[spec.name] for spec in Bundle.open(bundle).manifest.inputs}


def domains(path: Path) -> list[str]:
    return [node.domain for node in onnx.load(path, load_external_data=False).graph.node]


def custom_nodes(path: Path) -> int:
    count = domains(path).count(DOMAIN)
    assert count > 0
    return count


def test_encoder_runs_on_the_gpu_alone(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    with open_engine(tiny_int8_bundle) as engine:
        expected = engine.run(feeds(tiny_int8_bundle))
    with emulated_gpu(tmp_path) as (ledger, driver), warnings.catch_warnings():
        warnings.simplefilter("error", OnTheCpu)
        with open_engine(tiny_int8_bundle, "ort-cuda") as engine:
            assert driver.launches == []
            found = engine.run(feeds(tiny_int8_bundle))
    assert len(driver.launches) == custom_nodes(tiny_int8_bundle / "model.onnx")
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    (step,) = ledger.steps
    assert step.up == sum(array.nbytes for array in feeds(tiny_int8_bundle).values())
    assert step.down == sum(array.nbytes for array in expected.values())


@pytest.mark.proof
@pytest.mark.parametrize("recipe", few(["rtn", "lut-sparse"], ["lut-sparse"]))
def test_compressed_decoder_writes_the_same_text(
    tiny_decoder: Path, tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed = tmp_path / "compressed"
    text = tmp_path / "text.txt"
    text.write_text("The import statement finds a module, loads it and binds its name. " * 40)
    compress(tiny_decoder, compressed, recipe, calibration=text if recipe == "lut-sparse" else None)
    with TextGenerator(compressed, max_new_tokens=4) as generator:
        expected = generator.write("The import").whole()
    # The emulated kernels read constants where they lie in a file; those of a GPU are copied, and aligned.
    monkeypatch.setattr(cuda_kernels, "save", partial(cuda_kernels.save, external_above=0))
    with (
        emulated_gpu(tmp_path) as (_, driver),
        TextGenerator(compressed, max_new_tokens=4, target="ort-cuda") as generator,
    ):
        assert generator.write("The import").whole().text == expected.text
    count = custom_nodes(compressed / "model.onnx")
    assert len(driver.launches) % count == 0 and len(driver.launches) >= 4 * count


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_caches_stay_on_the_gpu(make_decoder: MakeDecoder, tmp_path: Path, bits: int) -> None:
    """Written and read by kernels, four bytes in a float; the same text as on the CPU."""
    bundle = make_decoder("llama")[1]
    options: dict[str, Any] = {"max_new_tokens": 6, "ignore_eos": True, "cache_bits": bits}
    with TextGenerator(bundle, **options) as generator:
        expected = generator.write("The import").whole()
    with emulated_gpu(tmp_path) as (ledger, driver), warnings.catch_warnings():
        warnings.simplefilter("error", OnTheCpu)
        with TextGenerator(bundle, target="ort-cuda", **options) as generator:
            assert generator.write("The import").whole().tokens == expected.tokens
    decoder = Bundle.open(bundle).manifest.decoder
    assert decoder is not None
    launches = Counter(name.split("_")[0] for name in driver.launches)
    steps = len(ledger.steps)
    assert launches["quantize"] == 2 * decoder.layers * steps and launches["cached"] == decoder.layers * steps
    assert max(step.up + step.down for step in ledger.steps) < 1000 and not ledger.allocated


def test_nodes_without_a_cuda_kernel_are_named(tmp_path: Path) -> None:
    """They run on the CPU, which an engine must not do silently."""
    case = MAKERS["CsrMatMul"](np.random.default_rng(0))
    model = node_model(case)
    path = tmp_path / "model.onnx"
    onnx.save(serde.serialize_model(model), path)
    with (
        emulated_gpu(tmp_path) as (_, driver),
        pytest.warns(OnTheCpu, match=r"^node node runs on the CPU .*: CsrMatMul: columns \(columns\) is"),
        open_engine(path, "ort-cuda") as engine,
    ):
        engine.run({spec.name: array for spec, array in zip(OPS["CsrMatMul"].inputs, case.inputs, strict=True)})
    assert driver.launches == []


def test_missing_compiler_is_named(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    def missing(*_: Any) -> Any:
        raise MissingExtraError("NVRTC cannot be loaded. Install it with: pip install nvidia-cuda-nvrtc")

    with emulated_gpu(tmp_path) as (_, driver), pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "compile_kernel", missing)
        with (
            pytest.warns(OnTheCpu, match=r"IntLinear.* run on the CPU: NVRTC cannot be loaded"),
            open_engine(tiny_int8_bundle, "ort-cuda") as engine,
        ):
            engine.run(feeds(tiny_int8_bundle))
    assert driver.launches == []


def test_kernel_that_does_not_compile_leaves_its_nodes_on_the_cpu(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    def failing(folder: str, sm: int) -> Any:
        raise EngineError(f"{folder}: does not compile")

    with emulated_gpu(tmp_path) as (_, driver), pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "compile_kernel", failing)
        with (
            pytest.warns(OnTheCpu, match="runs on the CPU .*does not compile"),
            open_engine(tiny_int8_bundle, "ort-cuda") as engine,
        ):
            engine.run(feeds(tiny_int8_bundle))
    assert driver.launches == []


def test_built_engine_brings_its_kernels(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_int8_bundle, bundle)
    count = custom_nodes(bundle / "model.onnx")
    with open_engine(bundle) as engine:
        expected = engine.run(feeds(bundle))
    with emulated_gpu(tmp_path) as (_, driver):
        (record,) = build(bundle, "ort-cuda").engines
        assert (record.gpu, record.sm) == ("a100", 80)
        assert domains(bundle / record.path).count(CUDA_DOMAIN) == count
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "compile_kernel", None)  # no longer needed
            with open_engine(bundle, "ort-cuda") as engine:
                found = engine.run(feeds(bundle))
        assert len(driver.launches) == count
        opened = Bundle.open(bundle)
        opened.manifest.engines[0].sm = 75
        assert stored_model(opened, "ort-cuda", "model.onnx") is None
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_external_weights_are_not_copied(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "external" / "model.onnx"
    path.parent.mkdir()
    save(load(tiny_int8_bundle / "model.onnx"), path, external_above=0)
    before = {file: (file.stat().st_size, file.stat().st_nlink) for file in path.parent.iterdir()}
    with open_engine(path) as engine:
        expected = engine.run(feeds(tiny_int8_bundle))
    with emulated_gpu(tmp_path), open_engine(path, "ort-cuda") as engine:
        found = engine.run(feeds(tiny_int8_bundle))
    assert {file: (file.stat().st_size, file.stat().st_nlink) for file in path.parent.iterdir()} == before
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
