"""The joiner of LLMCompiler (thesis, section 6.2 and appendix D.5): answers, or asks for another plan."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NamedTuple

from intaglio.runtime.agents.plan.grammar import ANSWER, THOUGHT
from intaglio.runtime.agents.plan.plan import ENDINGS
from intaglio.runtime.agents.plan.surrounding_text import without_reasoning

REPLAN = r"REPLAN: /Replan: [^\x00-\x1f]{1,500}/"

_COLON = "[:\uff1a]"
_MARKS = r"""*_`"'“„«"""
_BEFORE = rf"(?P<open>[ \t\u00a0\ufeff\u200b>#~•\-\[({_MARKS}]*(?:\d{{1,3}}[.)][ \t]*[{_MARKS}]*)?)"
_ANSWER = (
    r"(?:the[ ]|my[ ])?(?:final|short|direct)?[ _]?answer(?:[ ]is)?|antwort|endgültige[ ]antwort|réponse(?:[ ]finale)?"
    r"|respuesta(?:[ ]final)?|risposta(?:[ ]finale)?|ответ|(?:最终)?答案"
)
_REPLAN = r"re-?[ ]?plan(?:ning)?"
# A decision is at the beginning of a line, so that neither word counts within a thought or an answer.
LABEL = re.compile(
    rf"^{_BEFORE}(?:(?P<answer>{_ANSWER})|(?P<replan>{_REPLAN}))[*_`\"'”\])]*"
    rf"(?:[ \t\u00a0]*{_COLON}[*_`]*|(?P<bare>[ \t]*$))",
    re.MULTILINE | re.IGNORECASE,
)
# The joiner of the thesis' own prompts, and ReAct's: Action: Finish(...), Action: Replan, Final Answer as an action.
ACTION = re.compile(
    rf"^{_BEFORE}(?:(?:action|decision)[*_`\s]*\d*[*_`\s]*{_COLON}[*_`\s]*)?"
    rf"(?:(?P<answer>finish|final[ _]?answer|answer|respond)|(?P<replan>{_REPLAN}))[*_`\s]*"
    rf"(?P<bracket>[(\[]|\n[\s*_`]*action[ _]input[*_`\s]*{_COLON}|(?(replan){_COLON}?[ \t]*$|(?!)))",
    re.MULTILINE | re.IGNORECASE,
)
ELEMENT = re.compile(
    r"<(?P<name>answer|final_answer|response|replan)>(?P<text>.*?)</(?P=name)>", re.IGNORECASE | re.DOTALL
)
THOUGHTS = re.compile(rf"[\W_]*thoughts?\s*\d*[\s*_`]*{_COLON}", re.IGNORECASE)
IN_A_THOUGHT = re.compile(r"(?<=[.!?])[ \t*_]+(?P<label>Answer|Final Answer|Replan)[*_]*:", re.IGNORECASE)
THE_ANSWER = re.compile(r"^(?:so|thus|therefore)?,?[ ]?the (?:final )?answer is\b", re.MULTILINE | re.IGNORECASE)
_WE = r"(?:i|we)(?:['’]ll| will| need to| have to| must| should| want to) |let(?:['’]s| us| me) |need to "
WISH = re.compile(rf"[\W_]*(?:{_WE})?re-?plan\b(?!ning)", re.IGNORECASE)
PLACEHOLDER = re.compile(r"\s*(?:\.{3}|…)[\s.…]*|<[\w ]+>|\[[\w ]*answer[\w ]*\]", re.IGNORECASE)
KEYS = {"answer", "final_answer", "response", "replan", "feedback", "reason", "thought", "thoughts", "action"}
UNREAD = "the joiner wrote no answer"  # begins the reason for another plan
LABELS = ("answer:", "final answer:", "replan:", "thought:", "action:")  # an answer's beginning may be one's
_CLOSES = {"“": "”", "„": "“”", "«": "»"}  # quotation marks that are no closing ones themselves


class Decision(NamedTuple):
    """The decision of a joiner."""

    answer: str | None
    reason: str = ""  # for another plan, if there is no answer


def joiner_grammar(may_replan: bool) -> str:
    """Return the grammar of a joiner's text, in llguidance's variant of Lark."""
    start = "start: THOUGHT? (ANSWER | REPLAN)" if may_replan else "start: THOUGHT? ANSWER"
    return "\n".join([start, THOUGHT, ANSWER, REPLAN if may_replan else ""])


def read_decision(text: str) -> Decision | None:
    """Parse a joiner's text, after its reasoning; None for text without a valid decision.

    A decision is a line that begins with "Answer:" or "Replan:", in any decoration, or one of the other forms that
    models write: `Final Answer: ...`, `Action: Finish(...)`, `<answer>...</answer>`, `{"answer": ...}`.
    """
    return _decision(without_reasoning(text)[0])


def read_joined(text: str, tools: Collection[str]) -> Decision:
    """Parse a joiner's text: text without a decision is the answer, as models forget the form.

    Other text, such as a call, a thought alone, or reasoning without an end, is the reason for another plan. An answer
    is empty if the joiner's text is.
    """
    found = read_decision(text)
    if found is not None:
        return found
    if problem := not_an_answer(text, tools):
        return Decision(None, f"{UNREAD}: {problem}")
    return Decision(without_reasoning(text)[0].strip())


def partial_answer(text: str, tools: Collection[str]) -> str | None:
    """Return the answer so far of a joiner that was cut off; None if it has not begun."""
    found = read_joined(text, tools).answer
    return None if not found or any(label.startswith(found.casefold()) for label in LABELS) else found


