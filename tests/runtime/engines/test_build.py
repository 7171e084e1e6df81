import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from speech_bundles import export_recogniser

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BuildError, BundleError, EngineError, MissingExtraError, StorageError, UsageError
from intaglio.exporters import export
from intaglio.files.hashes import sha256
from intaglio.runtime.engines import gpus
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.build_request import Refused
from intaglio.runtime.engines.onnxruntime.stored import stored_engine
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.engines.tensorrt.network import Network, Shapes

MakeEncoder = Callable[..., Path]


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_engines_for_two_gpus_are_recorded_and_hashed(make_encoder: MakeEncoder) -> None:
    pytest.importorskip("tensorrt_rtx")
    path = make_encoder()
    built = build(path, "tensorrt-rtx", gpus=["t4", "a100", "t4"], batch="1:2:4", axes={"sequence": "8"})
    assert [(record.path, record.gpu, record.sm) for record in built.engines] == [
        ("engines/tensorrt-rtx-t4.engine", "t4", 75),
        ("engines/tensorrt-rtx-a100.engine", "a100", 80),
    ]
    manifest = Bundle.open(path).manifest
    assert manifest.engines == built.engines
    for record in built.engines:
        assert record.library.startswith("tensorrt_rtx 1.")
        assert record.profiles["input_ids"] == {"min": [1, 8], "opt": [2, 8], "max": [4, 8]}
        assert record.bytes == (path / record.path).stat().st_size > 0
        assert manifest.files[record.path].sha256 == sha256(path / record.path)
    t4, a100 = (contents(path)[record.path] for record in built.engines)
    assert t4 != a100
    assert sorted(file.name for file in path.iterdir()) == ["bundle.json", "engines", "model.onnx"]


def test_residual_sums_are_not_fused_with_their_norm_on_cpus(tmp_path: Path) -> None:
    """ONNX Runtime's kernel of both takes six times as long as the two alone."""
    path = export_recogniser(tmp_path / "recogniser")
    build(path, "ort-cpu")
    kinds = {node.op_type for node in onnx.load(path / "engines/ort-cpu.onnx", load_external_data=False).graph.node}
    assert {"Add", "LayerNormalization"} <= kinds
    assert "SkipLayerNormalization" not in kinds


def test_failing_gpu_keeps_the_engines_of_others(make_encoder: MakeEncoder) -> None:
    pytest.importorskip("tensorrt_rtx")
    path = make_encoder("float32")
    built = build(path, "tensorrt-rtx", gpus=["t4", "a100", "rtx-2080"], sequence="8")
    assert [record.gpu for record in built.engines] == ["a100"]
    assert [refused.gpu for refused in built.refused] == ["t4", "rtx-2080"]
    for refused in built.refused:
        assert f"cannot build for {refused.gpu}: " in refused.reason
        assert "FP32 GEMM is not supported" in refused.reason
    assert Bundle.open(path).manifest.engines == built.engines
    assert sorted(file.name for file in path.rglob("*.engine")) == ["tensorrt-rtx-a100.engine"]
    assert sorted(file.name for file in path.iterdir()) == ["bundle.json", "engines", "model.onnx"]


def test_bundle_is_unchanged_if_all_gpus_fail(make_encoder: MakeEncoder) -> None:
    pytest.importorskip("tensorrt_rtx")
    path = make_encoder("float32")
    before = contents(path)
    with pytest.raises(
        BuildError, match=r"no engine was built\. .* cannot build for t4: .* cannot build for rtx-2080: "
    ) as caught:
        build(path, "tensorrt-rtx", gpus=["t4", "rtx-2080"])
    assert "\n" not in str(caught.value)
    assert contents(path) == before
    assert sorted(file.name for file in path.iterdir()) == ["bundle.json", "model.onnx"]


