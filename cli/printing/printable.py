"""Text of bundles and other people's files, made safe to print."""

from __future__ import annotations

TIED = "\N{NO-BREAK SPACE}"  # keeps words together; printed as a space


def printable(text: str) -> str:
    """Replace control characters in `text`, which a terminal would act on."""
    return "".join(sign if sign.isprintable() or sign in ("\n", TIED) else "\N{REPLACEMENT CHARACTER}" for sign in text)
