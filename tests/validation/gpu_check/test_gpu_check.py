"""The verb `gpu-check` on a stand-in for a GPU that emulates the kernels, also where they fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from covering import few
from small_checks import SMALL, SUPPORT

from intaglio.plugins.cuda.compiler import entry_points
from intaglio.plugins.cuda.launching.launches import kernel_folders, operators
from intaglio.plugins.kernel_check.bounds import difference
from intaglio.plugins.kernel_check.cases import cases
from intaglio.plugins.kernel_check.inputs import Sizes
from intaglio.validation.gpu_check import gpu_check, workers
from intaglio.validation.gpu_check.results import Machine

FORMS = ("cubin", "ptx", "onnxruntime")
Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("folder", kernel_folders())
def test_cases_launch_every_kernel(folder: str) -> None:
    made = list(cases(folder, SMALL))
    assert {case.launch().entry for case in made} == set(entry_points(folder))
    assert any(0 in shape for case in made for shape, _ in case.made()) or folder not in operators()
    assert all(case.inputs[0].flags.c_contiguous for case in made)


@pytest.mark.parametrize("folder", ["lut_matmul", "group_matmul"])
@pytest.mark.parametrize(
    "sizes", [gpu_check.SIZES, gpu_check.FEW_SIZES, gpu_check.SMALL_SIZES], ids=["all", "few", "small"]
)
def test_both_shapes_of_blocks_are_checked(folder: str, sizes: Sizes) -> None:
    made = [case.launch() for case in cases(folder, msgspec.structs.replace(sizes, vocabulary=200))]
    shapes = {(each.entry, each.scalars[0] <= each.scalars[3]) for each in made if "float32" not in each.entry}
    assert shapes == {(entry, few) for entry in entry_points(folder) if "float32" not in entry for few in (True, False)}


@pytest.mark.parametrize(
    "folders", [("requantize",), pytest.param(("requantize", "csr_matmul"), marks=pytest.mark.proof)]
)
def test_report_has_the_machine_every_kernel_and_its_time(
    folders: tuple[str, ...], gpu, intaglio: Run, tmp_path: Path
) -> None:
    gpu(*folders, forms=FORMS)
    path = tmp_path / "report.json"
    code, printed, errors = intaglio("gpu-check", "-o", path, "--report", tmp_path / "reports")
    assert (code, errors) == (0, "")
    assert "Emulated A100, sm_80, 42.9 GB, driver for CUDA 13.0; intaglio" in printed
    page = tmp_path / "reports" / "gpu-check.html"
    assert f"Passed. Report: {path}, {page}" in printed
    assert "<h1>CUDA kernels on Emulated A100</h1>" in page.read_text()
    assert page.with_suffix(".json").read_bytes() == path.read_bytes()
    report = json.loads(path.read_text())
    assert report["passed"] and report["machine"]["clock_mhz"] == 1410 and report["machine"]["ecc"]
    assert report["machine"]["memory_clock_mhz"] is None and report["machine"]["versions"]["nvrtc"]
    parts = {(each["operator"], each["image"]): each for each in report["kernels"]}
    assert list(parts) == [(folder, form) for folder in folders for form in FORMS]
    for (folder, form), part in parts.items():
        assert part["passed"] and set(part["kernels"]) == set(entry_points(folder))
        offsets = len(part["kernels"]) if form != "onnxruntime" else 0  # each kernel once more
        assert part["cases"] == len(list(cases(folder, SMALL))) + offsets
        assert [each["kernel"] for each in part["speeds"]] == (part["kernels"] if form == "ptx" else [])
        for speed in part["speeds"]:
            assert speed["gigabytes_per_second"] == pytest.approx(speed["bytes"] / speed["cold_us"] / 1000)
            assert speed["of_copy"] > 0 and speed["of_cublas"] is None  # no product of cuBLAS


@pytest.mark.proof
def test_products_are_compared_with_cublas(gpu, intaglio: Run, tmp_path: Path, monkeypatch) -> None:
    gpu("int_linear")
    monkeypatch.syspath_prepend(SUPPORT / "gpu_stand_in")
    import gpu_tools

    if (library := gpu_tools.build_cublas(tmp_path)) is None:
        pytest.skip("no C compiler")
    monkeypatch.setenv("GPU_CUBLAS", str(library))
    code, printed, _ = intaglio("gpu-check", "--json")
    (part,) = json.loads(printed)["kernels"]
    assert code == 0 and part["speeds"]
    assert all(each["of_cublas"] > 0 for each in part["speeds"])


FAULTS = [
    ("wrong bits", "values are wrong, the first at [0, 0", "wrong bits"),
    ("not run", "values are wrong, the first at [0, 0", "wrong bits"),
    (
        "load failed",
        "cuModuleLoadData failed: CUDA_ERROR_UNSUPPORTED_PTX_VERSION. Update the driver",
        "load failed",
    ),
    ("launch failed", "cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE", "launch failed"),
    (
        "illegal address",
        "cuCtxSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS. A kernel is wrong",
        "illegal address",
    ),
    ("overrun", "requantize_16: writes outside of output 0", "illegal address"),
    ("timeout", "no answer within 4 s", "timeout"),
    ("crashed", "the process ended with exit code -6", "crashed"),
    ("missing library", "pip install nvidia-cuda-nvrtc", "missing library"),
]


@pytest.mark.parametrize(
    ("fault", "message", "kind"),
    few(FAULTS, [each for each in FAULTS if each[0] in ("wrong bits", "timeout")]),
)
def test_a_fault_costs_one_row(gpu, intaglio: Run, monkeypatch, fault: str, message: str, kind: str) -> None:
    gpu("requantize", fault=f"{fault}:requantize_16")
    if fault == "timeout":
        monkeypatch.setattr(workers, "QUESTION_SECONDS", 4.0)
    code, printed, _ = intaglio("gpu-check", "--json")
    (part,) = json.loads(printed)["kernels"]
    assert code == 1 and not part["passed"] and part["speeds"] == []
    assert {each["kind"] for each in part["failures"]} == {kind}
    failure = part["failures"][-1]
    assert message in failure["message"]
    assert failure["case"].startswith("x int32[")
    if kind == "wrong bits":
        assert part["cases"] == len(list(cases("requantize", SMALL))) + 2  # all of them ran
    elif fault in ("load failed", "missing library"):
        assert part["kernels"] == []
    else:
        assert part["kernels"][0] == "requantize_8" and 0 < part["cases"] < 18  # what ran before is kept


ONNXRUNTIME_FAULTS = [
    ("wrong bits", "values are wrong, the first at [0, 0", "wrong bits"),
    ("illegal address", "Requantize: cuLaunchKernel of requantize_16 failed: CUDA_ERROR_ILLEGAL_ADDRESS", "error"),
    ("crashed", "the process ended with exit code -6", "crashed"),
    ("no provider", "needs CUDAExecutionProvider", "missing library"),
    ("no CUDA", "CUDAExecutionProvider did not start: ", "error"),
]


@pytest.mark.parametrize(
    ("fault", "message", "kind"),
    few(ONNXRUNTIME_FAULTS, [each for each in ONNXRUNTIME_FAULTS if each[0] == "wrong bits"]),
)
def test_a_fault_in_onnx_runtime_costs_one_row(gpu, intaglio: Run, fault: str, message: str, kind: str) -> None:
    gpu("requantize", fault=f"{fault}:requantize_16", forms=("ptx", "onnxruntime"))
    code, printed, _ = intaglio("gpu-check", "--json")
    of_driver, part = json.loads(printed)["kernels"]
    assert code == 1 and not part["passed"]
    assert of_driver["passed"] == (fault in ("no provider", "no CUDA"))
    assert {each["kind"] for each in part["failures"]} == {kind}
    assert message in part["failures"][-1]["message"]
    assert part["failures"][-1]["case"].startswith("x int32[")


def test_forms_are_those_that_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "installed", lambda sm: [])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_check.forms(80) == ("cubin", "ptx", "onnxruntime")
    monkeypatch.setenv("PATH", str(SUPPORT / "gpu_stand_in"))
    assert gpu_check.forms(80) == ("cubin", "ptx", "onnxruntime", "sanitizer")
    assert gpu_check.forms(120) == ("ptx", "onnxruntime", "sanitizer")


SANITIZER_FAULTS = [
    (":", set(), ""),
    (
        "invalid read",
        {"memory error"},
        "Invalid __global__ read of size 4 bytes; at requantize_16+0x1a0; by thread",
    ),
    ("illegal address", {"memory error"}, "Invalid __global__ read of size 4 bytes; at requantize_16+0x1a0"),
    ("timeout", {"timeout"}, "no answer within 4 s"),
]


@pytest.mark.parametrize(
    ("fault", "kinds", "message"),
    few(SANITIZER_FAULTS, [each for each in SANITIZER_FAULTS if each[0] == "invalid read"]),
)
def test_sanitizer_finds_memory_errors(gpu, intaglio: Run, monkeypatch, fault: str, kinds, message: str) -> None:
    gpu("requantize", fault=fault if fault == ":" else f"{fault}:requantize_16", forms=("sanitizer",))
    if fault == "timeout":
        monkeypatch.setattr(workers, "QUESTION_SECONDS", 4.0)
    code, printed, _ = intaglio("gpu-check", "--json")
    (part,) = json.loads(printed)["kernels"]
    assert (code, part["passed"]) == ((1, False) if kinds else (0, True))
    assert {each["kind"] for each in part["failures"]} == kinds
    assert all(message in each["message"] and "somebody" not in each["message"] for each in part["failures"])
    assert part["kernels"][0] == "requantize_8" and part["cases"] > 0 and part["speeds"] == []
    if fault in (":", "invalid read"):
        assert part["cases"] == 16
    elif fault == "illegal address":
        assert part["failures"][-1]["case"].startswith("x int32[")  # the one that ended the process


def test_gpu_that_the_sanitizer_does_not_support_is_named(gpu, intaglio: Run, monkeypatch) -> None:
    gpu("requantize", fault="not supported:", forms=("sanitizer",))
    monkeypatch.setattr(gpu_check, "_machine", lambda workers: Machine("A100", 80, 1, 1, 1, True, 1, 1, "13.0", {}))
    (failure,) = json.loads(intaglio("gpu-check", "--json")[1])["kernels"][0]["failures"]
    assert failure["kind"] == "launch failed" and "cuInit failed: CUDA_ERROR_UNKNOWN" in failure["message"]
    assert "; compute-sanitizer: Error: Device not supported." in failure["message"]


@pytest.mark.proof
def test_fault_while_measuring_keeps_what_was_checked(gpu, intaglio: Run) -> None:
    gpu("requantize", "csr_matmul", fault="not measured:requantize_16")
    code, printed, _ = intaglio("gpu-check", "--json")
    part, other = json.loads(printed)["kernels"]
    assert code == 1 and other["passed"] and len(other["speeds"]) == 2
    assert part["kernels"] == ["requantize_8", "requantize_16"] and part["cases"] == 16
    assert [each["kernel"] for each in part["speeds"]] == ["requantize_8"]
    (failure,) = part["failures"]
    assert (failure["kind"], failure["case"]) == ("launch failed", "measuring") and not part["passed"]


@pytest.mark.proof
def test_other_operators_are_checked_after_a_fault(gpu, intaglio: Run) -> None:
    gpu("requantize", "csr_matmul", fault="illegal address:requantize_8")
    code, printed, _ = intaglio("gpu-check")
    assert code == 1 and printed.rstrip().endswith("FAILED")
    lines = [line.split() for line in printed.splitlines()]
    assert [line[-1] for line in lines if line[:2] == ["requantize", "ptx"]] == ["no"]
    assert [line[-1] for line in lines if line[:2] == ["csr_matmul", "ptx"]] == ["yes"]
    assert "requantize as ptx: illegal address in x int32[1, 1, 40], multiplier int32[40]" in printed


def test_time_limit_ends_the_check(gpu, intaglio: Run, monkeypatch) -> None:
    gpu("requantize", "csr_matmul")
    monkeypatch.setattr(gpu_check, "SECONDS", 0.0)
    code, printed, _ = intaglio("gpu-check", "--json")
    assert code == 1
    kinds = [each["failures"][0]["kind"] for each in json.loads(printed)["kernels"]]
    assert kinds == ["timeout", "timeout"]


def test_machine_without_a_gpu_gets_one_line(gpu, intaglio: Run, tmp_path: Path) -> None:
    gpu("requantize", fault="no driver:")
    code, printed, errors = intaglio("gpu-check", "-o", tmp_path / "report.json")
    assert (code, printed) == (2, "") and not list(tmp_path.iterdir())
    assert errors == (
        "intaglio: gpu-check: no CUDA device: libcuda.so.1 was not found. Run this on a machine with one.\n"
    )


def test_existing_report_is_kept(intaglio: Run, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("old")
    code, _, errors = intaglio("gpu-check", "-o", tmp_path / "report.json")
    assert code == 2 and "exists already. Add --force" in errors


@pytest.mark.proof
@pytest.mark.parametrize("folder", kernel_folders())
def test_reference_computes_every_case_at_full_size(folder: str) -> None:
    for case in cases(folder, Sizes()):
        expected = case.expected()
        shapes = [(array.shape, array.dtype) for array in expected]
        assert shapes == case.made() and case.launch()
        assert difference(case, expected, expected) is None  # all of them finite
        assert all(len(np.unique(array)) > 4 for array in expected if array.size > 1000), str(case)


@pytest.mark.proof
@pytest.mark.parametrize("folder", kernel_folders())
def test_every_kernel_passes(gpu, intaglio: Run, folder: str) -> None:
    gpu(folder, forms=tuple(form for form in (*FORMS, "sanitizer") if gpu_check.has_form(folder, form)))
    code, printed, _ = intaglio("gpu-check", "--json")
    assert code == 0, printed
