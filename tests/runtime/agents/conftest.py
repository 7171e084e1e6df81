"""A time limit for every test of this folder: hangs fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from time_limit import time_limit


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    """Fail a test that takes longer than 120 s."""
    with time_limit(120):
        yield
