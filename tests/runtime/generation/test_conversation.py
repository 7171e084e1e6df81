"""A conversation: the prompt of each message, and dropping old messages that no longer fit."""

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


def test_history_is_sent_with_each_message(generator: TextGenerator) -> None:
    conversation = Conversation(generator, "Short.")
    first, answer = asked(conversation, "Why?")
    assert first == "<system>Short.<user>Why?>"
    second, _ = asked(conversation, "How?")
    assert second == f"<system>Short.<user>Why?<assistant>{answer}<user>How?>"
    assert conversation.dropped == 0
    conversation.reset()
    conversation.system = None
    assert asked(conversation, "Who?")[0] == "<user>Who?>"


def test_answer_depends_on_the_whole_conversation(generator: TextGenerator) -> None:
    conversation = Conversation(generator)
    asked(conversation, "Why?")
    prompt, answer = asked(conversation, "How?")
    assert generator.write(prompt).whole().text == answer


def test_oldest_turns_are_dropped_and_system_message_is_kept(
    generator: TextGenerator,
) -> None:
    conversation = Conversation(generator, "Short.")
    asked(conversation, "a" * 10)
    prompt, _ = asked(conversation, "b" * 25)
    assert conversation.dropped == 2
    assert prompt == f"<system>Short.<user>{'b' * 25}>"
    assert [message.role for message in conversation.turns] == ["user", "assistant"]


def test_context_reserves_tokens_for_the_answer(tiny_decoder: Path) -> None:
    with TextGenerator(tiny_decoder, max_new_tokens=200) as generator:
        conversation = Conversation(generator)
        for letter in "abcdef":
            prompt, _ = asked(conversation, letter * 8)
            assert len(generator.encode(prompt)) <= 64 - 64 // 4


def test_too_long_message_leaves_conversation_unchanged(generator: TextGenerator) -> None:
    conversation = Conversation(generator)
    asked(conversation, "Why?")
    before = list(conversation.turns)
    with pytest.raises(UsageError, match="the model takes at most 64"):
        conversation.ask("x" * 60)
    assert conversation.turns == before


def test_question_with_empty_answer_is_dropped(generator: TextGenerator) -> None:
    conversation = Conversation(generator)
    conversation.ask("Why?")
    conversation.answered()
    assert conversation.turns == []


def test_model_without_chat_template_is_rejected(trained_pair: tuple[Path, Path]) -> None:
    with (
        TextGenerator(trained_pair[0]) as generator,
        pytest.raises(BundleError, match="has no chat template"),
    ):
        Conversation(generator)
