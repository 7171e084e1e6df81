"""The report of compute-sanitizer about an operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from intaglio.validation.gpu_check.results import Failure
from intaglio.validation.gpu_check.sanitizer import FOUND, Sanitizer, memory_check

LOG = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at requantize_8+0x70
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f00 is out of bounds
=========     and is 1 bytes after the nearest allocation
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame:cuLaunchKernel [0x1] in /usr/lib/libcuda.so
=========
========= Invalid __global__ write of size 2 bytes
========= ERROR SUMMARY: 2 errors
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
TEXT = (
    "Invalid __global__ write of size 2 bytes; at requantize_8+0x70; by thread (0,0,0) in block (0,0,0); "
    "Address 0x7f00 is out of bounds"
)
WRONG = Failure("wrong bits", "x int32[1]", "1 of 1 values are wrong")
LOST = Failure("launch failed", "x int32[2]", "cuCtxSynchronize failed")


@pytest.mark.parametrize(
    ("failures", "code", "log", "judged"),
    [
        ([], 0, CLEAN, []),
        ([WRONG], 0, CLEAN, [WRONG]),
        ([], FOUND, LOG, [Failure("memory error", "", TEXT)]),
        ([WRONG, LOST], FOUND, LOG, [WRONG, Failure("memory error", "x int32[2]", TEXT)]),
        ([LOST], 1, CLEAN, [LOST]),
        (
            [LOST],
            255,
            "========= Error: Device not supported.\n",
            [
                Failure(
                    "launch failed",
                    "x int32[2]",
                    "cuCtxSynchronize failed; compute-sanitizer: Error: Device not supported.",
                )
            ],
        ),
        ([], FOUND, None, [Failure("memory error", "", "the log is empty")]),
    ],
)
def test_finding_replaces_the_error_that_it_caused(failures, code, log, judged, tmp_path: Path) -> None:
    if log is not None:
        (tmp_path / "log").write_text(log)
    assert Sanitizer((), tmp_path / "log").judge(failures, code) == judged


def test_log_is_removed() -> None:
    with memory_check() as sanitizer:
        assert sanitizer.command[-1] == str(FOUND) and str(sanitizer.log) in sanitizer.command
        sanitizer.log.write_text(LOG)
    assert not sanitizer.log.parent.exists()
