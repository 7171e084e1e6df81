"""The products that cuBLAS is asked for, on a stand-in for it and for the driver."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.errors import MissingExtraError
from intaglio.plugins.cuda import cublas, launcher

STAND_IN = Path(__file__).parents[2] / "support" / "gpu_stand_in"


class Product(ctypes.Structure):
    """`struct product` of cublas.c."""

    _fields_ = [
        *((name, ctypes.c_int) for name in "mnk"),
        *((name, ctypes.c_void_p) for name in "abc"),
        *((name, ctypes.c_double) for name in ("first", "last")),
    ]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with the stand-ins; its driver is this process's, and there is no cuBLAS."""
    pytest.importorskip("cuda.bindings.nvrtc")
    pathfinder = pytest.importorskip("cuda.pathfinder")
    monkeypatch.syspath_prepend(STAND_IN)
    import gpu_stand_in
    import gpu_tools

    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", gpu_stand_in.Driver("", ""))
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", pathfinder.load_nvidia_dynamic_lib)  # put back
    gpu_tools.give_cublas(None)
    launcher.device.cache_clear()
    yield gpu_tools
    launcher.device.cache_clear()


@pytest.fixture
def products(stand_in: Any, tmp_path: Path) -> Any:
    """The products so far, with cuBLAS there."""
    path = stand_in.build_cublas(tmp_path)
    if path is None:
        pytest.skip("no C compiler")
    stand_in.give_cublas(str(path))
    library = ctypes.CDLL(path)

    def read() -> list[Product]:
        calls = ctypes.c_int.in_dll(library, "cublas_calls").value
        return list((Product * 1024).in_dll(library, "cublas_products"))[:calls]

    return read


@pytest.mark.parametrize(
    ("dtype", "rows", "depth", "channels", "expected"),
    [("int8", 8, 64, 24, (24, 8, 64)), ("int8", 17, 64, 24, (24, 20, 64)), ("float16", 17, 33, 5, (5, 17, 33))],
)
def test_product_is_of_all_rows_and_channels(products: Any, dtype, rows, depth, channels, expected) -> None:
    assert cublas.product_time(dtype, rows, depth, channels) > 0
    found = products()
    assert {(each.m, each.n, each.k) for each in found} == {expected}
    filled = np.frombuffer(b"\x11\x11", dtype)[0]
    value = depth * float(filled) ** 2
    assert [each.first for each in found] == pytest.approx([value] * len(found), rel=2e-3, abs=1e-7)
    assert [each.last for each in found] == pytest.approx([value] * len(found), rel=2e-3, abs=1e-7)


def test_products_in_a_row_share_no_array(products: Any) -> None:
    cublas.product_time("int8", 4, 64, 64)
    first, *measured = products()
    size = 4 * 64 + 64 * 64 + 4 * 64 * 4
    assert len(measured) == launcher.copies_of(size) > launcher.CACHES * (1 << 16) // size
    for name, length in (("a", 64 * 64), ("b", 4 * 64), ("c", 4 * 64 * 4)):
        places = sorted(getattr(each, name) for each in measured)
        assert getattr(first, name) in places
        assert all(after - before >= length for before, after in pairwise(places))


def test_error_of_cublas_names_the_function(products: Any) -> None:
    with pytest.raises(cublas.CublasError, match=r"cublasGemmEx failed with status 15\."):
        cublas.product_time("int8", 4, 63, 64)


def test_missing_cublas_is_a_missing_library(stand_in: Any) -> None:
    with pytest.raises(MissingExtraError, match="pip install nvidia-cublas"):
        cublas.product_time("int8", 4, 64, 64)
