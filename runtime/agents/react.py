"""ReAct (Yao et al. 2022), the thesis' baseline: a thought and one call at a time, each after the result before."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing

from intaglio.runtime.agents.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.events import Observer
from intaglio.runtime.agents.joiner import read_decision
from intaglio.runtime.agents.model import Model, ModelRequest
from intaglio.runtime.agents.plan import Call, PlanError
from intaglio.runtime.agents.plan_grammar import turn_grammar
from intaglio.runtime.agents.plan_parser import PlanParser
from intaglio.runtime.agents.prompts import TURN_RULES, question_prompt, result_line, system_prompt
from intaglio.runtime.agents.run_state import LimitReached, Run
from intaglio.runtime.agents.task_fetching import TaskFetchingUnit
from intaglio.runtime.agents.tool import Tool
from intaglio.runtime.generation.chat import Message


class ReAct:
    """Writes one call at a time, in the language of plans, and reads its result before the next one."""

    def __init__(
        self,
        model: Model,
        tools: Mapping[str, Tool],
        limits: AgentLimits | None = None,
        instructions: str | None = None,
        constrained: bool = True,
    ):
        """`instructions`: the system message; by default the rules of a turn, with the tools."""
        self.limits = limits or AgentLimits()
        self._model, self._tools = model, dict(tools)
        self._system = instructions or system_prompt(TURN_RULES, list(tools.values()))
        self._constrained = constrained and model.constrained

    async def run(self, question: str, observer: Observer | None = None) -> AgentResult:
        """See `Agent`."""
        run = Run(self.limits, observer)
        return await run.finish(lambda: self._answer(run, question))

    async def _answer(self, run: Run, question: str) -> str:
        messages = [Message("system", self._system), Message("user", question_prompt(question))]
        while True:
            text, call, broken = await self._turn(run, messages)
            if call is None and broken is None:
                answer = read_decision(text).answer
                if not answer:
                    raise LimitReached("the model wrote nothing")
                return answer
            result = f"The call is not valid: {broken}" if call is None else await self._called(run, call)
            messages += [Message("assistant", text), Message("user", result)]

    async def _turn(self, run: Run, messages: list[Message]) -> tuple[str, Call | None, str | None]:
        """Let the model write a call or an answer; return its text, the call, and what is wrong with it."""
        grammar = turn_grammar(list(self._tools.values()), run.observations) if self._constrained else None
        request = ModelRequest(list(messages), self.limits.request_tokens, grammar)
        parser = PlanParser(self._tools, run.observations)
        text, broken = "", None
        async with aclosing(run.pieces(self._model, "agent", request)) as pieces:
            async for piece in pieces:
                if not isinstance(piece, str):
                    continue
                text += piece
                if broken is not None:
                    continue
                try:
                    calls = parser.push(piece)
                except PlanError as error:  # an answer, or a call that cannot be made
                    broken = str(error)
                    continue
                if calls:
                    run.plans.append(text)
                    return text, calls[0], None
        return text, None, None if _is_answer(text) else broken or "it has no end"

    async def _called(self, run: Run, call: Call) -> str:
        async with TaskFetchingUnit(self._tools, self.limits, run.observer, run.clock, run.observations) as unit:
            unit.add(call)
            run.observations.update(await unit.wait())
        return result_line(run.observations[call.number], self.limits.observation_characters)


def _is_answer(text: str) -> bool:
    return read_decision(text).answer != text.strip()
