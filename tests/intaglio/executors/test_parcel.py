"""A parcel gives another process the value that was packed, to keep and to change, and leaves no file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from intaglio.errors import StorageError
from intaglio.executors.parcel import ALIGNMENT, LEAST, Parcel

ARRAYS = arrays.arrays(
    st.sampled_from(["<f4", "<f2", "<i8", "|b1", ">i4", "|S3"]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
)


@dataclass
class Value:
    text: str
    table: np.ndarray


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    found=st.lists(ARRAYS, max_size=4), text=st.text(max_size=9), least=st.sampled_from([0, 100, LEAST]),
    transposed=st.booleans(),
)  # fmt: skip
def test_values_come_back(found: list[np.ndarray], text: str, least: int, transposed: bool, tmp_path: Path) -> None:
    found = [array.T if transposed else array for array in found]
    parcel = Parcel.of((text, {"arrays": found}), tmp_path, least)
    for again, named in (parcel.open(), parcel.take()):
        assert again == text
        for got, expected in zip(named["arrays"], found, strict=True):
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            assert got.tobytes() == expected.tobytes()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [100, LEAST])
def test_only_large_values_get_a_file(length: int, tmp_path: Path) -> None:
    parcel = Parcel.of(bytes(length), tmp_path)
    assert len(list(tmp_path.iterdir())) == (length >= LEAST)
    assert len(parcel.pickled) < LEAST
    assert parcel.open() == bytes(length)


def test_arrays_are_aligned_and_may_be_changed_alone(tmp_path: Path) -> None:
    given_value = Value("x", np.arange(LEAST, dtype=np.float32))
    parcel = Parcel.of([given_value, np.ones(3, np.int8), np.full(LEAST, 7, np.float32)], tmp_path)
    first, second = parcel.open(), parcel.open()
    for array in (first[0].table, first[1], first[2]):
        assert array.ctypes.data % ALIGNMENT == 0
    first[0].table[:] = 0
    parcel.remove()
    np.testing.assert_array_equal(second[0].table, given_value.table)  # of the file that is gone


def test_values_in_memory_hold_no_file_open(tmp_path: Path) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    taken = [Parcel.of(np.full(LEAST, number), tmp_path).take() for number in range(20)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors  # others may have been closed meanwhile
    assert not list(tmp_path.iterdir())
    assert [array[-1] for array in taken] == list(range(20))


def test_what_one_process_may_not_change_stays_so(tmp_path: Path) -> None:
    fixed = np.zeros(LEAST, np.float32)
    fixed.flags.writeable = False
    assert not Parcel.of(fixed, tmp_path).open().flags.writeable


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError):
        Parcel.of(bytes(LEAST), tmp_path)


def test_disk_that_is_full_is_an_error(tmp_path: Path) -> None:
    value: Any = bytes(LEAST)
    (tmp_path / "full").symlink_to("/dev/full")

    class Named:
        hex = "full"

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StorageError, match="No space left"):
        patch.setattr("intaglio.executors.parcel.uuid.uuid4", Named)
        Parcel.of(value, tmp_path)
