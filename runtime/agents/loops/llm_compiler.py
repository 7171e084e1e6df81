"""LLMCompiler (thesis, chapter 6): a planner writes a graph of calls, which run in parallel; a joiner answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from intaglio.errors import one_line
from intaglio.runtime.agents.loops.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.loops.call_scheduler import CallScheduler
from intaglio.runtime.agents.loops.joiner import UNREAD, Decision, joiner_grammar, partial_answer, read_joined
from intaglio.runtime.agents.loops.prompts import (
    PLAN_RULES,
    PlanExample,
    continue_prompt,
    question_prompt,
    replan_prompt,
    results_prompt,
    system_prompt,
)
from intaglio.runtime.agents.loops.run_state import BrokenStream, CutOff, LimitReached, Run, read_end
from intaglio.runtime.agents.models.model import Model, ModelRequest
from intaglio.runtime.agents.plan.check import check_names
from intaglio.runtime.agents.plan.grammar import plan_grammar
from intaglio.runtime.agents.plan.parser import PlanParser
from intaglio.runtime.agents.plan.plan import Call, PlanError
from intaglio.runtime.agents.run.events import Observer, PlanFailed, Replanned
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.runtime.generation.requests.message import Message

PLAN_CALLS = 32  # of one plan, where a grammar bounds it


class LLMCompiler:
    """Plans, runs the calls of the plan in parallel while it is written, and joins their results.

    agent = LLMCompiler(model, tools)
    result = await agent.run("How much larger is Asia than Africa?")

    Planner and joiner continue one conversation, so a model with a prompt cache reads each message once: `EngineModel`
    reads neither the planner's prompt nor the plan again. The plan is read again where the chat template writes an
    answer otherwise than it was generated, such as after a space, and where it was written in other tokens than its
    text has, which grammars make likelier.
    """

    def __init__(
        self,
        model: Model,
        tools: Mapping[str, Tool],
        limits: AgentLimits | None = None,
        examples: Sequence[PlanExample] = (),
        instructions: str | None = None,
        streaming: bool = True,
        constrained: bool = True,
    ):
        """`instructions`: the system message; by default the rules of a plan, with the tools and `examples`.

        `streaming`: start calls while the plan is written (thesis, section 6.3); False: after its end. `constrained`:
        use grammars, if the model enforces them. Raises `UsageError` for a tool with the name of a plan's ending.
        """
        check_names(tools)
        self.limits = limits or AgentLimits()
        self._model, self._tools, self._streaming = model, dict(tools), streaming
        self._system = instructions or system_prompt(PLAN_RULES, list(tools.values()), examples)
        self._constrained = constrained and model.constrained

    async def run(self, question: str, observer: Observer | None = None) -> AgentResult:
        """See `Agent`."""
        run = Run(self.limits, observer)
        return await run.finish(lambda: self._answer(run, question))

    async def _answer(self, run: Run, question: str) -> str:
        run.check(question, self._tools)
        messages = [Message("system", self._system), Message("user", question_prompt(question))]
        replans = self.limits.max_replans
        while True:
            before = set(run.observations)
            broken, lost = await self._plan(run, messages)
            messages.append(Message("assistant", run.plans[-1]))
            new = {number: each for number, each in run.observations.items() if number not in before}
            if lost:
                prompt = continue_prompt(new, self.limits.max_result_characters, str(broken), run.next_number())
                messages.append(Message("user", prompt))
                continue
            may_replan = replans > 0 and run.may_call
            prompt = results_prompt(new, self.limits.max_result_characters, broken, may_replan)
            messages.append(Message("user", prompt))
            text, decision = await self._join(run, messages, may_replan)
            if decision.answer is not None:
                return decision.answer
            if not run.may_call:
                raise run.out_of_calls()
            if not replans:
                unread = decision.reason if decision.reason.startswith(UNREAD) else ""
                raise LimitReached(unread or f"the run reached its limit of {self.limits.max_replans} replans")
            replans -= 1
            run.emit(Replanned, reason=decision.reason)
            messages += [Message("assistant", text), Message("user", replan_prompt(run.next_number()))]

    async def _plan(self, run: Run, messages: Sequence[Message]) -> tuple[str | None, bool]:
        """Let the planner write a plan, and run it; return what is wrong with it, if it could not be read to its end.

        The calls before the error are run all the same: their results help the next plan. The second value is whether
        the model's answer ended too early, after calls that have started: then the planner continues from them. Before
        the first call, it is asked again.
        """
        broken, lost = None, False
        written: list[str] = []
        late: list[Call] = []
        async with run.scheduling(self._tools) as scheduler:
            start = partial(_add, scheduler)

            async def read() -> None:
                written.clear()
                late.clear()
                await self._read(run, messages, start if self._streaming else late.extend, written)

            try:
                await run.retried(read, lambda: scheduler.added > 0)
            except (PlanError, CutOff) as error:
                broken = str(error)
            except BrokenStream as error:
                if not scheduler.added or not run.may_retry():
                    raise
                broken, lost = one_line(error), True
            finally:
                run.plans.append("".join(written))
            try:
                start(late)
            except PlanError as error:
                broken = broken or str(error)
            if broken is not None:
                run.emit(PlanFailed, reason=broken)
            await scheduler.wait()
        return broken, lost

    async def _read(
        self, run: Run, messages: Sequence[Message], start: Callable[[list[Call]], None], written: list[str]
    ) -> None:
        """Read a plan while it is written: `start` gets its calls, `written` its text.

        Raises `PlanError`, and `CutOff` where a limit ends the plan before its end.
        """
        request = self._request(messages, self._plan_grammar(run))
        parser = PlanParser(self._tools, run.observations)
        async with aclosing(run.pieces(self._model, "planner", request)) as pieces:
            async for piece in pieces:
                if not isinstance(piece, str):
                    continue
                written.append(piece)
                start(parser.push(piece))
                if parser.join:  # what a model writes after it means nothing
                    await read_end(pieces)
        if not parser.join:
            parser.finish()

    async def _join(self, run: Run, messages: Sequence[Message], may_replan: bool) -> tuple[str, Decision]:
        request = self._request(messages, joiner_grammar(may_replan) if self._constrained else None)
        text = await run.text(self._model, "joiner", request, partial(partial_answer, tools=self._tools))
        decision = read_joined(text, self._tools)
        if decision.answer == "":
            raise LimitReached("the joiner wrote nothing")
        return text, decision

    def _plan_grammar(self, run: Run) -> str | None:
        if not self._constrained:
            return None
        left = self.limits.max_calls - len(run.observations)
        most, characters = min(PLAN_CALLS, left), self.limits.max_string_characters
        return plan_grammar(list(self._tools.values()), run.observations, most, characters=characters)

    def _request(self, messages: Sequence[Message], grammar: str | None) -> ModelRequest:
        return ModelRequest(list(messages), self.limits.max_request_tokens, grammar)


def _add(scheduler: CallScheduler, calls: Iterable[Call]) -> None:
    for call in calls:
        scheduler.add(call)
