"""A conversation: what the model is sent with each message, and what is dropped once it no longer fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from intaglio.errors import BundleError, UsageError
from intaglio.runtime.generation.conversation import Conversation
from intaglio.runtime.generation.generate import TextGenerator


@pytest.fixture
def generator(tiny_decoder: Path) -> Iterator[TextGenerator]:
    """A model of 64 positions with a token for each byte, whose answers have at most 4 tokens."""
    with TextGenerator(tiny_decoder, max_new_tokens=4) as opened:
        opened.ends = frozenset()
        yield opened


def asked(conversation: Conversation, text: str) -> tuple[str, str]:
    """Ask; return the prompt and the answer."""
    result = conversation.ask(text).whole()
    conversation.answered()
    return result.prompt, result.text


def test_what_was_said_is_sent_again(generator: TextGenerator) -> None:
    conversation = Conversation(generator, "Short.")
    first, answer = asked(conversation, "Why?")
    assert first == "<system>Short.<user>Why?>"
    second, _ = asked(conversation, "How?")
    assert second == f"<system>Short.<user>Why?<assistant>{answer}<user>How?>"
    assert conversation.dropped == 0
    conversation.reset()
    conversation.system = None
    assert asked(conversation, "Who?")[0] == "<user>Who?>"


def test_an_answer_is_that_to_the_whole_conversation(generator: TextGenerator) -> None:
    conversation = Conversation(generator)
    asked(conversation, "Why?")
    prompt, answer = asked(conversation, "How?")
    assert generator.write(prompt).whole().text == answer


def test_the_oldest_question_and_its_answer_are_dropped_and_the_system_message_is_kept(
    generator: TextGenerator,
) -> None:
    conversation = Conversation(generator, "Short.")
    asked(conversation, "a" * 10)
    prompt, _ = asked(conversation, "b" * 25)
    assert conversation.dropped == 2
    assert prompt == f"<system>Short.<user>{'b' * 25}>"
    assert [message.role for message in conversation.turns] == ["user", "assistant"]


def test_an_answer_is_left_room_for(tiny_decoder: Path) -> None:
    with TextGenerator(tiny_decoder, max_new_tokens=200) as generator:
        conversation = Conversation(generator)
        for letter in "abcdef":
            prompt, _ = asked(conversation, letter * 8)
            assert len(generator.encode(prompt)) <= 64 - 64 // 4


def test_a_message_that_does_not_fit_leaves_the_conversation_as_it_was(generator: TextGenerator) -> None:
    conversation = Conversation(generator)
    asked(conversation, "Why?")
    before = list(conversation.turns)
    with pytest.raises(UsageError, match="the model takes at most 64"):
        conversation.ask("x" * 60)
    assert conversation.turns == before


def test_a_question_without_a_word_of_answer_is_forgotten(generator: TextGenerator) -> None:
    conversation = Conversation(generator)
    conversation.ask("Why?")
    conversation.answered()
    assert conversation.turns == []


def test_a_model_that_was_not_trained_on_conversations_is_refused(trained_pair: tuple[Path, Path]) -> None:
    with (
        TextGenerator(trained_pair[0]) as generator,
        pytest.raises(BundleError, match="has no chat template"),
    ):
        Conversation(generator)
