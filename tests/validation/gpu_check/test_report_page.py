"""The page of `gpu-check`: complete, and well-formed for any names."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from intaglio.validation.gpu_check.report_page import to_html
from intaglio.validation.gpu_check.results import Failure, GpuCheck, KernelCheck, Machine, Speed

HOSTILE = "</td><script>alert(1)</script>\"'&\x00\x1b$name${bar}"


def check(name: str = "y", failures: int = 2) -> GpuCheck:
    versions = {"intaglio": "0.1.0", "tensorrt": None}
    machine = Machine(f"GPU {name}", 90, 85_017_493_504, 132, 52_428_800, True, 1980.0, None, "13.0", versions)
    speeds = [
        Speed(f"{name}_8", f"x {name}", 4_000_000, 2.5, 3.125, 1280.0, 0.8125, None),
        Speed(f"{name}_16", "x", 8_000_000, 2.5, 3.125, 1280.0, 0.75, 0.5625),
    ]
    wrong = [Failure("wrong bits", f"case {number}", f"{name} is wrong") for number in range(failures)]
    kernels = [
        KernelCheck("requantize", "ptx", True, 36, [f"{name}_8"], [], speeds, 5.25),
        KernelCheck("int_add", "sanitizer", not failures, 7, [], wrong, [], 9.5),
    ]
    return GpuCheck(not failures, machine, kernels, 61.4)


def cells(page: str) -> list[list[str]]:
    rows = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>")).iter("tr")  # noqa: S314 - our own
    return [["".join(cell.itertext()) for cell in row] for row in rows]


def test_page_has_the_machine_both_tables_and_every_failure() -> None:
    page = to_html(check(), "2026-01-02 03:04:05 UTC")
    assert "FAILED" in page and "1 of 2 passed · 61 seconds · 2026-01-02 03:04:05 UTC" in page
    rows = cells(page)
    assert ["requantize", "ptx", "1", "36", "5.2", "passed"] in rows
    assert ["int_add", "sanitizer", "0", "7", "9.5", "failed"] in rows
    assert ["y_8", "4", "2.5", "3.12", "1.28e+03", "0.812", "–"] in rows
    assert ["y_16", "8", "2.5", "3.12", "1.28e+03", "0.75", "0.562"] in rows
    for number in range(2):
        assert ["int_add", "sanitizer", "wrong bits", f"case {number}", "y is wrong"] in rows
    for row in (
        ["GPU", "GPU y"],
        ["compute capability", "9.0"],
        ["memory", "85.0 GB, with ECC"],
        ["L2 cache", "52.4 MB"],
        ["clock", "1980 MHz"],
        ["memory clock", "unknown"],
        ["driver", "for CUDA 13.0"],
        ["tensorrt", "missing"],
    ):
        assert row in rows


def test_page_without_failures_or_times_has_no_such_section() -> None:
    result = check(failures=0)
    result.kernels = result.kernels[1:]
    page = to_html(result, "now")
    assert "PASSED" in page and re.findall("<h2>(.*?)</h2>", page) == ["Operators", "Machine"]


def test_page_escapes_every_name() -> None:
    page = to_html(check(HOSTILE), HOSTILE)
    assert "<script" not in page and "alert(1)" in page and cells(page)


def test_report_that_is_a_file_is_rejected_before_the_check(intaglio, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    code, _, errors = intaglio("gpu-check", "--report", tmp_path / "file")
    assert code == 2 and "is not a directory. Choose another path." in errors


@pytest.mark.parametrize("seconds", [0.4, 599.6])
def test_seconds_are_whole(seconds: float) -> None:
    result = check()
    result.seconds = seconds
    assert f"{round(seconds)} seconds" in to_html(result, "now")
