"""The vector functions of plugins/cpu/simd.h against their definitions."""

import subprocess
from pathlib import Path

import pytest

from intaglio.plugins import ort
from intaglio.plugins.ort import build


@pytest.mark.parametrize("instruction_set", ["portable", "avx2", "avx512", "neon"])
def test_every_vector_function_equals_its_definition(instruction_set, tmp_path, emulator):
    if instruction_set not in ort.supported_instruction_sets():
        pytest.skip(f"this CPU has no {instruction_set}")
    program = tmp_path / "simd_check"
    flags = [*build.INSTRUCTION_SETS[instruction_set], f"-DINTAGLIO_ISA={instruction_set}", f"-I{build.ROOT}"]
    source = Path(__file__).with_name("simd_check.cpp")
    # Optimising would take longer than it saves.
    subprocess.run([*build.compiler(), "-std=c++17", "-O0", "-w", *flags, str(source), "-o", str(program)], check=True)
    done = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
