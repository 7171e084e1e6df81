"""An assertion that a backend's outputs are within the operator's bound of its NumPy reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from intaglio.plugins.kernel_check.bounds import difference
from intaglio.plugins.kernel_check.case import Case


def check_outputs(case: Case, got: Sequence[npt.NDArray[Any]], expected: Sequence[npt.NDArray[Any]]) -> None:
    """Assert that the outputs equal the reference within the bound of the operator."""
    for actual, want in zip(got, expected, strict=False):
        assert actual.dtype == want.dtype and actual.shape == want.shape
    found = difference(case, got, expected)
    assert found is None, str(found)
