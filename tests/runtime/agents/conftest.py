"""A time limit for every test of this folder: what they guard against is waiting without an end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

SECONDS = 120


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """Fail a test that takes longer than `SECONDS`."""

    def over(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
