"""The Game of 24: rules, tools, training conversations, and games played by the trained models."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from itertools import islice

import llguidance
import pytest
from agent_patterns.game_conversations import game_conversations
from agent_patterns.game_of_24 import (
    HELD_OUT,
    applied,
    checked_state,
    games,
    is_solution,
    numbers_of,
    solvable,
    steps,
    text_of,
)
from agent_patterns.models import PLANNER, THINKER, open_trained
from agent_patterns.teacher import Teacher
from agent_patterns.thought_tools import KEPT, ThoughtTools
from agent_patterns.thoughts import IMPOSSIBLE, LABELS, PROPOSE, proposals, thought_conversations, trials, value
from agent_patterns.tree_of_thoughts import game_compiler, tree_of_thoughts

from intaglio.runtime.agents.loops.agent import AgentResult
from intaglio.runtime.agents.models.model import Usage
from intaglio.runtime.agents.plan.grammar import plan_grammar
from intaglio.runtime.agents.tools.tool import ToolError

TRAINING, HELD = games()
GAME = (2, 8, 8, 13)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("13 - 8 = 6 (left: 2 6 8)", "wrong result"),
        ("8 - 2 = 6 (left: 6 8 8 13)", "a number used is still there"),
        ("8 - 2 = 6 (left: 6 8)", "a number is lost"),
        ("8 - 2 = 6 (left: 6 8 12)", "a number has changed"),
        ("2 + 2 = 4 (left: 4 8 8)", "a number used twice"),
        ("7 + 2 = 9 (left: 8 9 13)", "a number that is not there"),
        ("2 - 8 = -6 (left: -6 8 13)", "below 0"),
        ("13 / 2 = 6 (left: 6 8 8)", "a remainder"),
        ("8 - 2 = 6", "nothing left"),
        ("", "nothing"),
    ],
)
def test_illegal_proposal_is_not_a_state(text: str, reason: str) -> None:
    assert checked_state(text, GAME) is None, reason


def test_legal_proposal_is_a_state() -> None:
    assert checked_state(" 8 - 2 = 6 (left: 8 13 6) ", GAME) == "8 - 2 = 6 (left: 6 8 13)"


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("13 - 8 = 5, 8 * 5 = 40, 40 / 2 = 20", False),  # not 24
        ("8 * 2 = 16, 16 + 8 = 24", False),  # 13 is left
        ("8 + 8 = 16, 13 - 5 = 8, 16 + 8 = 24", False),  # there is no 5
        ("no solution found.", False),
        ("", False),
    ],
)
def test_wrong_expression_is_not_a_solution(text: str, valid: bool) -> None:
    assert is_solution(text, GAME) == valid


@pytest.mark.parametrize("game", random.Random(0).sample(TRAINING + HELD, 40), ids=text_of)
def test_training_solutions_are_correct(game: tuple[int, ...]) -> None:
    left, taken = game, []
    while len(left) > 1:
        state = proposals(left)[0]  # proposals that lead to 24 come first
        assert checked_state(state, left) == state
        taken.append(state.partition(" (")[0])
        left = numbers_of(state.partition("left: ")[2].rstrip(")"))
    assert is_solution(", ".join(taken), game)


def test_values_match_their_trials() -> None:
    states = {after for step in steps((1, 3, 8)) if (after := applied(step, (1, 3, 8)))}
    for state in states:
        assert (" = 24" in trials(state)) == (value(state) != IMPOSSIBLE)
    assert {value(state) for state in states} > {IMPOSSIBLE}


def test_training_and_held_out_games_are_disjoint_and_reproducible() -> None:
    assert len(HELD) == HELD_OUT
    assert not set(TRAINING) & set(HELD)
    assert all(map(solvable, TRAINING + HELD))
    assert games() == (TRAINING, HELD)


def test_training_conversations_exclude_held_out_games() -> None:
    thoughts, plans = thought_conversations(random.Random(5)), game_conversations(random.Random(5))
    asked = [str(each.messages[1].content) for each in islice(thoughts, 3000)]
    fours = {numbers_of(each) for each in asked if each.count(" ") == 3 and "\n" not in each}
    planned = [str(each.messages[1].content).removeprefix("Question: ") for each in islice(plans, 20)]
    assert len(fours) > 100
    assert not (fours | set(map(numbers_of, planned))) & set(HELD)


def test_conversations_depend_on_the_seed_alone() -> None:
    for made in (thought_conversations, game_conversations):
        first, second, other = (list(islice(made(random.Random(seed)), 6)) for seed in (1, 1, 2))
        assert first == second != other


def test_training_plans_match_the_grammar() -> None:
    tools = list(ThoughtTools(Teacher(lambda messages: "")).tools().values())
    for conversation in islice(game_conversations(random.Random(3)), 8):
        known = 0
        for message in conversation.messages:
            text = str(message.content)
            if message.role == "assistant" and "join()" in text:
                grammar = llguidance.LLMatcher(
                    llguidance.LLTokenizer("byte"), plan_grammar(tools, range(1, known + 1)), log_level=0
                )
                assert grammar.try_consume_tokens(list(text.encode())) == len(text.encode())
                assert grammar.is_accepting()
                known += text.count("\n")


def test_invented_proposals_are_dropped() -> None:
    lies = "8 - 2 = 6 (left: 6 8 13)\n8 * 3 = 24 (left: 24)\n13 + 8 = 24 (left: 2 8 24)\nsorry"
    tools = ThoughtTools(Teacher(lambda messages: lies))
    assert asyncio.run(tools.thought_proposer("2 8 8 13")) == ["8 - 2 = 6 (left: 6 8 13)"]
    assert (tools.proposed, tools.dropped, tools.usage.calls) == (4, 3, 1)


@pytest.mark.parametrize("place", [0, 3])
def test_dropped_state_is_an_error(place: int) -> None:
    tools = ThoughtTools(Teacher(lambda messages: ""))
    kept = ["8 - 2 = 6 (left: 6 8 13)", "13 - 8 = 5 (left: 2 5 8)"]
    with pytest.raises(ToolError, match=f"thought_proposer: place {place}, expected 1 to 2"):
        asyncio.run(tools.thought_proposer("2 8 8 13", kept, place))


def test_wrong_evaluation_does_not_make_a_solution() -> None:
    def reply(messages: object) -> str:
        lines = str(messages[1].content).splitlines()  # type: ignore[index]
        if messages[0].content == PROPOSE:  # type: ignore[index]
            return "\n".join(proposals(numbers_of(lines[0]))[::-1][:1])  # a bad state
        return "\n".join(f"{line}: sure" for line in lines)

    assert asyncio.run(tree_of_thoughts(ThoughtTools(Teacher(reply)), GAME)) == ""


def test_state_without_a_value_counts_as_impossible() -> None:
    tools = ThoughtTools(Teacher(lambda messages: "6 8 13: likely\n8 8 15: maybe"))
    states = ["8 - 2 = 6 (left: 6 8 13)", "13 + 2 = 15 (left: 8 8 15)", "8 * 2 = 16 (left: 8 13 16)"]
    values = asyncio.run(tools.state_evaluator("2 8 8 13", states))
    assert values == ["likely", IMPOSSIBLE, IMPOSSIBLE]


def test_best_distinct_states_are_kept() -> None:
    tools = ThoughtTools(Teacher(lambda messages: ""))
    states = [state for left in ((1, 2, 3, 4), (2, 3, 4, 5)) for state in proposals(left)]
    some = [states[:6], [*states[6:12], states[0]]]
    values = [["impossible"] * 5 + ["sure"], ["likely", *["impossible"] * 5, "likely"]]
    kept = asyncio.run(tools.top_k_select("1 2 3 4", some, values))
    assert kept[:3] == [states[5], states[6], states[0]]
    assert len({state.partition("(")[2] for state in kept}) == len(kept) == KEPT
    assert LABELS[0] == "sure"


def test_planner_plans_five_states_in_parallel_and_replans_at_each_depth() -> None:
    for conversation in islice(game_conversations(random.Random(7)), 12):
        plans = [str(each.content) for each in conversation.messages if "thought_proposer" in str(each.content)]
        assert len(plans) <= 3
        assert plans[0].count("thought_proposer") == plans[0].count("state_evaluator") == 1
        assert all(1 <= each.count("thought_proposer") <= KEPT for each in plans[1:])


@pytest.mark.proof
def test_parallel_and_sequential_games_are_equal_in_the_engine() -> None:
    """In `make test`, the scripted models above play, and test_agent_shop runs trained ones in parallel."""

    async def play() -> tuple[str, AgentResult, Usage]:
        async with AsyncExitStack() as opened:
            planner, thinker = [await opened.enter_async_context(open_trained(name)) for name in (PLANNER, THINKER)]
            sequential = await tree_of_thoughts(ThoughtTools(thinker), HELD[0])
            tools = ThoughtTools(thinker)
            return sequential, await game_compiler(planner, tools).run(text_of(HELD[0])), tools.usage

    sequential, result, usage = asyncio.run(play())
    assert is_solution(sequential, HELD[0])
    assert result.answer == sequential
    assert [plan.count("thought_proposer") for plan in result.plans] == [1, KEPT, KEPT]
    assert usage.calls == 22
    pairs = [each for each in result.observations.values() if each.tool == "thought_proposer"][1 : KEPT + 1]
    assert max(each.began or 0 for each in pairs) < min(each.ended for each in pairs), "they did not run in parallel"