@pytest.mark.proof
def test_gpu_failing_one_graph_gets_no_engines(
    make_encoder_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx")
    checkpoint, _ = make_encoder_decoder("t5", d_kv=16)
    path = tmp_path / "bundle"
    export(str(checkpoint), path, dtype="float16", check=False)
    compile_engine = Network.compile

    def picky(network: Network, gpu: gpus.Gpu, phases: list[Shapes], target: Path) -> None:
        if gpu.name == "t4" and "encoder" in target.name:
            raise BuildError("no encoders here")
        compile_engine(network, gpu, phases, target)

    monkeypatch.setattr(Network, "compile", picky)
    built = build(path, "tensorrt-rtx", gpus=["t4", "a100"])
    assert [(record.gpu, record.graph) for record in built.engines] == [
        ("a100", "model.onnx"),
        ("a100", "encoder.onnx"),
    ]
    assert built.refused == [Refused("t4", "no encoders here")]
    assert sorted(file.name for file in path.rglob("*.engine")) == [
        "tensorrt-rtx-a100-encoder.engine",
        "tensorrt-rtx-a100.engine",
    ]


def test_command_names_the_failing_gpu_and_exits_with_1(
    make_encoder: MakeEncoder, intaglio: Callable[..., tuple[int, str, str]]
) -> None:
    pytest.importorskip("tensorrt_rtx")
    path = make_encoder("float32")
    arguments = ("build", path, "--target", "tensorrt-rtx", "--gpu", "t4", "--sequence", "8")
    code, out, err = intaglio(*arguments)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    code, out, err = intaglio(*arguments, "--gpu", "a100")
    assert code == 1
    assert "tensorrt-rtx-a100.engine" in out and "t4" not in out
    (line,) = err.splitlines()
    assert line.startswith("t4: not built. tensorrt_rtx ") and "FP32 GEMM is not supported" in line
    code, out, err = intaglio(*arguments, "--gpu", "a100", "--force", "--json")
    assert (code, err) == (1, "")
    result = json.loads(out)
    assert [engine["gpu"] for engine in result["engines"]] == ["a100"]
    assert [refused["gpu"] for refused in result["refused"]] == ["t4"]


def test_unwritable_bundle_is_a_storage_error(make_encoder: MakeEncoder) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    path = make_encoder("float32")
    path.chmod(0o555)
    try:
        with pytest.raises(StorageError, match="cannot write"):
            build(path, "ort-cpu")
    finally:
        path.chmod(0o755)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_stored_onnxruntime_engine_gives_the_same_numbers(
    make_encoder: MakeEncoder, feeds: dict[str, np.ndarray], dtype: str
) -> None:
    path = make_encoder(dtype)
    with open_engine(path) as engine:
        expected = engine.run(feeds)["out"]
    [record] = build(path, "ort-cpu").engines
    assert (record.path, record.gpu, record.sm) == ("engines/ort-cpu.onnx", None, None)
    assert record.bytes == (path / record.path).stat().st_size
    bundle = Bundle.open(path)
    assert stored_engine(bundle, "ort-cpu") == path / record.path
    with open_engine(path) as engine:
        found = engine.run(feeds)["out"]
    np.testing.assert_array_equal(found, expected)


def test_engine_of_another_onnxruntime_is_not_used(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    build(path, "ort-cpu")
    bundle = Bundle.open(path)
    bundle.manifest.engines[0].library = "onnxruntime 1.0.0"
    assert stored_engine(bundle, "ort-cpu") is None
    assert stored_engine(bundle, "ort-cuda") is None


def test_external_weights_stay_external(make_encoder: MakeEncoder, feeds: dict[str, np.ndarray]) -> None:
    path = make_encoder("float32", external=True)
    with open_engine(path) as engine:
        expected = engine.run(feeds)["out"]
    [record] = build(path, "ort-cpu").engines
    files = [path / name for name in ("engines/ort-cpu.onnx", "engines/ort-cpu.onnx.data")]
    assert record.bytes == sum(file.stat().st_size for file in files)
    assert set(Bundle.open(path).manifest.files) >= {"engines/ort-cpu.onnx", "engines/ort-cpu.onnx.data"}
    with open_engine(path) as engine:
        found = engine.run(feeds)["out"]
    np.testing.assert_array_equal(found, expected)


def test_present_engine_is_replaced_only_with_force(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    build(path, "ort-cpu")
    with pytest.raises(UsageError, match=r"has ort-cpu\.onnx already\. Add --force"):
        build(path, "ort-cpu")
    build(path, "ort-cpu", force=True)
    assert len(Bundle.open(path).manifest.engines) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "tpu"}, r"target 'tpu': expected one of ort-cpu, ort-cuda, tensorrt, tensorrt-rtx"),
        ({"target": "ort-cpu", "gpus": ["t4"]}, "does not accept GPU names"),
        ({"target": "ort-cpu", "sequence": "1:8:16"}, "does not accept GPU names or axis lengths"),
        ({"target": "tensorrt-rtx"}, "no GPU given"),
        ({"target": "tensorrt-rtx", "gpus": ["h100"]}, "does not compile for SM90"),
        ({"target": "tensorrt-rtx", "gpus": ["t4"], "sequence": "1:8:65"}, "the model accepts 1 to 64"),
        ({"target": "tensorrt-rtx", "gpus": ["t4"], "batch": "8:1:2"}, "--batch 8:1:2"),
        ({"target": "tensorrt-rtx", "gpus": ["t4"], "axes": {"frames": "1"}}, "have batch, sequence"),
    ],
)
def test_invalid_options_are_rejected_without_files(
    make_encoder: MakeEncoder, options: dict[str, object], message: str
) -> None:
    pytest.importorskip("tensorrt_rtx")
    path = make_encoder()
    before = contents(path)
    with pytest.raises(UsageError, match=message):
        build(path, **options)  # type: ignore[arg-type]
    assert contents(path) == before


