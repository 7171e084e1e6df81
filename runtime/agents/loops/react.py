"""ReAct (Yao et al. 2022), the thesis' baseline: a thought and one call at a time, each after the result before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing

from intaglio.runtime.agents.loops.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.loops.joiner import read_decision
from intaglio.runtime.agents.loops.prompts import TURN_RULES, invalid_turn, question_prompt, result_line, system_prompt
from intaglio.runtime.agents.loops.run_state import Run, read_end
from intaglio.runtime.agents.models.model import Model, ModelRequest
from intaglio.runtime.agents.plan.check import check_names
from intaglio.runtime.agents.plan.grammar import turn_grammar
from intaglio.runtime.agents.plan.parser import PlanParser
from intaglio.runtime.agents.plan.plan import Call, PlanError
from intaglio.runtime.agents.run.events import Observer
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.runtime.generation.requests.message import Message


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
        """`instructions`: the system message; by default the rules of a turn, with the tools.

        Raises `UsageError` for a tool with the name of a plan's ending.
        """
        check_names(tools)
        self.limits = limits or AgentLimits()
        self._model, self._tools = model, dict(tools)
        self._system = instructions or system_prompt(TURN_RULES, list(tools.values()))
        self._constrained = constrained and model.constrained

    async def run(self, question: str, observer: Observer | None = None) -> AgentResult:
        """See `Agent`."""
        run = Run(self.limits, observer)
        return await run.finish(lambda: self._answer(run, question))

    async def _answer(self, run: Run, question: str) -> str:
        run.check(question, self._tools)
        messages = [Message("system", self._system), Message("user", question_prompt(question))]
        while True:
            turn = await self._turn(run, messages)
            run.plans.append(turn.text)
            if turn.call is not None:
                result = result_line(run.observations[turn.call.number], self.limits.max_result_characters)
            elif answer := turn.answer():
                return answer
            else:
                result = invalid_turn(turn.problem(), run.next_number())
            messages += [Message("assistant", turn.text), Message("user", result)]

    async def _turn(self, run: Run, messages: Sequence[Message]) -> _Turn:
        """Let the model write a call, and run it, or an answer."""
        tools = list(self._tools.values()) if run.may_call else []
        characters = self.limits.max_string_characters
        grammar = turn_grammar(tools, run.observations, characters) if self._constrained else None
        request = ModelRequest(list(messages), self.limits.max_request_tokens, grammar)

        async def read() -> _Turn:
            turn = _Turn(PlanParser(self._tools, run.observations))
            run.partial = turn.answer
            async with aclosing(run.pieces(self._model, "agent", request)) as pieces:
                async for piece in pieces:
                    call = turn.read(piece) if isinstance(piece, str) else None
                    if call is None:
                        continue
                    if not run.may_call:
                        raise run.out_of_calls()
                    scheduler.add(call)
                    await read_end(pieces)
            return turn

        async with run.scheduling(self._tools) as scheduler:
            turn = await run.retried(read, lambda: bool(scheduler.added or run.partial()))
            await scheduler.wait()
        run.partial = lambda: None
        return turn


class _Turn:
    """A turn, read up to the end of its call: a model may continue as if it knew the result."""

    def __init__(self, parser: PlanParser):
        self.text = ""
        self.call: Call | None = None
        self._parser = parser
        self._broken: PlanError | None = None  # an answer, or a call that cannot be made

    def read(self, piece: str) -> Call | None:
        """Read the next piece of text; return the call, if this completes it."""
        for char in piece:
            self.text += char
            if self._broken is not None:
                continue
            try:
                calls = self._parser.push(char)
            except PlanError as error:
                self._broken = error
                continue
            if calls:
                self.call = calls[0]
                break
        return self.call

    def answer(self) -> str | None:
        """Return the answer so far; None if there is none."""
        decision = read_decision(self.text)
        return None if decision is None else decision.answer or None

    def problem(self) -> str:
        """Return why there is no call."""
        try:
            self._parser.finish()
        except PlanError as error:
            return str(error)
        return "it has no call."
