"""The forms of `gpu-check` in engines: those of TensorRT-RTX are built by its own builder, and run by a stand-in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from covering import few
from small_checks import SMALL_ENGINES

from intaglio.plugins import ort
from intaglio.plugins.cuda.compiler import entry_points
from intaglio.plugins.kernel_check.cases import cases
from intaglio.plugins.trt.explicit import plugged
from intaglio.validation.gpu_check import gpu_check, tensorrt_kernels

FOLDERS = [operator.folder for operator in plugged()]
FORM = "tensorrt-rtx"
Run = Callable[..., tuple[int, str, str]]

pytest.importorskip("tensorrt_rtx_libs")
if ort.library() is None:
    pytest.skip("no compiled kernels", allow_module_level=True)


@pytest.mark.parametrize("folder", few(FOLDERS, ["requantize", "lut_matmul", "int_linear"]))
def test_every_kernel_of_an_operator_is_right_in_engines(gpu, intaglio: Run, folder: str) -> None:
    gpu(folder, forms=(FORM,))
    code, printed, _ = intaglio("gpu-check", "--json")
    (part,) = json.loads(printed)["kernels"]
    assert (code, part["failures"], part["image"]) == (0, [], FORM)
    assert set(part["kernels"]) == set(entry_points(folder))
    assert part["cases"] == len(list(cases(folder, SMALL_ENGINES)))  # no offsets: TensorRT places the arrays
    assert part["speeds"] == []


FAULTS = [
    ("wrong bits", "values are wrong, the first at [0, 0", "wrong bits"),
    ("illegal address", "cuLaunchKernel of requantize_16 failed: CUDA_ERROR_ILLEGAL_ADDRESS", "error"),
    ("crashed", "the process ended with exit code -6", "crashed"),
]


@pytest.mark.parametrize(("fault", "message", "kind"), few(FAULTS, FAULTS[:2]))
def test_a_fault_in_an_engine_costs_one_row(gpu, intaglio: Run, fault: str, message: str, kind: str) -> None:
    gpu("requantize", fault=f"{fault}:requantize_16", forms=(FORM,))
    code, printed, _ = intaglio("gpu-check", "--json")
    (part,) = json.loads(printed)["kernels"]
    assert code == 1 and not part["passed"]
    assert {each["kind"] for each in part["failures"]} == {kind}
    assert message in part["failures"][-1]["message"]
    assert part["failures"][-1]["case"].startswith("x int32[")
    assert part["kernels"][0] == "requantize_8"
    first, *others = part["failures"]
    assert (first["log"] == []) == (fault == "crashed")  # with the process its messages are lost
    assert len(first["log"]) <= 1000 and all(each["log"] == [] for each in others)
    assert fault == "crashed" or any("CudaKernel" in line for line in first["log"])


def test_missing_library_is_named(gpu, intaglio: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu("requantize", forms=("tensorrt",))
    code, printed, _ = intaglio("gpu-check", "--json")
    (failure,) = json.loads(printed)["kernels"][0]["failures"]
    assert (code, failure["kind"]) == (1, "missing library")
    assert "pip install 'intaglio[gpu]'" in failure["message"]


def test_each_installed_library_has_its_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setattr(tensorrt_kernels.importlib.util, "find_spec", lambda name: name == "tensorrt_rtx" or None)
    assert tensorrt_kernels.installed(75) == ["tensorrt-rtx"]
    assert tensorrt_kernels.installed(90) == []  # TensorRT-RTX has no GPU of data centres after the A100
    monkeypatch.setattr(tensorrt_kernels.importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
    assert tensorrt_kernels.installed(90) == ["tensorrt", "tensorrt-library"]
    monkeypatch.setattr(tensorrt_kernels.importlib.util, "find_spec", lambda name: None)
    assert tensorrt_kernels.installed(80) == []


def test_operators_without_a_plugin_have_no_engines() -> None:
    assert gpu_check.has_form("cached_attention", FORM) and gpu_check.has_form("low_rank_matmul", "ptx")
    assert not gpu_check.has_form("low_rank_matmul", FORM)