def not_an_answer(text: str, tools: Collection[str]) -> str:
    """Return why a text without a decision is no answer; empty if it is one, or nothing at all."""
    rest, before = without_reasoning(text)
    if not rest.strip():
        return "reasoning alone" if text.strip() else ""
    if before and _decision(before) is not None:
        return "a decision within its reasoning"
    if THOUGHTS.match(rest):
        return "a thought alone"
    if calls_as_text(rest, tools):
        return "a call"
    if PLACEHOLDER.fullmatch(LABEL.sub("", rest)):
        return "a placeholder"
    return "a wish for another plan" if WISH.match(rest) else ""


def calls_as_text(text: str, tools: Collection[str]) -> bool:
    """Whether `text` asks for a tool: as plans do, as ReAct, as chat templates or as the API."""
    names = "|".join(map(re.escape, (*tools, *ENDINGS)))
    pattern = (
        rf"^[\W_]*(?:step\s*)?(?:\d+\s*[.):-]\s*|\$\d+\s*=\s*)?[*_`]*(?:functions\.)?(?:{names})[*_`]*\("
        rf"|^[\W_]*action(?:[ _]input)?[\s*_`]*{_COLON}|<tool_call>|<function[=_]|\[TOOL_CALLS\]|<\|python_tag\|>"
        rf'|"(?:name|tool|tool_name|function)"\s*:\s*"(?:{names})"'
    )
    return re.search(pattern, text, re.MULTILINE | re.IGNORECASE) is not None


def _decision(text: str) -> Decision | None:
    """Read the first decision of a text without reasoning."""
    if found := _of_json(text):
        return found
    forms = [(form, match) for form in (LABEL, ACTION, ELEMENT) if (match := form.search(text))]
    if not forms:
        return _in_a_thought(text)
    form, match = min(forms, key=lambda each: (each[1].start(), -each[1].end()))
    if form is ELEMENT:
        rest, replans = match["text"].strip(), match["name"].lower() == "replan"
    else:
        given = _in_brackets(text[match.end() :], match["bracket"]) if form is ACTION else text[match.end() :]
        if given is None:
            return None
        rest, replans = _undecorated(given, match["open"], text[: match.start()]), match["replan"] is not None
    if replans or (LABEL.match(rest) and WISH.match(rest)):
        return Decision(None, " ".join(rest.split()))
    return None if rest and PLACEHOLDER.fullmatch(rest) else Decision(rest)


def _in_a_thought(text: str) -> Decision | None:
    """Read a decision behind a thought on its line, if there is one alone."""
    if not THOUGHTS.match(text):
        return None
    if sentence := THE_ANSWER.search(text):
        return Decision(text[sentence.start() :].strip())
    found = list(IN_A_THOUGHT.finditer(text))
    if len(found) != 1:
        return None
    rest = text[found[0].end() :].strip(" \t\n*_")
    if found[0]["label"].lower() == "replan":
        return Decision(None, " ".join(rest.split()))
    return Decision(rest) if rest else None


def _undecorated(text: str, opened: str, before: str) -> str:
    """Return the answer in `text` without what closes the decoration `opened` before its label."""
    text = text.strip()
    if before.rstrip().endswith(("```", "~~~")) or re.search(r"(```|~~~)\w*\s*$", before):
        text = text.removesuffix("```").removesuffix("~~~").rstrip()
    for mark in reversed(re.findall(r"\*+|_+|`+|[\"'“„«]", opened)):
        closing = _CLOSES.get(mark, mark)
        head, _, tail = text.partition("\n")
        for end in closing if mark in _CLOSES else (mark,):
            if text.endswith(end) and text.count(end) % 2:
                text = text.removesuffix(end).rstrip()
            elif head.endswith(end) and head.count(end) % 2:
                text = f"{head.removesuffix(end).rstrip()}\n{tail}"
    return text.strip()


def _in_brackets(text: str, opening: str) -> str | None:
    """Return what is in the brackets of an action; None if they don't close at the end."""
    if not opening or opening not in "([":
        return text  # Action Input: ..., or nothing
    closing = ")" if opening == "(" else "]"
    inside = text.strip().rstrip("*_`.; \n")
    if not inside.endswith(closing):
        return None
    inside = re.sub(r"^\s*(?:answer|text|reason|response)\s*=\s*", "", inside[:-1]).strip()
    quote = inside[:1]
    if quote in ('"', "'") and inside.endswith(quote) and len(inside) > 1 and quote not in inside[1:-1]:
        return inside[1:-1]
    return inside if inside.count(opening) == inside.count(closing) else None


def _of_json(text: str) -> Decision | None:
    """Read `{"answer": ...}` and `{"replan": ...}`, with a thought or without, in a code block or without."""
    text = re.sub(r"^```\w*\s*|\s*```$", "", text.strip())
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict) and isinstance(found.get("action"), dict):  # LangGraph's joiner
        found |= found.pop("action")
    if not isinstance(found, dict) or not found.keys() <= KEYS:
        return None
    action = str(found.get("action", "")).lower()
    for key in ("answer", "final_answer", "response"):
        if key in found and not WISH.match(action) and not found.get("replan"):
            return Decision(found[key] if isinstance(found[key], str) else json.dumps(found[key], ensure_ascii=False))
    if WISH.match(action) or found.get("replan") or "feedback" in found:
        reasons = (found.get(key) for key in ("feedback", "reason", "replan"))
        return Decision(None, next((" ".join(each.split()) for each in reasons if isinstance(each, str)), ""))
    return None
