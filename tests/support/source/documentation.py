"""The shell commands of README.md and the pages of docs/, as a reader would copy them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
# In reading order: a page uses files created by README.md and the earlier pages.
PAGES = (
    "README.md", "docs/chat-model.md", "docs/validation.md", "docs/integer-only.md", "docs/compressed-weights.md",
    "docs/deploy/cluster.md", "docs/decoding.md", "docs/constrained_output.md", "docs/speech.md", "docs/vision.md",
    "docs/agents/agents.md", "docs/agents/agent_tools.md", "docs/serving.md", "docs/deploy/triton.md", "docs/gpu.md",
    "docs/reference.md", "docs/tutorials/encoder-on-a-t4.md", "docs/tutorials/three-bit-decoder.md",
    "docs/tutorials/search-service.md",
)  # fmt: skip
PROGRAMS = ("intaglio", "pip", "python", "curl", "source", "git", "polygraphy", "cat", "head", "cut", "openssl")
STARTS = re.compile(rf"({'|'.join(PROGRAMS)}|arecord)\s|for [a-z]+ in [a-z ]+; do|[A-Z]+=\S")
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
    """The indented blocks of a page that begin with a command."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    reason: str | None = None
    number = 0
    while number < len(lines):
        start = number
        if comment := REASON.fullmatch(lines[number].strip()):
            reason = comment[1]
        indent = re.match(r" {4,6}(?=\S)", lines[number])
        if not indent:
            number += 1
            continue
        while number < len(lines) and lines[number].startswith(indent[0]):
            number += 1
        text = "\n".join(line[len(indent[0]) :] for line in lines[start:number])
        if STARTS.match(text):
            yield Block(page, start + 1, text, reason)
        reason = None


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
