"""Function calling of the OpenAI API: the model requests calls, gets their results, and continues or answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from intaglio.errors import UsageError, one_line
from intaglio.runtime.agents.loops.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.loops.joiner import calls_as_text
from intaglio.runtime.agents.loops.prompts import CALL_AS_TEXT, FUNCTION_RULES, shortened
from intaglio.runtime.agents.loops.run_state import LimitReached, Run
from intaglio.runtime.agents.models.model import Model, ModelRequest
from intaglio.runtime.agents.plan.plan import Call, PlanError
from intaglio.runtime.agents.plan.surrounding_text import without_reasoning
from intaglio.runtime.agents.run.events import Observer
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.runtime.generation.requests.message import FunctionCall, Message, ToolCall
from intaglio.runtime.generation.tool_calls.tools import Mode

UNREAD = 2  # answers with calls as text, before the run ends
SHOWN = 200  # characters of invalid arguments in a message


class FunctionCalling:
    """Runs the calls that the model asks for in one turn in parallel, and then asks it again."""

    def __init__(
        self,
        model: Model,
        tools: Mapping[str, Tool],
        limits: AgentLimits | None = None,
        instructions: str | None = None,
        rounds: int | None = None,
    ):
        """`rounds`: turns with calls; after the last the model must answer. 1: parallel calls once, as the thesis'
        baseline has them. None: as many as the limits allow. Raises `UsageError` for less than 0.
        """
        if rounds is not None and rounds < 0:
            raise UsageError(f"rounds {rounds}: expected 0 or more.")
        self.limits = limits or AgentLimits()
        self._model, self._tools, self._rounds = model, dict(tools), rounds
        self._system = instructions or FUNCTION_RULES

    async def run(self, question: str, observer: Observer | None = None) -> AgentResult:
        """See `Agent`."""
        run = Run(self.limits, observer)
        return await run.finish(lambda: self._answer(run, question))

    async def _answer(self, run: Run, question: str) -> str:
        run.check(question, self._tools)
        messages = [Message("system", self._system), Message("user", question)]
        rounds = unread = 0
        while True:
            may_call = run.may_call and (self._rounds is None or rounds < self._rounds)
            text, calls = await self._turn(run, messages, may_call)
            answer = without_reasoning(text)[0].strip()
            if answer and not (calls and may_call):
                if not calls_as_text(answer, self._tools):
                    return answer
                messages += [Message("assistant", text), Message("user", CALL_AS_TEXT)]
                unread += 1
                if unread > UNREAD:
                    raise LimitReached("the model wrote its calls as text, and no answer")
                continue
            if not calls:
                raise LimitReached("the model wrote nothing" if not text.strip() else "the model wrote reasoning alone")
            if not run.may_call:
                raise run.out_of_calls()
            if not may_call:
                raise LimitReached(f"the run reached its limit of {self._rounds} rounds of tool calls")
            rounds += 1
            await self._run(run, calls)
            messages.append(Message("assistant", text or None, tool_calls=[each.call for each in calls]))
            messages += [each.message(run, self.limits.max_result_characters) for each in calls]

    async def _turn(self, run: Run, messages: Sequence[Message], may_call: bool) -> tuple[str, list[_Asked]]:
        """Ask the model; return the text and the calls of its answer."""
        tools = list(self._tools.values())
        choice: Mode = "auto" if may_call else "none"
        request = ModelRequest(list(messages), self.limits.max_request_tokens, tools=tools, tool_choice=choice)
        texts: list[str] = []
        calls: list[_Asked] = []
        run.partial = lambda: None if calls else without_reasoning("".join(texts))[0].strip() or None

        async def read() -> None:
            texts.clear()
            calls.clear()
            async with aclosing(run.pieces(self._model, "agent", request)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, str):
                        texts.append(piece)
                    else:
                        calls.append(_asked(piece))

        await run.retried(read, lambda: run.partial() is not None)
        run.partial = lambda: None
        return "".join(texts), calls

    async def _run(self, run: Run, calls: Sequence[_Asked]) -> None:
        """Run the calls of a turn in parallel."""
        async with run.scheduling(self._tools) as scheduler:
            number = run.next_number()
            for each in calls:
                if each.error:
                    continue
                try:
                    scheduler.add(Call(number, each.call.function.name, keywords=each.arguments))
                except PlanError as error:
                    each.error = str(error)
                else:
                    each.number = number
                    number += 1
            await scheduler.wait()


@dataclass
class _Asked:
    """A call that the model asked for."""

    call: ToolCall  # as the conversation has it: templates, and servers, reject arguments that are not an object
    arguments: dict[str, Any]
    error: str = ""  # why it cannot be made
    number: int | None = None  # of the call that was made

    def message(self, run: Run, most: int) -> Message:
        """Return the message with the result."""
        if self.number is None:
            text = f"error: {self.error}"
        else:
            observation = run.observations[self.number]
            text, most = observation.text, observation.characters(most)
        return Message("tool", shortened(text, most), self.call.function.name, tool_call_id=self.call.id)


def _asked(call: ToolCall) -> _Asked:
    """Read the arguments of a call."""
    name, given = call.function.name, call.function.arguments
    try:
        arguments = json.loads(given or "{}") if isinstance(given, str) else given
        error = "" if isinstance(arguments, dict) else f"the arguments are a {type(arguments).__name__}"
    except (ValueError, RecursionError) as raised:
        error = f"the arguments are not JSON ({one_line(raised)})"
    if error:
        shown = ToolCall(FunctionCall(name, {}), call.id, call.type)
        return _Asked(shown, {}, f"{name}: {error}, expected an object: {shortened(str(given), SHOWN)}")
    return _Asked(call, arguments)
