import gc
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from intaglio.bundle.bundle import Bundle
from intaglio.display import progress
from intaglio.errors import BuildError, UsageError
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.gpus import named
from intaglio.runtime.engines.profiles import ranges, shapes
from intaglio.runtime.engines.tensorrt.network import Network

trt: Any = pytest.importorskip("tensorrt_rtx")

MakeEncoder = Callable[..., Path]


def refusal(path: Path, gpu: str = "a100") -> str:
    with pytest.raises(BuildError) as caught:
        build(path, "tensorrt-rtx", gpus=[gpu])
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"tensorrt_rtx {trt.__version__}")
    return message


def test_float32_matmul_on_t4_names_node_operator_reason_and_fix(make_encoder: MakeEncoder) -> None:
    message = refusal(make_encoder("float32"), "t4")
    assert "(MatMul): Turing (SM75): FP32 GEMM is not supported." in message
    assert any(f"node {name} " in message for name in ("query", "key", "value", "scores", "context", "up", "down"))
    assert "--dtype float16" in message
    assert "leave out --gpu t4" in message


def test_dynamic_quantisation_error_names_both_nodes(make_encoder: MakeEncoder) -> None:
    after = [
        helper.make_node("DynamicQuantizeLinear", ["hidden"], ["bytes", "scale", "zero"], "quantise"),
        helper.make_node("MatMulInteger", ["bytes", "bytes"], ["out"], "integer"),
    ]
    message = refusal(make_encoder("float32", after, "int32"))
    assert "node quantise (DynamicQuantizeLinear): TensorRT has no such operator (1 more: integer (MatMulInt" in message
    assert "QuantizeLinear and DequantizeLinear around MatMul" in message


def test_unnamed_node_is_identified_by_its_output(make_encoder: MakeEncoder) -> None:
    message = refusal(make_encoder(after=[helper.make_node("Unique", ["hidden"], ["out"])]))
    assert "node with output out (Unique)" in message


def test_data_dependent_shape_is_rejected(make_encoder: MakeEncoder) -> None:
    message = refusal(make_encoder(after=[helper.make_node("NonZero", ["hidden"], ["out"], "find")]))
    assert "node find (NonZero): NonZero plugin creator version 1 was not found" in message


def test_no_garbage_collection_while_the_library_holds_its_lock(make_encoder: MakeEncoder) -> None:
    """Collecting an older builder in a call of the logger deadlocked on the lock of that call."""
    path, inside = make_encoder("float32"), list[str]()

    def began(phase: str, _: object) -> None:
        inside.extend(frame.name for frame in traceback.extract_stack() if frame.name == "build_target")

    before = gc.get_threshold()
    gc.callbacks.append(began)
    gc.set_threshold(1)
    try:
        refusal(path, "t4")
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(began)
    assert not inside


def test_unsupported_inner_dtype_is_rejected_without_noise(
    make_encoder: MakeEncoder, capfd: pytest.CaptureFixture[str]
) -> None:
    after = [
        helper.make_node("Cast", ["hidden"], ["short"], "shorten", to=TensorProto.INT16),
        helper.make_node("Cast", ["short"], ["out"], "widen", to=TensorProto.FLOAT16),
    ]
    message = refusal(make_encoder(after=after))
    assert "node shorten (Cast): Unsupported data type" in message
    assert "Cast to float16" in message
    assert capfd.readouterr() == ("", "")


def test_unsupported_output_dtype_is_named(make_encoder: MakeEncoder) -> None:
    cast = helper.make_node("Cast", ["hidden"], ["out"], "to_double", to=TensorProto.DOUBLE)
    message = refusal(make_encoder(after=[cast], output_dtype="float64"))
    assert "does not support float64, the dtype of out" in message


def test_external_weights_are_found(make_encoder: MakeEncoder) -> None:
    assert build(make_encoder(external=True), "tensorrt-rtx", gpus=["t4"]).engines[0].bytes > 0


def test_kernels_take_no_more_than_the_workspace(make_encoder: MakeEncoder) -> None:
    after = [
        helper.make_node("Constant", [], ["count"], value_ints=[1]),
        helper.make_node("TopK", ["hidden", "count"], ["out", "places"], "best", axis=0),
    ]
    path = make_encoder(after=after)
    assert build(path, "tensorrt-rtx", gpus=["t4"], workspace=1024).engines[0].bytes > 0
    with pytest.raises(BuildError, match=r"\bworkspace\b.*Raise --workspace, or lower the largest lengths"):
        build(path, "tensorrt-rtx", gpus=["t4"], workspace=1, force=True)


@pytest.mark.parametrize(
    ("target", "workspace", "message"),
    [
        ("tensorrt-rtx", 0, "--workspace 0: expected 1 to 1048576, in MiB"),
        ("tensorrt-rtx", 1 << 50, "expected 1 to 1048576, in MiB"),
        ("ort-cpu", 64, "target ort-cpu: its kernels have no limit of memory. Leave out --workspace"),
    ],
)
def test_workspace_out_of_range_or_place_is_refused(
    make_encoder: MakeEncoder, target: str, workspace: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build(make_encoder(), target, gpus=["t4"], workspace=workspace)


def compile_for_t4(bundle: Bundle, target: Path) -> None:
    inputs = bundle.manifest.inputs
    network = Network(trt, bundle.model_path, bundle.graph(), "t4")
    network.compile(named("t4"), [shapes(inputs, ranges(inputs, bundle.manifest.axes, {}))], target)


def test_progress_rises_to_the_end(make_encoder: MakeEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[float] = []

    @contextmanager
    def fraction(description: str) -> Iterator[Callable[[float], None]]:
        assert description == "compiling for t4"
        yield parts.append

    monkeypatch.setattr(progress, "fraction", fraction)
    compile_for_t4(Bundle.open(make_encoder()), tmp_path / "engine")
    assert parts == sorted(parts)
    assert parts[0] < 0.3
    assert 0.7 < parts[-1] <= 1.0


def test_interrupt_stops_the_build_and_is_not_lost(
    make_encoder: MakeEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    parts: list[float] = []

    @contextmanager
    def fraction(description: str) -> Iterator[Callable[[float], None]]:
        def show(part: float) -> None:
            parts.append(part)
            signal.raise_signal(signal.SIGINT)

        yield show

    monkeypatch.setattr(progress, "fraction", fraction)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        compile_for_t4(Bundle.open(make_encoder()), tmp_path / "engine")
    assert len(parts) < 3
    assert not (tmp_path / "engine").exists()
    assert signal.getsignal(signal.SIGINT) is handler
    assert capfd.readouterr() == ("", "")
