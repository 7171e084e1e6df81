"""Array files broken in any layer (zip, compression, NumPy's) give one-line errors."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from intaglio.errors import UsageError
from intaglio.runtime.text import inputs
from intaglio.runtime.text.inputs import read_arrays

ARRAY = np.arange(4000, dtype=np.int64).reshape(40, 100)


def whole() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, input_ids=ARRAY)
    return file.getvalue()


def with_member(content: bytes, name: str = "input_ids.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def npy(header: str) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(800)


def damaged_stream() -> bytes:
    data = bytearray(whole())
    data[200:240] = b"\xff" * 40
    return bytes(data)


def other_compression() -> bytes:
    data = bytearray(whole())
    for signature, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        start = data.index(signature)
        data[start + place : start + place + 2] = b"\x63\x00"
    return bytes(data)


def objects() -> bytes:
    file = io.BytesIO()
    np.savez(file, input_ids=np.array([{}, []], object))
    return file.getvalue()


BROKEN = {
    "not a zip": b"x" * 100,
    "nothing": b"",
    "cut": whole()[:-30],
    "a damaged stream": damaged_stream(),
    "a compression that nobody has": other_compression(),
    "objects": objects(),
    "a header of no dictionary": with_member(npy("[1, 2")),
    "a header of deep brackets": with_member(npy("[" * 110)),
    "a shape beyond all memory": with_member(
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (9999999999999, 9),}")
    ),
    "a shape beyond 64 bits": with_member(npy(f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({10**40},),}}")),
    "a negative shape": with_member(npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-1, 9),}")),
    "a dtype that is none": with_member(npy("{'descr': 'zz', 'fortran_order': False, 'shape': (1,),}")),
    "too few numbers": with_member(npy("{'descr': '<i8', 'fortran_order': False, 'shape': (9999, 9),}")),
}


def test_intact_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(whole())
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.npz", "--data")["input_ids"], ARRAY)


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_file_is_a_one_line_error(fault: str, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(BROKEN[fault])
    with pytest.raises(UsageError, match=r"--data .*a\.npz: not a readable \.npz file") as refused:
        read_arrays(tmp_path / "a.npz", "--data")
    assert "\n" not in str(refused.value)


def test_zip_bomb_is_rejected_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "EXPANDED", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", input_ids=np.zeros(1 << 20, np.uint8))
    with pytest.raises(UsageError, match=r"it expands to 1048704 bytes, expected at most 1048576 of a compressed"):
        read_arrays(tmp_path / "a.npz", "--data")
    np.savez(tmp_path / "b.npz", input_ids=np.zeros(1 << 20, np.uint8))  # of any size that the user's disk has
    assert read_arrays(tmp_path / "b.npz", "--data")["input_ids"].size == 1 << 20


def test_damaged_streams_are_rejected_by_zlib(tmp_path: Path) -> None:
    """The case above tests the intended error."""
    with pytest.raises(zlib.error), np.load(io.BytesIO(damaged_stream())) as arrays:
        dict(arrays)
