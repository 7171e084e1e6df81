"""The tools of Tree of Thoughts for the Game of 24 (thesis, section 6.4 and appendix D.4), over a language model."""

from __future__ import annotations

from collections.abc import Sequence

from agent_patterns.game_of_24 import TARGET, Numbers, checked_state, left_after, numbers_of, text_of
from agent_patterns.thoughts import IMPOSSIBLE, LABELS, evaluator_prompt, proposer_prompt
from intaglio import Message, Tool, ToolError, tool
from intaglio.runtime import End, Model, ModelRequest, Usage

KEPT = 5  # states after each depth, as in the thesis
REQUEST_TOKENS = 320  # twelve states with their trials have at most 299


class ThoughtTools:
    """The three tools, over `model`.

    Nothing that the model writes is believed: a proposal that breaks the rules is dropped, and a value only orders the
    states. The steps to each state are remembered, so that a state is as short as the thesis has it.
    """

    def __init__(self, model: Model):
        self._model = model
        self._before: dict[tuple[Numbers, Numbers], tuple[Numbers, str]] = {}
        self.usage = Usage()  # of the requests to the model
        self.proposed = self.dropped = 0  # lines of the proposer, and those of them that broke the rules

    def tools(self) -> dict[str, Tool]:
        """Return the tools. Results of the proposer and the evaluator are for other tools, not for the planner."""
        silent = [tool(shown=0)(each) for each in (self.thought_proposer, self.state_evaluator)]
        return {each.name: each for each in (*silent, tool(self.top_k_select))}

    async def thought_proposer(self, numbers: str, states: list[str] | None = None, place: int = 1) -> list[str]:
        """Return states after one more step.

        numbers: the four numbers of the game
        states: the result of top_k_select, none at the beginning
        place: that of the state to go on from among them: 1 is the first one
        """
        game, known = numbers_of(numbers), states or [""]
        if not 1 <= place <= len(known):
            raise ToolError(f"thought_proposer: place {place}, expected 1 to {len(known)}.")
        left = left_after(known[place - 1], game)
        lines = (await self._ask(proposer_prompt(left))).splitlines()
        valid = [checked for line in lines if (checked := checked_state(line, left)) is not None]
        self.proposed += len(lines)
        self.dropped += len(lines) - len(valid)
        for each in valid:
            self._before.setdefault((game, left_after(each, game)), (left, each.partition(" (")[0]))
        return valid

    async def state_evaluator(self, numbers: str, states: list[str]) -> list[str]:
        """Return "sure", "likely" or "impossible" for each state: whether it can lead to 24.

        numbers: the four numbers of the game
        states: the states of one call of thought_proposer
        """
        lefts = [left_after(state, numbers_of(numbers)) for state in states]
        if not lefts:
            return []
        lines = (await self._ask(evaluator_prompt(lefts))).splitlines()
        written = {line.partition(":")[0]: line.rpartition(" ")[2] for line in lines}
        labels = (written.get(text_of(left), IMPOSSIBLE) for left in lefts)
        return [label if label in LABELS else IMPOSSIBLE for label in labels]

    async def top_k_select(self, numbers: str, states: list[list[str]], values: list[list[str]]) -> list[str]:
        """Return the best states, of any with the same numbers left only one; or all steps of a way to 24, if found.

        numbers: the four numbers of the game
        states: the results of thought_proposer
        values: the results of state_evaluator for each of them
        """
        game = numbers_of(numbers)
        valued = [pair for some, labels in zip(states, values, strict=True) for pair in zip(some, labels, strict=True)]
        best = sorted(valued, key=lambda each: LABELS.index(each[1]))
        distinct = {left_after(state, game): state for state, _ in reversed(best)}
        if (TARGET,) in distinct:
            return [self.solution(game)]
        ordered = dict.fromkeys(left_after(state, game) for state, _ in best)
        return [distinct[left] for left in ordered][:KEPT]

    def solution(self, game: Numbers) -> str:
        """Return the steps to 24 of a game for which the proposer has found them."""
        left, taken = (TARGET,), list[str]()
        while left != game:
            left, step = self._before[game, left]
            taken.append(step)
        return ", ".join(reversed(taken))

    async def _ask(self, messages: Sequence[Message]) -> str:
        texts: list[str] = []
        async with self._model.stream(ModelRequest(messages, REQUEST_TOKENS)) as pieces:
            async for piece in pieces:
                if isinstance(piece, End):
                    self.usage += piece.usage
                elif isinstance(piece, str):
                    texts.append(piece)
        return "".join(texts)
