"""The name that a user probably meant by one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

CUTOFF = 0.6  # least similarity of two names, of difflib's 0 to 1: its default


def nearest(name: str, known: Iterable[str], cutoff: float = CUTOFF) -> str | None:
    """The most similar of `known`, by letters in any case; None if the similarity of none reaches `cutoff`."""
    from difflib import get_close_matches

    folded = {each.casefold(): each for each in known}
    found = get_close_matches(name.casefold(), folded, 1, cutoff)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message about `name`: " Did you mean 'export'?", or "" if none is similar."""
    found = nearest(name, known)
    return "" if found is None else f" Did you mean {found!r}?"
