"""Examples of plans for the planner (thesis, section 6.3 and appendix D.4), read from a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from intaglio.errors import UsageError
from intaglio.files.input_files import read_text
from intaglio.runtime.agents.loops.prompts import PlanExample
from intaglio.runtime.agents.plan.parser import PlanParser
from intaglio.runtime.agents.plan.plan import PlanError
from intaglio.runtime.agents.tools.tool import Tool

BETWEEN = re.compile(r"^[ \t]*###[ \t]*$", re.MULTILINE)
QUESTION = "Question:"
PLAN = re.compile(r"^[ \t]*(?:Thought:|[0-9]+\.|\$[0-9]+[ \t]*=)", re.MULTILINE)  # the first line of a plan
FORM = "Write `Question: ...`, the lines of the plan below it, and ### between two examples."


def read_examples(path: Path, tools: Mapping[str, Tool], option: str) -> list[PlanExample]:
    """Read the examples of a file; `option` is the option that named it.

    An example is a question, of one or more lines, and its plan; a line of ### ends it:

        Question: How much larger is Asia than Africa?
        1. search("area of Asia")
        2. search("area of Africa")
        3. calculate("$1 / $2")
        4. join()
        ###

    Raises `UsageError` for a file that is empty or has another form, and for a plan that `tools` cannot run.
    """
    blocks = [block.strip() for block in BETWEEN.split(read_text(path, option))]
    examples = [
        _read(block, tools, f"{option} {path}, example {number}") for number, block in enumerate(blocks, 1) if block
    ]
    if not examples:
        raise UsageError(f"{option} {path}: has no examples, expected at least one. {FORM}")
    return examples


def _read(block: str, tools: Mapping[str, Tool], where: str) -> PlanExample:
    if not block.startswith(QUESTION):
        raise UsageError(f"{where}: begins with {block.splitlines()[0]!r:.80}, expected {QUESTION!r}. {FORM}")
    found = PLAN.search(block)
    if found is None:
        raise UsageError(f"{where}: has no plan. {FORM}")
    question, plan = block[len(QUESTION) : found.start()].strip(), block[found.start() :].strip()
    if not question:
        raise UsageError(f"{where}: its question is empty. {FORM}")
    parser = PlanParser(tools)
    try:
        parser.push(plan)
        parser.finish()
    except PlanError as error:
        raise UsageError(f"{where}: {error}") from error
    return PlanExample(question, plan)
