"""Measuring memory bandwidth: every byte is read on any instruction set, and the rate is plausible."""

import ctypes

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.plugins import ort
from intaglio.plugins.native.memory_bandwidth import HUGE_PAGE, Memory

pytestmark = pytest.mark.skipif(not ort.library(), reason="no compiled kernels")


@settings(max_examples=examples(20))
@given(steps=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_every_byte_is_read(steps, seed):
    read = ctypes.CDLL(str(ort.library())).intaglio_read_memory
    read.restype = ctypes.c_int64
    room = np.random.default_rng(seed).integers(-(2**62), 2**62, steps * 64 + 8)
    start = -room.ctypes.data % 64 // 8
    numbers = room[start : start + steps * 64]
    for isa in range(len(ort.supported_instruction_sets())):
        with np.errstate(over="ignore"):
            assert read(isa, ctypes.c_void_p(numbers.ctypes.data), ctypes.c_int64(numbers.nbytes)) == numbers.sum()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_measured_bandwidth_is_plausible(threads):
    assert 1e7 < Memory(HUGE_PAGE * 4).read(threads) < 1e13
