"""Scales and minimums of groups keep every number, in the fewest bytes of which that is true."""

import pytest


@pytest.mark.parametrize("instruction_set", ["portable", "avx2", "avx512", "neon"])
def test_factors_are_kept_without_loss(instruction_set, check_program):
    check_program("factors_check", instruction_set, "-O1")
