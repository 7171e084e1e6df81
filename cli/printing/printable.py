"""Text of bundles and other people's files, made safe to print, and broken into lines."""

from __future__ import annotations

import re
import textwrap

TIED = "\ue000"  # keeps words together; printed as a space


def printable(text: str) -> str:
    """Replace control characters in `text`, which a terminal would act on."""
    return "".join(sign if sign.isprintable() or sign in ("\n", TIED) else "\N{REPLACEMENT CHARACTER}" for sign in text)


def tied(text: str) -> str:
    """Tie comparison signs to their numbers."""
    return re.sub("(?<=[≤≥<>±=]) ", TIED, text)


def wrapped(text: str, width: int) -> str:
    """Break `text` between words into lines of at most `width` characters; a longer word has a line of its own."""
    lines = [
        textwrap.fill(tied(line), width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
    ]
    return "\n".join(lines).replace(TIED, " ")
