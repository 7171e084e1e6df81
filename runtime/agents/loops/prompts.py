"""The prompts of agents: the rules of a plan, the tools, and the results of the calls so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from intaglio.runtime.agents.run.observation import Observation, as_text
from intaglio.runtime.agents.tools.tool import Tool

PLAN_RULES = """\
You plan how to answer a question by calling tools. Write one call per line, numbered on from the last one:

1. tool("argument")
2. other_tool("argument with $1", limit=3)
3. join()

- Call only the tools below, with the arguments that they take.
- $1 stands for the result of call 1, as a whole argument or within a string. Refer to earlier calls only.
- Calls that do not refer to each other run at the same time. Keep calls independent where you can.
- A line "Thought: ..." may stand before a call. Write no other text.
- End the plan with join(): when its results answer the question, or when you need them to plan on.

After the results you are asked for "Answer: ..." or, if they are not enough, "Replan: ..." with the reason."""

TURN_RULES = """\
You answer a question by calling tools, one at a time. In each turn write one numbered call, or the answer:

Thought: why
1. tool("argument")

- Call only the tools below, with the arguments that they take.
- $1 stands for the result of call 1, as a whole argument or within a string.
- You get the result of the call, and then write the next turn.
- When you know the answer, write a line that begins with "Answer: "."""

FUNCTION_RULES = "You answer a question by calling tools. When you know the answer, write it and call none."
CALL_AS_TEXT = "This is not valid: it has a call as text. Call the tool as a function, or write the answer."
MORE_RULES = (
    'Answer the question with "Answer: ...", or write "Replan: ..." with the reason if the results are not enough.'
)
LAST_RULE = 'Answer the question with "Answer: ..." from these results.'


class PlanExample(NamedTuple):
    """A question and the plan for it, to show the planner."""

    question: str
    plan: str


def system_prompt(rules: str, tools: Sequence[Tool], examples: Sequence[PlanExample] = ()) -> str:
    """Return the rules with the signatures of the tools, and examples."""
    parts = [rules, "Tools:\n" + "\n".join(f"- {signature(tool)}" for tool in tools)]
    parts += [f"Example:\nQuestion: {each.question}\n{each.plan.strip()}" for each in examples]
    return "\n\n".join(parts)


def signature(tool: Tool) -> str:
    """Return a tool as one line: `search(query: string, limit: integer = 3): Find passages.`."""
    parameters = (_parameter(name, schema, tool) for name, schema in tool.properties.items())
    described = " ".join(tool.description.split())
    return f"{tool.name}({', '.join(parameters)})" + (f": {described}" if described else "")


def _parameter(name: str, schema: Any, tool: Tool) -> str:
    text = f"{name}: {_kind(schema)}"
    if name in tool.required or not isinstance(schema, Mapping):
        return text
    return f"{text} = {as_text(schema['default'])}" if "default" in schema else f"{text}, optional"


def _kind(schema: Any) -> str:
    """Return a short name of a schema."""
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return " | ".join(as_text(each) for each in schema["enum"])
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(_kind(each) for each in alternatives)
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


def question_prompt(question: str) -> str:
    """Return the message that asks."""
    return f"Question: {question}"


def results_prompt(observations: Mapping[int, Observation], most: int, broken: str | None, may_replan: bool) -> str:
    """Return the message to the joiner: the results of a plan's calls.

    `most`: characters of each result; `broken`: the error of the plan, if it could not be parsed to its end.
    """
    lines = [result_line(observations[number], most) for number in sorted(observations)]
    if broken is not None:
        lines.append(f"The plan is not valid: {broken}")
    return "\n".join([*lines, MORE_RULES if may_replan else LAST_RULE])


def continue_prompt(observations: Mapping[int, Observation], most: int, broken: str, number: int) -> str:
    """Return the message that asks for the rest of a plan that ended too early, after these calls."""
    lines = [result_line(observations[each], most) for each in sorted(observations)]
    return "\n".join([*lines, f"The plan broke off: {broken}", replan_prompt(number)])


def result_line(observation: Observation, most: int) -> str:
    """Return a result as `$1 = ...`, shortened to `most` characters."""
    return f"${observation.number} = {shortened(observation.text, observation.characters(most))}"


def shortened(text: str, most: int) -> str:
    """Return the first `most` characters of a result, and how many it has beyond them."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} characters more)"


def replan_prompt(number: int) -> str:
    """Return the message that asks for another plan, whose first call has this number."""
    return f"Plan on, from call {number}."


def invalid_turn(cause: str, number: int) -> str:
    """Return the message after a turn of ReAct that is neither a call nor an answer."""
    return f'This is not valid: {cause} Write call {number}, or a line that begins with "Answer: ".'
