"""What joiners write: the answer without its decoration, the wish for another plan, and what is no answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joiner_forms import ANSWERS, REPLANS, UNREADABLE

from intaglio.runtime.agents.answer_stream import AnswerReader
from intaglio.runtime.agents.joiner import Decision, read_joined

TOOLS = ("search", "add")
TEXTS = [*ANSWERS, *REPLANS, *UNREADABLE]


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_is_read_without_what_is_around_it(text: str) -> None:
    assert read_joined(text, TOOLS) == Decision(ANSWERS[text])


@pytest.mark.parametrize("text", REPLANS)
def test_a_wish_for_another_plan_is_no_answer(text: str) -> None:
    assert read_joined(text, TOOLS) == Decision(None, REPLANS[text])


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_is_no_answer_is_the_reason_for_another_plan(text: str) -> None:
    found = read_joined(text, TOOLS)
    assert found.answer is None and UNREADABLE[text] in found.reason


@settings(deadline=None)
@given(text=st.sampled_from(TEXTS), data=st.data())
def test_what_is_sent_while_an_answer_is_written_is_its_beginning(text: str, data: st.DataObject) -> None:
    """But where the closing tag of reasoning comes after "Answer:": only then is it known as reasoning."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    reader = AnswerReader()
    sent = "".join(reader.take(text[a:b]) for a, b in zip([0, *places], [*places, len(text)], strict=True))
    answer = read_joined(text, TOOLS).answer
    assert (answer or "").startswith(sent) or "\n</think>" in text.partition("Answer:")[2]


def test_the_plain_form_is_sent_while_it_is_written() -> None:
    reader = AnswerReader()
    sent = [reader.take(char) for char in "Thought: so\nAnswer: It is 43."]
    assert "".join(sent) == "It is 43." and max(map(len, sent)) <= 3
