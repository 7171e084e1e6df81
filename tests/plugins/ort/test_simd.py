"""The vector functions of plugins/cpu/simd.h against their definitions."""

import pytest


@pytest.mark.parametrize("instruction_set", ["portable", "avx2", "avx512", "neon"])
def test_every_vector_function_equals_its_definition(instruction_set, check_program):
    check_program("simd_check", instruction_set, "-O0")  # optimising would take longer than it saves
