"""The streamed answer of an agent: only the answer is sent, for any piece boundaries."""

from __future__ import annotations

import pytest

from intaglio.runtime.agents.loops.answer_stream import AnswerStream
from intaglio.runtime.agents.loops.planners import Planner
from intaglio.runtime.agents.run.events import Ended, ModelBegan, ModelWrote, Role


def sent(
    texts: list[tuple[Role, str]], answer: str, complete: bool = True, planner: Planner = "llmcompiler", size: int = 1
) -> tuple[list[str], str]:
    """The pieces that are sent while models write, and the one that the end adds."""
    stream, pieces = AnswerStream(planner), []
    for number, (role, text) in enumerate(texts, 1):
        stream.take(ModelBegan(seconds=0.0, request=number, role=role))
        for place in range(0, len(text), size):
            pieces.append(stream.take(ModelWrote(seconds=0.0, request=number, text=text[place : place + size])))
    rest = stream.take(Ended(seconds=1.0, answer=answer, complete=complete))
    return [piece for piece in pieces if piece], rest


@pytest.mark.parametrize("size", [1, 3, 100])
def test_pieces_are_the_answer_without_thought_and_whitespace(size: int) -> None:
    text = "Thought: I know.\n Answer:  It is\n\nAnswer: 43. \n"
    pieces, rest = sent([("planner", "1. join()"), ("joiner", text)], "It is\n\nAnswer: 43.", size=size)
    assert ("".join(pieces), rest) == ("It is\n\nAnswer: 43.", "")
    assert len(pieces) > 5 or size > 1


def test_plan_and_replan_are_not_streamed() -> None:
    texts: list[tuple[Role, str]] = [
        ("planner", "Thought: Answer: no\nAnswer: no"),
        ("joiner", "Replan: more\nAnswer: no"),
        ("joiner", "Answer: yes"),
    ]
    assert sent(texts, "yes") == (["y", "e", "s"], "")


def test_unlabelled_answer_is_sent_at_the_end() -> None:
    assert sent([("joiner", "It is 43.")], "It is 43.") == ([], "It is 43.")


def test_function_calling_sends_the_answer_at_the_end() -> None:
    texts: list[tuple[Role, str]] = [("agent", "Answer: I look it up"), ("agent", "Answer: 43")]
    assert sent(texts, "Answer: 43", planner="function-calling") == ([], "Answer: 43")


def test_truncated_answer_is_followed_by_the_reason() -> None:
    pieces, rest = sent([("joiner", "Answer: It is")], "No answer: the server went away.", complete=False)
    assert ("".join(pieces), rest) == ("It is", "\n\nNo answer: the server went away.")
    texts: list[tuple[Role, str]] = [("agent", 'Thought: a\n1. calculate("1")')]
    assert sent(texts, "No answer: late.", complete=False, planner="react") == ([], "No answer: late.")
