"""Text of bundles and other people's files, made safe to print, and broken into lines."""

from __future__ import annotations

import re

TIED = "\ue000"  # keeps words together; printed as a space


def printable(text: str) -> str:
    """Replace control characters in `text`, which a terminal would act on."""
    return "".join(sign if sign.isprintable() or sign in ("\n", TIED) else "\N{REPLACEMENT CHARACTER}" for sign in text)


def tied(text: str) -> str:
    """Tie comparison signs to their numbers."""
    return re.sub("(?<=[≤≥<>±=]) ", TIED, text)


def wrapped(text: str, width: int) -> str:
    """Break `text` between words into lines of at most `width` columns; a longer word has a line of its own."""
    from rich.cells import cell_len

    lines: list[str] = []
    for paragraph in text.split("\n"):
        line, *words = [paragraph] if cell_len(paragraph) <= width else tied(paragraph).split()
        for word in words:
            if cell_len(line) + 1 + cell_len(word) <= width:
                line += f" {word}"
            else:
                lines.append(line)
                line = word
        lines.append(line)
    return "\n".join(lines).replace(TIED, " ")
