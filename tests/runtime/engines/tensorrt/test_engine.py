import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from intaglio.bundle.bundle import Bundle, EngineRecord
from intaglio.errors import EngineError, MissingExtraError
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.gpus import Gpu
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.engines.tensorrt.engine import select
from intaglio.runtime.engines.tensorrt.library import DTYPES
from intaglio.runtime.engines.tensorrt.plan_options import check_library

MakeEncoder = Callable[..., Path]


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_machine_without_a_gpu_is_pointed_to_the_cpu(
    make_encoder: MakeEncoder, no_cuda_device: None, target: str
) -> None:
    with pytest.raises(EngineError, match=rf"target {target}: no CUDA device\. Use --target ort-cpu"):
        open_engine(make_encoder(), target)


def test_missing_cuda_bindings_name_the_extra(make_encoder: MakeEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'intaglio\[gpu\]'"):
        open_engine(make_encoder(), "tensorrt-rtx")


@pytest.fixture
def bundle(make_encoder: MakeEncoder) -> Bundle:
    """A bundle with an RTX engine for each of two GPUs."""
    opened = Bundle.open(make_encoder())
    records = [
        EngineRecord(f"engines/{gpu}.engine", "tensorrt-rtx", "tensorrt_rtx 1.7.1.116", 3, gpu, sm)
        for gpu, sm in (("t4", 75), ("a100", 80))
    ]
    opened.add_files({record.path: b"abc" for record in records}, records)
    return opened


def test_engine_is_chosen_by_compute_capability(bundle: Bundle) -> None:
    assert select(bundle, "tensorrt-rtx", Gpu("a30", 80)).gpu == "a100"


def test_missing_engine_lists_existing_ones_and_the_command(bundle: Bundle) -> None:
    with pytest.raises(EngineError) as caught:
        select(bundle, "tensorrt-rtx", Gpu("l4", 89))
    assert "no tensorrt-rtx engine for l4 (SM89); it has t4 (SM75), a100 (SM80)." in str(caught.value)
    assert f"intaglio build {bundle.path} --target tensorrt-rtx --gpu l4" in str(caught.value)
    with pytest.raises(EngineError, match=r"no tensorrt engine for l4 \(SM89\); it has none\."):
        select(bundle, "tensorrt", Gpu("l4", 89))


def test_engine_of_another_version_is_rejected(bundle: Bundle) -> None:
    record = bundle.manifest.engines[0]
    check_library(record, "tensorrt_rtx 1.7.1.116")
    with pytest.raises(EngineError, match=r"built by tensorrt_rtx 1\.7\.1\.116, but tensorrt_rtx 1\.8\.0"):
        check_library(record, "tensorrt_rtx 1.8.0")


def test_device_memory_without_a_gpu_reports_the_driver(no_cuda_device: None) -> None:
    with pytest.raises(EngineError, match=r"cudaStreamCreateWithFlags failed: .*nvidia-smi"):
        DeviceMemory()


def test_library_supports_every_dtype() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    assert set(DTYPES.values()) <= set(trt.DataType.__members__)
