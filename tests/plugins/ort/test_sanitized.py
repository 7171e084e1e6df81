"""Hostile graphs run on kernels with AddressSanitizer and UBSan: a part of `make sanitize`, on the portable kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from intaglio.plugins.ort import build

HERE = Path(__file__).parent
TESTS = ("test_hostile_nodes.py", "test_int_attention.py")
# Compiling the library takes a minute, and `make sanitize` runs all tests, including these.
pytestmark = pytest.mark.proof
REPORT = ("AddressSanitizer", "runtime error")


def preloaded() -> str:
    """The libraries that must be loaded before Python."""
    cxx = build.compiler()
    names = ("libasan.so", "libstdc++.so")
    found = [
        subprocess.run([*cxx, f"-print-file-name={name}"], capture_output=True, text=True).stdout for name in names
    ]
    return " ".join(map(str.strip, found))


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("g++"):
        pytest.skip("no g++, whose sanitizers these are")
    library = tmp_path_factory.mktemp("sanitized") / "_kernels.so"
    return build.build(library, build.Options(sanitize=True, quick=True))


def run(sanitized: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "LD_PRELOAD": preloaded(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "INTAGLIO_ISA": "portable",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)


def test_invalid_nodes_and_masks_give_no_sanitizer_report(sanitized: Path) -> None:
    tests = [str(HERE / name) for name in TESTS]
    settings = ("-c", str(build.ROOT / "pyproject.toml"))  # a file beside the library would be used instead
    options = (*settings, "-q", "-p", "no:cacheprovider", "--kernels", str(sanitized))
    done = run(sanitized, "-m", "pytest", *options, *tests)
    assert not any(word in done.stdout + done.stderr for word in REPORT)
    assert done.returncode == 0, done.stdout[-3000:]


def test_sanitizer_reports_a_planted_error(sanitized: Path) -> None:
    """Reads beyond an allocation, like a kernel without shape checks."""
    code = f"""if True:
        import ctypes
        library = ctypes.CDLL({str(sanitized)!r})
        block = ctypes.create_string_buffer(4096)
        library.intaglio_read_memory(0, block, ctypes.c_int64(1 << 20))
    """
    done = run(sanitized, "-c", code)
    assert "heap-buffer-overflow" in done.stderr
    assert done.returncode != 0
