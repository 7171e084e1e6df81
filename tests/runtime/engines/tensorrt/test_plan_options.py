"""Options of plans: built and opened on a stand-in for full TensorRT, and refused or built by TensorRT-RTX itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from tensorrt_plans import H100, BuilderFlag, full_tensorrt_with_a_gpu, weights

from intaglio.bundle.bundle import Bundle, EngineRecord
from intaglio.bundle.plan_record import PlanOptions
from intaglio.cli import cli
from intaglio.errors import BuildError, EngineError, UsageError
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.gpus import Gpu, present
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.engines.tensorrt.engine import TensorRTEngine, select
from intaglio.runtime.engines.tensorrt.plan_options import HOST_CODE, check_library

MakeEncoder = Callable[..., Path]
Feeds = dict[str, Any]


def record(path: Path) -> EngineRecord:
    (found,) = Bundle.open(path).manifest.engines
    return found


def outputs(path: Path, feeds: Feeds) -> Any:
    with open_engine(path, "tensorrt") as engine:
        return engine.run(feeds)["out"]


@pytest.mark.parametrize("external", [False, True])
def test_engine_without_weights_gets_those_of_the_bundle(
    make_encoder: MakeEncoder, feeds: Feeds, external: bool
) -> None:
    path = make_encoder("float32", external=external)
    with full_tensorrt_with_a_gpu():
        whole = build(path, "tensorrt").engines[0].bytes
        expected = outputs(path, feeds)
        stripped = build(path, "tensorrt", strip_weights=True, force=True).engines[0].bytes
        assert whole - stripped > 0.9 * weights(onnx.load(path / "model.onnx"))
        assert record(path).plan == PlanOptions(strip_weights=True)
        np.testing.assert_array_equal(outputs(path, feeds), expected)


def test_engine_whose_weights_are_missing_is_refused_by_name(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    with full_tensorrt_with_a_gpu():
        build(path, "tensorrt", strip_weights=True)
        model = onnx.load(path / "model.onnx")
        lost = next(tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT)
        name = lost.name
        model.graph.initializer.remove(lost)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, lost.data_type, lost.dims))
        bundle = Bundle.open(path)
        onnx.save(model, path / "model.onnx")
        with pytest.raises(EngineError) as caught:
            TensorRTEngine(bundle, "tensorrt")
    assert f"model.onnx does not have all of them: {name} missing. Only successfully refitted" in str(caught.value)
    assert "Re-build it with --force" in str(caught.value)


def test_engine_that_takes_no_weights_is_refused(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    with full_tensorrt_with_a_gpu():
        build(path, "tensorrt")
        bundle = Bundle.open(path)
        made = msgspec.structs.replace(record(path), plan=PlanOptions(strip_weights=True))
        bundle.add_files({made.path: (path / made.path).read_bytes()}, [made])
        with pytest.raises(EngineError, match=r"and it cannot be refitted\. The engine is not refittable\. Re-build"):
            TensorRTEngine(Bundle.open(path), "tensorrt")


def test_weights_that_do_not_fit_are_refused(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    with full_tensorrt_with_a_gpu():
        build(path, "tensorrt", strip_weights=True)
        bundle, model = Bundle.open(path), onnx.load(path / "model.onnx")
        shorter = next(tensor for tensor in model.graph.initializer if tensor.name == "gain")
        shorter.CopyFrom(onnx.numpy_helper.from_array(np.ones(3, np.float32), "gain"))
        onnx.save(model, path / "model.onnx")
        with pytest.raises(EngineError, match=r"gain.* missing\. Failed to set named weights gain"):
            TensorRTEngine(bundle, "tensorrt")


def test_decoder_without_weights_gets_those_of_its_graph(
    make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    path = Path(shutil.copytree(make_decoder("llama")[1], tmp_path / "llama"))
    with full_tensorrt_with_a_gpu():
        build(path, "tensorrt", strip_weights=True)
        with open_engine(path, "tensorrt") as engine:
            assert engine.axes["capacity"].minimum == engine.axes["capacity"].maximum


def test_refittable_engine_keeps_its_weights(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    with full_tensorrt_with_a_gpu() as trt:
        whole = build(path, "tensorrt").engines[0].bytes
        assert build(path, "tensorrt", refit=True, force=True).engines[0].bytes >= whole
        assert trt.config.flags == {BuilderFlag.REFIT}
        build(path, "tensorrt", refit=True, strip_weights=True, force=True)
        assert trt.config.flags == {BuilderFlag.REFIT, BuilderFlag.STRIP_PLAN}
        build(path, "tensorrt", strip_weights=True, force=True)
        assert trt.config.flags == {BuilderFlag.REFIT_IDENTICAL, BuilderFlag.STRIP_PLAN}


def test_version_that_drops_biases_builds_no_refittable_engine(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    with full_tensorrt_with_a_gpu("11.3.0.99"):
        with pytest.raises(UsageError, match=r"tensorrt 11\.3\.0\.99: --refit may drop a bias"):
            build(path, "tensorrt", refit=True)
        build(path, "tensorrt", strip_weights=True)


def test_version_compatible_engine_opens_in_later_versions(
    make_encoder: MakeEncoder, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_encoder("float32")
    monkeypatch.setenv(HOST_CODE, "1")
    with full_tensorrt_with_a_gpu("11.4.0.106"):
        build(path, "tensorrt", version_compatible=True)
        expected = outputs(path, feeds)
    with full_tensorrt_with_a_gpu("12.0.1.2"):
        np.testing.assert_array_equal(outputs(path, feeds), expected)
    with (
        full_tensorrt_with_a_gpu("11.3.9.200"),
        pytest.raises(EngineError, match=r"built by tensorrt 11\.4.* only in this or a later version"),
    ):
        outputs(path, feeds)


def test_engine_without_compatibility_opens_in_no_other_version(make_encoder: MakeEncoder, feeds: Feeds) -> None:
    path = make_encoder("float32")
    with full_tensorrt_with_a_gpu("11.4.0.106"):
        build(path, "tensorrt")
    with (
        full_tensorrt_with_a_gpu("11.4.1.1"),
        pytest.raises(EngineError, match=r"tensorrt 11\.4\.1\.1 is installed, .* only in the version that built"),
    ):
        outputs(path, feeds)


def test_another_library_opens_no_version_compatible_engine() -> None:
    plan = PlanOptions(version_compatible=True)
    made = EngineRecord("engines/a.engine", "tensorrt", "tensorrt 1.0", 3, "a100", 80, plan=plan)
    check_library(made, "tensorrt 1.0.1")
    with pytest.raises(EngineError, match=r"built by tensorrt 1\.0, but tensorrt_rtx 1\.7"):
        check_library(made, "tensorrt_rtx 1.7")


def test_code_of_an_engine_runs_only_if_the_environment_allows_it(
    make_encoder: MakeEncoder, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_encoder("float32")
    with full_tensorrt_with_a_gpu():
        build(path, "tensorrt", version_compatible=True)
        for value in (None, "", "0"):
            if value is not None:
                monkeypatch.setenv(HOST_CODE, value)
            with pytest.raises(EngineError, match=rf"holds a library that runs in this process.* Set {HOST_CODE}=1"):
                outputs(path, feeds)


def test_ampere_engine_runs_on_later_gpus(make_encoder: MakeEncoder, feeds: Feeds) -> None:
    path = make_encoder("float32")
    with full_tensorrt_with_a_gpu():
        build(path, "tensorrt", hardware_compatibility="ampere+")
        expected = outputs(path, feeds)
    with full_tensorrt_with_a_gpu(**H100):
        np.testing.assert_array_equal(outputs(path, feeds), expected)
        assert present() == Gpu("h100", 90)
    with (
        full_tensorrt_with_a_gpu(product="Tesla T4", sm=75),
        pytest.raises(EngineError, match=r"no tensorrt engine for t4 \(SM75\); it has a100 \(SM80\)"),
    ):
        outputs(path, feeds)


def test_engine_without_hardware_compatibility_runs_on_no_later_gpu(make_encoder: MakeEncoder, feeds: Feeds) -> None:
    path = make_encoder("float32")
    with full_tensorrt_with_a_gpu() as trt:
        build(path, "tensorrt", hardware_compatibility="same-compute-capability")
        assert trt.config.hardware_compatibility_level.name == "SAME_COMPUTE_CAPABILITY"
    with full_tensorrt_with_a_gpu(**H100), pytest.raises(EngineError, match="no tensorrt engine for h100"):
        outputs(path, feeds)


def test_engine_of_this_gpu_comes_before_a_compatible_one(make_encoder: MakeEncoder) -> None:
    bundle = Bundle.open(make_encoder())
    plan = PlanOptions(hardware_compatibility="ampere+")
    made = [
        EngineRecord(f"engines/{gpu}.engine", "tensorrt", "tensorrt 11.4", 3, gpu, sm, plan=plan)
        for gpu, sm in (("a100", 80), ("a30", 80), ("l4", 89))
    ]
    bundle.add_files({each.path: b"abc" for each in made}, made)
    for gpu, chosen in ((Gpu("a30", 80), "a30"), (Gpu("l40", 89), "l4"), (Gpu("h100", 90), "a100")):
        assert select(bundle, "tensorrt", gpu).gpu == chosen


def test_old_gpu_builds_no_ampere_engine(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    with (
        full_tensorrt_with_a_gpu(product="Tesla T4", sm=75),
        pytest.raises(UsageError, match=r"got t4 \(SM75\), expected a GPU of SM80 or newer.*same-compute-capability"),
    ):
        build(path, "tensorrt", hardware_compatibility="ampere+")
    assert not (path / "engines").exists()


def test_builder_gets_the_optimization_level(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    with full_tensorrt_with_a_gpu() as trt:
        build(path, "tensorrt")
        assert trt.config.builder_optimization_level == 3
        build(path, "tensorrt", optimization_level=5, force=True)
        assert trt.config.builder_optimization_level == 5


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("tensorrt-rtx", {"version_compatible": True}, "its engines open only in the version .* --version-compatible"),
        (
            "tensorrt-rtx",
            {"hardware_compatibility": "ampere+"},
            "Name each of them with --gpu, and leave out --hardware",
        ),
        ("tensorrt-rtx", {"optimization_level": 5}, "it measures no kernels .* leave out --optimization-level"),
        ("tensorrt", {"optimization_level": 6}, "--optimization-level 6: expected 0 to 5"),
        ("tensorrt", {"hardware_compatibility": "turing+"}, "expected one of none, ampere\\+, same-compute-capability"),
        ("ort-cpu", {"strip_weights": True}, "target ort-cpu: it builds no plans.* Leave out --strip-weights"),
        ("ort-cuda", {"version_compatible": True}, "target ort-cuda: .* Leave out --version-compatible"),
    ],
)
def test_options_that_a_library_lacks_are_refused_by_name(
    make_encoder: MakeEncoder, target: str, options: dict[str, Any], message: str
) -> None:
    pytest.importorskip("tensorrt_rtx")
    path = make_encoder()
    with pytest.raises(UsageError, match=message):
        build(path, target, gpus=["t4"] if target == "tensorrt-rtx" else [], **options)
    assert not (path / "engines").exists()


@pytest.mark.parametrize("options", [{"strip_weights": True}, {"refit": True}])
def test_rtx_says_what_it_needs_for_weights_that_change(
    make_encoder: MakeEncoder, options: Any, no_cuda_device: None
) -> None:
    pytest.importorskip("tensorrt_rtx_libs")
    with pytest.raises(BuildError, match=r"build on a machine with a GPU, or leave out --strip-weights and --refit"):
        build(make_encoder(), "tensorrt-rtx", gpus=["a100"], **options)


def test_tables_show_the_options_of_a_plan(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    options = ["--hardware-compatibility", "ampere+", "--strip-weights", "--optimization-level", "4"]
    with full_tensorrt_with_a_gpu():
        built = CliRunner().invoke(cli, ["build", str(path), "--target", "tensorrt", *options])
    for shown in (built, CliRunner().invoke(cli, ["inspect", str(path)])):
        assert "ampere+, no weights, level 4" in " ".join(shown.stdout.split())
    with full_tensorrt_with_a_gpu():
        plain = CliRunner().invoke(cli, ["build", str(path), "--target", "tensorrt", "--force"])
    assert plain.exit_code == 0 and " plan" not in plain.stdout
