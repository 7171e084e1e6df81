"""Function calling as the OpenAI API does it: the model asks for calls, gets their results, and goes on or answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from intaglio.runtime.agents.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.events import Observer
from intaglio.runtime.agents.model import Model, ModelRequest
from intaglio.runtime.agents.observation import Observation
from intaglio.runtime.agents.plan import Call, PlanError
from intaglio.runtime.agents.prompts import FUNCTION_RULES
from intaglio.runtime.agents.run_state import LimitReached, Run
from intaglio.runtime.agents.task_fetching import TaskFetchingUnit
from intaglio.runtime.agents.tool import Tool
from intaglio.runtime.generation.chat import Message, ToolCall
from intaglio.runtime.generation.tool_calls.tools import Mode


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
        baseline has them. None: as many as the limits allow.
        """
        self.limits = limits or AgentLimits()
        self._model, self._tools, self._rounds = model, dict(tools), rounds
        self._system = instructions or FUNCTION_RULES

    async def run(self, question: str, observer: Observer | None = None) -> AgentResult:
        """See `Agent`."""
        run = Run(self.limits, observer)
        return await run.finish(lambda: self._answer(run, question))

    async def _answer(self, run: Run, question: str) -> str:
        messages = [Message("system", self._system), Message("user", question)]
        turn = 0
        while True:
            text, calls = await self._turn(run, messages, self._rounds is None or turn < self._rounds)
            if not calls:
                if not text.strip():
                    raise LimitReached("the model wrote nothing")
                return text.strip()
            turn += 1
            messages.append(Message("assistant", text or None, tool_calls=list(calls)))
            messages += await self._called(run, calls)

    async def _turn(self, run: Run, messages: Sequence[Message], may_call: bool) -> tuple[str, list[ToolCall]]:
        tools = list(self._tools.values())
        choice: Mode = "auto" if may_call else "none"
        request = ModelRequest(list(messages), self.limits.request_tokens, tools=tools, tool_choice=choice)
        texts: list[str] = []
        calls: list[ToolCall] = []
        async with aclosing(run.pieces(self._model, "agent", request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    texts.append(piece)
                else:
                    calls.append(piece)
        return "".join(texts), calls

    async def _called(self, run: Run, calls: Sequence[ToolCall]) -> list[Message]:
        """Run the calls of a turn in parallel; return the messages with their results."""
        results: list[tuple[ToolCall, int | str]] = []  # the number of the call, or why it cannot be made
        async with TaskFetchingUnit(self._tools, self.limits, run.observer, run.clock, run.observations) as unit:
            number = run.next_number()
            for asked in calls:
                try:
                    unit.add(Call(number, asked.function.name, keywords=_arguments(asked)))
                except PlanError as error:
                    results.append((asked, str(error)))
                else:
                    results.append((asked, number))
                    number += 1
            run.observations.update(await unit.wait())
        return [_result(asked, what, run.observations, self.limits) for asked, what in results]


def _arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call. Raises `PlanError` where they are not a JSON object."""
    given = call.function.arguments
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError) as error:
            raise PlanError(f"{call.function.name}: the arguments are not JSON: {error}.") from error
    if not isinstance(given, dict):
        raise PlanError(f"{call.function.name}: the arguments are a {type(given).__name__}, expected an object.")
    return given


def _result(call: ToolCall, what: int | str, observations: Mapping[int, Observation], limits: AgentLimits) -> Message:
    text = observations[what].text if isinstance(what, int) else f"error: {what}"
    most = limits.observation_characters
    if isinstance(what, int):
        most = observations[what].characters(most)
    if len(text) > most:
        text = f"{text[:most]}… ({len(text) - most} characters more)"
    return Message("tool", text, call.function.name, tool_call_id=call.id)
