"""The joiner's texts: answers without decoration, requests for another plan, and other text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joiner_forms import ANSWERS, REPLANS, UNREADABLE

from intaglio.runtime.agents.loops.answer_stream import AnswerReader
from intaglio.runtime.agents.loops.joiner import Decision, read_joined

TOOLS = ("search", "add")
TEXTS = [*ANSWERS, *REPLANS, *UNREADABLE]


@pytest.mark.parametrize("text", ANSWERS)
def test_answer_is_parsed_without_decoration(text: str) -> None:
    assert read_joined(text, TOOLS) == Decision(ANSWERS[text])


@pytest.mark.parametrize("text", REPLANS)
def test_replan_request_is_not_an_answer(text: str) -> None:
    assert read_joined(text, TOOLS) == Decision(None, REPLANS[text])


@pytest.mark.parametrize("text", UNREADABLE)
def test_other_text_becomes_the_replan_reason(text: str) -> None:
    found = read_joined(text, TOOLS)
    assert found.answer is None and UNREADABLE[text] in found.reason


@settings(deadline=None)
@given(text=st.sampled_from(TEXTS), data=st.data())
def test_streamed_text_is_a_prefix_of_the_answer(text: str, data: st.DataObject) -> None:
    """Except if the closing tag of reasoning follows "Answer:": reasoning is known only then."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    reader = AnswerReader()
    sent = "".join(reader.take(text[a:b]) for a, b in zip([0, *places], [*places, len(text)], strict=True))
    answer = read_joined(text, TOOLS).answer
    assert (answer or "").startswith(sent) or "\n</think>" in text.partition("Answer:")[2]


def test_plain_answer_is_streamed() -> None:
    reader = AnswerReader()
    sent = [reader.take(char) for char in "Thought: so\nAnswer: It is 43."]
    assert "".join(sent) == "It is 43." and max(map(len, sent)) <= 3
