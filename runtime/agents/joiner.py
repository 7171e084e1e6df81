"""The joiner of LLMCompiler (thesis, section 6.2 and appendix D.5): answers, or asks for another plan."""

from __future__ import annotations

import re
from typing import NamedTuple

from intaglio.runtime.agents.plan_grammar import ANSWER, THOUGHT

# A decision is at the beginning of a line, so that neither word counts within a thought or an answer.
DECISION = re.compile(r"^[ \t]*(Answer|Replan):", re.MULTILINE)
REPLAN = r"REPLAN: /Replan: [^\x00-\x1f]{1,500}/"


class Decision(NamedTuple):
    """What a joiner wrote."""

    answer: str | None
    reason: str = ""  # for another plan, if there is no answer


def joiner_grammar(may_replan: bool) -> str:
    """Return the grammar of a joiner's text, in llguidance's variant of Lark."""
    start = "start: THOUGHT? (ANSWER | REPLAN)" if may_replan else "start: THOUGHT? ANSWER"
    return "\n".join([start, THOUGHT, ANSWER, REPLAN if may_replan else ""])


def read_decision(text: str) -> Decision | None:
    """Read what a joiner wrote; None for text without a line that begins with "Answer:" or "Replan:"."""
    found = DECISION.search(text)
    if found is None:
        return None
    rest = text[found.end() :].strip()
    return Decision(rest) if found[1] == "Answer" else Decision(None, " ".join(rest.split()))
