"""What a process keeps open between its tasks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

Opened = TypeVar("Opened")


class _Kept:
    """The one open context of this process: what opened it, and what it has returned."""

    key: object = None
    opened: Any = None
    resources = ExitStack()


def kept(
    function: Callable[..., AbstractContextManager[Opened]], *arguments: Any, key: Hashable | None = None
) -> Opened:
    """Enter the context `function(*arguments)`, which stays open until this is called with something else.

    The previous context is left before the next one is entered, so that the models of one are in memory at a time. For
    tasks in workers, which have one thread; the last context ends with the process. `key` tells the arguments apart
    where they are too large to be kept, too.
    """
    key = (function, arguments if key is None else key)
    if _Kept.key != key:
        close_kept()
        _Kept.opened = _Kept.resources.enter_context(function(*arguments))
        _Kept.key = key
    return _Kept.opened  # type: ignore[no-any-return]


def close_kept() -> None:
    """Leave the context that is open, if any."""
    _Kept.key, _Kept.opened = None, None
    _Kept.resources.close()
