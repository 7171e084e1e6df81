"""The blocks of code in README.md and the pages of docs/, as a reader would copy them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Pages whose files others use are read first; the order of the others does not matter.
FIRST = ("README.md", "docs/chat-model.md", "docs/serving.md")
PAGES = (*FIRST, *sorted({path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} - set(FIRST)))
# A requirement with extras of ours, in a line that installs: intaglio[cpu], .[cpu] of a checkout, "$wheel[cpu]".
INSTALLS = re.compile(r"pip install [^\n`]*")
EXTRAS = re.compile(r"(?:intaglio|\.|whl\)|\$wheel)\[([a-z, ]+)\]")
# A comment before a block states why it is not run here.
REASON = re.compile(r"<!-- ((?:needs|takes) [^>]+) -->")


@dataclass(frozen=True)
class Block:
    """Lines that a reader copies together."""

    page: str
    line: int  # line number of the first one, from 1
    language: str  # of a fence; `shell` where the block is indented
    text: str
    reason: str | None  # why it is not run here

    @property
    def commands(self) -> list[str]:
        """Each command with its continuation lines: those after a backslash, and a here-document."""
        found: list[str] = []
        end = None  # of the here-document
        for line in self.text.splitlines():
            if end or (found and found[-1].endswith("\\")) or line.startswith(("  ", '"')):
                found[-1] += "\n" + line
                end = None if line == end else end
            else:
                found.append(line)
                here = re.search(r"<<'?(\w+)'?$", line)
                end = here[1] if here else None
        return found


def blocks(page: str) -> Iterator[Block]:
    """Every block of a page."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    reason: str | None = None
    number = 0
    while number < len(lines):
        start, before = number, lines[number - 1].strip() if number else ""
        if comment := REASON.fullmatch(lines[number].strip()):
            reason = comment[1]
        if fence := re.match(r" *```(?=(\S*)$)", lines[number]):
            number = lines.index(fence[0], start + 1)
            language, content = fence[1], lines[start + 1 : number]
        elif not before and lines[number].startswith("    "):  # in Markdown, no block of code interrupts a paragraph
            while number + 1 < len(lines) and re.match(" {4}| *$", lines[number + 1]):
                number += 1
            language, content = "shell", lines[start : number + 1]
        else:
            number += 1
            continue
        yield Block(page, start + 1, language, textwrap.dedent("\n".join(content)).strip("\n"), reason)
        reason = None
        number += 1


def installations() -> Iterator[tuple[str, str]]:
    """(file, line) of each `pip install` that README.md, docs/, examples/ and messages of the program print."""
    folders = ("docs", "examples", "intaglio", "cli", "exporters", "plugins", "runtime", "validation")
    files = [ROOT / "README.md", *(path for folder in folders for path in sorted((ROOT / folder).rglob("*")))]
    for path in files:
        if path.suffix in (".md", ".py") or path.name == "Dockerfile":
            name = str(path.relative_to(ROOT))
            yield from ((name, line) for line in INSTALLS.findall(path.read_text(encoding="utf-8").replace("\\\n", "")))


def printed_extras() -> dict[str, str]:
    """Each extra that such a line asks for, with the first file that has it."""
    found: dict[str, str] = {}
    for name, line in installations():
        for extras in EXTRAS.findall(line):
            for extra in extras.split(","):
                found.setdefault(extra.strip(), name)
    return found
