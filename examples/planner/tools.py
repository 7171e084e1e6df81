"""The planner's tools: `search` for facts, and `calculate`. For `--tools examples/planner/tools.py`.

A question that the planner cannot plan for ends the run, see known_questions.py. The facts are rounded, public ones
about places, buildings, planets and elements: a file for each entity, a line for each fact.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from intaglio import Tool, ToolError, tool
from intaglio.runtime import CALCULATE, TextIndex

sys.path.append(str(Path(__file__).parent.parent))  # run as a file, it is no part of a package

from planner.known_questions import refusal

INDEX = TextIndex(Path(__file__).parent / "facts")
WORD = re.compile(r"\w+")


@tool(refuses=refusal)
def search(query: str) -> int | float | str:
    """Look up a fact, and return its value alone.

    Args:
        query: what to look for, such as "area of Texas"
    """
    words = set(WORD.findall(query.lower()))
    lines = [line for _, passage in INDEX.find(query, 1) for line in passage.splitlines()]
    line = max(lines, key=lambda line: len(words.intersection(WORD.findall(line.lower()))), default=None)
    if line is None:
        raise ToolError(f"no fact has any word of {query!r:.200}")
    value = line.rpartition(": ")[2]
    return float(value) if "." in value else int(value) if value.isdigit() else value


TOOLS: tuple[Tool, ...] = (search, CALCULATE)
