"""A process keeps one context open between its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from intaglio.executors.kept import close_kept, kept


def test_last_context_stays_open_and_is_left_before_the_next() -> None:
    events: list[str] = []

    @contextmanager
    def model(name: str) -> Iterator[str]:
        events.append(f"open {name}")
        yield name.upper()
        events.append(f"close {name}")

    assert [kept(model, name) for name in "aab"] == ["A", "A", "B"]
    assert events == ["open a", "close a", "open b"]
    close_kept()
    assert events[-1] == "close b"
    assert kept(model, "b") == "B"
    close_kept()
    assert events[-2:] == ["open b", "close b"]


def test_context_that_fails_to_open_is_opened_again() -> None:
    @contextmanager
    def broken() -> Iterator[None]:
        raise ValueError
        yield

    for _ in range(2):
        with pytest.raises(ValueError):
            kept(broken)
