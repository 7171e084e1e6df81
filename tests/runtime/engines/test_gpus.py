import sys

import pytest

from intaglio.errors import EngineError, MissingExtraError, UsageError
from intaglio.runtime.engines import gpus


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"--gpu t5: unknown, expected one of t4, .*a100.*rtx-5090"):
        gpus.named("t5")


def test_names_are_case_insensitive() -> None:
    assert gpus.named("RTX-4090") == gpus.Gpu("rtx-4090", 89)


@pytest.mark.parametrize(
    ("product", "sm", "name"),
    [
        ("Tesla T4", 75, "t4"),
        ("NVIDIA A100-SXM4-40GB", 80, "a100"),
        ("NVIDIA A10G", 86, "a10g"),
        ("NVIDIA L40S", 89, "l40s"),
        ("NVIDIA GeForce RTX 4090", 89, "rtx-4090"),
        ("NVIDIA H100 80GB HBM3", 90, "h100"),
        ("NVIDIA Thor", 110, "sm110"),
        ("NVIDIA A10", 80, "sm80"),  # a name that disagrees with the compute capability is not believed
    ],
)
def test_device_is_recognised_by_name_and_capability(product: str, sm: int, name: str) -> None:
    assert gpus.recognised(product, sm) == gpus.Gpu(name, sm)


def test_rtx_compiles_only_for_its_capabilities() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    for name in gpus.SM:
        gpu = gpus.named(name)
        if hasattr(trt.ComputeCapability, f"SM{gpu.sm}"):
            gpus.check_compilable(gpu, trt)
        else:
            with pytest.raises(UsageError, match=rf"--gpu {name}: .*SM{gpu.sm}, only for t4, .*--target tensorrt\."):
                gpus.check_compilable(gpu, trt)


def test_rtx_compiles_for_t4_and_a100_and_not_for_h100() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    gpus.check_compilable(gpus.named("t4"), trt)
    gpus.check_compilable(gpus.named("a100"), trt)
    with pytest.raises(UsageError, match="h100"):
        gpus.check_compilable(gpus.named("h100"), trt)


def test_machine_without_a_gpu_has_none(no_cuda_device: None) -> None:
    assert gpus.present() is None


def test_missing_bindings_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'intaglio\[gpu\]'"):
        gpus.present()


def test_failed_cuda_call_names_call_and_reason() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    with pytest.raises(EngineError, match=r"cudaMalloc failed: out of memory\. Run smaller batches"):
        gpus.check_status(runtime, "cudaMalloc", runtime.cudaError_t.cudaErrorMemoryAllocation)
    with pytest.raises(EngineError, match=r"cudaFree failed: invalid argument\. .*ort-cpu"):
        gpus.check_status(runtime, "cudaFree", runtime.cudaError_t.cudaErrorInvalidValue)
