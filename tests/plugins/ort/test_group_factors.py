"""Scales and minimums of groups keep every number, in the fewest bytes of which that is true."""

import subprocess
from pathlib import Path

import pytest

from intaglio.plugins import ort
from intaglio.plugins.ort import build


@pytest.mark.parametrize("instruction_set", ["portable", "avx2", "avx512", "neon"])
def test_factors_are_kept_without_loss(instruction_set, tmp_path, emulator):
    if instruction_set not in ort.supported_instruction_sets():
        pytest.skip(f"this CPU has no {instruction_set}")
    program = tmp_path / "factors_check"
    flags = [*build.INSTRUCTION_SETS[instruction_set], f"-DINTAGLIO_ISA={instruction_set}", f"-I{build.ROOT}"]
    source = Path(__file__).with_name("factors_check.cpp")
    subprocess.run([*build.compiler(), "-std=c++17", "-O1", "-w", *flags, str(source), "-o", str(program)], check=True)
    done = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