def test_onnxruntime_without_cuda_lists_its_providers(make_encoder: MakeEncoder) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(BuildError, match=r"needs CUDAExecutionProvider, this ONNX Runtime has .*CPUExecutionProvider"):
        build(make_encoder(), "ort-cuda")


def test_missing_tensorrt_names_the_extra(make_encoder: MakeEncoder) -> None:
    if importlib.util.find_spec("tensorrt"):
        pytest.skip("tensorrt is installed")
    with pytest.raises(MissingExtraError, match=r"pip install 'intaglio\[gpu\]'"):
        build(make_encoder(), "tensorrt")


@pytest.fixture
def rtx_as_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-RTX in place of TensorRT, with the same API, where TensorRT cannot be installed."""
    monkeypatch.setitem(sys.modules, "tensorrt", pytest.importorskip("tensorrt_rtx"))


def test_tensorrt_without_a_gpu_points_to_rtx(
    make_encoder: MakeEncoder, rtx_as_tensorrt: None, no_cuda_device: None
) -> None:
    with pytest.raises(BuildError, match=r"no CUDA device, .*Use --target tensorrt-rtx, which compiles without a GPU"):
        build(make_encoder(), "tensorrt")


def test_tensorrt_builds_only_for_the_present_gpu(
    make_encoder: MakeEncoder, rtx_as_tensorrt: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "present", lambda: gpus.recognised("Tesla T4", 75))
    path = make_encoder()
    with pytest.raises(BuildError, match=r"got --gpu a100, this machine has t4 \(SM75\)"):
        build(path, "tensorrt", gpus=["a100"])
    [record] = build(path, "tensorrt").engines
    assert (record.path, record.gpu, record.sm) == ("engines/tensorrt-t4.engine", "t4", 75)


def test_damaged_bundle_is_rejected_before_building(make_encoder: MakeEncoder) -> None:
    path = make_encoder("float32")
    (path / "model.onnx").write_bytes(b"")
    with pytest.raises(BundleError, match=r"0 bytes, expected"):
        build(path, "ort-cpu")


def test_unknown_operator_is_a_one_line_error(make_encoder: MakeEncoder) -> None:
    from onnx import helper

    path = make_encoder("float32", [helper.make_node("Nonsense", ["hidden"], ["out"], "last")])
    with pytest.raises(BuildError, match=r"ONNX Runtime cannot open it: .*Nonsense") as caught:
        build(path, "ort-cpu")
    assert "\n" not in str(caught.value)
    with pytest.raises(EngineError):
        open_engine(path)
