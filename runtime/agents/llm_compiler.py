"""LLMCompiler (thesis, chapter 6): a planner writes a graph of calls, which run in parallel; a joiner answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing

from intaglio.runtime.agents.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.events import Observer, Replanned
from intaglio.runtime.agents.joiner import Decision, joiner_grammar, read_decision
from intaglio.runtime.agents.model import Model, ModelRequest
from intaglio.runtime.agents.plan import Call, PlanError
from intaglio.runtime.agents.plan_grammar import plan_grammar
from intaglio.runtime.agents.plan_parser import PlanParser
from intaglio.runtime.agents.prompts import (
    PLAN_RULES,
    Example,
    question_prompt,
    replan_prompt,
    results_prompt,
    system_prompt,
)
from intaglio.runtime.agents.run_state import LimitReached, Run
from intaglio.runtime.agents.task_fetching import TaskFetchingUnit
from intaglio.runtime.agents.tool import Tool
from intaglio.runtime.generation.chat import Message

PLAN_CALLS = 32  # of one plan, where a grammar bounds it


class LLMCompiler:
    """Plans, runs the calls of the plan in parallel while it is written, and joins their results.

    agent = LLMCompiler(model, tools)
    result = await agent.run("How much larger is Asia than Africa?")

    Planner and joiner continue one conversation, so a model with a prompt cache reads each message once.
    """

    def __init__(
        self,
        model: Model,
        tools: Mapping[str, Tool],
        limits: AgentLimits | None = None,
        examples: Sequence[Example] = (),
        instructions: str | None = None,
        streaming: bool = True,
        constrained: bool = True,
    ):
        """`instructions`: the system message; by default the rules of a plan, with the tools and `examples`.

        `streaming`: start calls while the plan is written (thesis, section 6.3); False: after its end. `constrained`:
        use grammars, if the model enforces them.
        """
        self.limits = limits or AgentLimits()
        self._model, self._tools, self._streaming = model, dict(tools), streaming
        self._system = instructions or system_prompt(PLAN_RULES, list(tools.values()), examples)
        self._constrained = constrained and model.constrained

    async def run(self, question: str, observer: Observer | None = None) -> AgentResult:
        """See `Agent`."""
        run = Run(self.limits, observer)
        return await run.finish(lambda: self._answer(run, question))

    async def _answer(self, run: Run, question: str) -> str:
        messages = [Message("system", self._system), Message("user", question_prompt(question))]
        for remaining in range(self.limits.replans, -1, -1):
            before = set(run.observations)
            broken = await self._plan(run, messages)
            messages.append(Message("assistant", run.plans[-1]))
            new = {number: each for number, each in run.observations.items() if number not in before}
            most = self.limits.observation_characters
            messages.append(Message("user", results_prompt(new, most, broken, may_replan=remaining > 0)))
            text, decision = await self._join(run, messages, may_replan=remaining > 0)
            if decision.answer is not None:
                return decision.answer
            run.emit(Replanned, reason=decision.reason)
            messages += [Message("assistant", text), Message("user", replan_prompt(run.next_number()))]
        raise LimitReached(f"the run reached its limit of {self.limits.replans} replans")

    async def _plan(self, run: Run, messages: Sequence[Message]) -> str | None:
        """Let the planner write a plan, and run it; return what is wrong with it, if it could not be read to its end.

        The calls before the error are run all the same: their results help the next plan.
        """
        request = self._request(messages, self._plan_grammar(run))
        parser = PlanParser(self._tools, run.observations)
        written: list[str] = []
        late: list[Call] = []
        broken = None
        async with TaskFetchingUnit(self._tools, self.limits, run.observer, run.clock, run.observations) as unit:
            try:
                async with aclosing(run.pieces(self._model, "planner", request)) as pieces:
                    async for piece in pieces:
                        if not isinstance(piece, str) or parser.join:
                            continue
                        written.append(piece)
                        calls = parser.push(piece)
                        if self._streaming:
                            _add(unit, calls)
                        else:
                            late += calls
                        if parser.join and not self._constrained:
                            break  # what a model writes after the end costs time, and means nothing
                _add(unit, [*late, *parser.finish()])
            except PlanError as error:
                broken = str(error)
                run.emit(Replanned, reason=broken)
            finally:
                run.plans.append("".join(written))
                run.observations.update(unit.observations)  # if a limit or a model ends the run
            run.observations.update(await unit.wait())
        return broken

    async def _join(self, run: Run, messages: Sequence[Message], may_replan: bool) -> tuple[str, Decision]:
        request = self._request(messages, joiner_grammar(may_replan) if self._constrained else None)
        async with aclosing(run.pieces(self._model, "joiner", request)) as pieces:
            text = "".join([piece async for piece in pieces if isinstance(piece, str)])
        decision = read_decision(text)
        if decision.answer == "":
            raise LimitReached("the joiner wrote nothing")
        return text, decision

    def _plan_grammar(self, run: Run) -> str | None:
        if not self._constrained:
            return None
        left = max(self.limits.tasks - len(run.observations), 1)
        return plan_grammar(list(self._tools.values()), run.observations, min(PLAN_CALLS, left))

    def _request(self, messages: Sequence[Message], grammar: str | None) -> ModelRequest:
        return ModelRequest(list(messages), self.limits.request_tokens, grammar)


def _add(unit: TaskFetchingUnit, calls: Iterable[Call]) -> None:
    for call in calls:
        unit.add(call)
