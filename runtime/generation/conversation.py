"""Conversations: each message is sent with the earlier ones, as far as they fit into the model's context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.image_prompts import with_images
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.generation.text_run import TextRun

ANSWER = 4  # keep 1/4 of the model's positions for an answer, unless fewer tokens are asked for


class Conversation:
    """Alternating messages of a user and the model, after an optional system message.

    conversation = Conversation(generator, system="Answer in one sentence.")
    print(conversation.ask("Why is the sky blue?").whole().text)
    conversation.answered()
    """

    def __init__(self, generator: TextGenerator, system: str | None = None):
        """Raises `BundleError` where the model of `generator` has no chat template."""
        _ = generator.template
        self.system = system
        self.turns: list[Message] = []  # user, model, user, ...
        self.dropped = 0  # oldest messages dropped so that the last question fits
        self._generator = generator
        self._run: TextRun | None = None

    def ask(self, text: str, images: Sequence[str | Path] = ()) -> TextRun:
        """Start the answer to a user's message: iterate over its pieces, or take it `whole`; then call `answered`.

        `images`: files that the message begins with.

        If the messages and an answer do not fit into the model's context, the oldest questions and their answers are
        dropped until they fit. Raises `UsageError` for a message that does not fit alone or that the chat template
        rejects; the conversation does not change then.
        """
        generator = self._generator
        before = [Message("system", self.system)] if self.system else []
        wanted = min(generator.max_new_tokens, generator.limit // ANSWER)
        (asked,) = with_images([[Message("user", text)]], images)
        turns = [*self.turns, *asked]
        while len(turns) > 1 and generator.free_positions([*before, *turns]) < wanted:
            turns = turns[2:]
        self._run = generator.write([*before, *turns])
        self.dropped = len(self.turns) + 1 - len(turns)
        self.turns = turns
        return self._run

    def answered(self) -> None:
        """Keep the answer so far; a question with an empty answer is dropped."""
        assert self._run is not None, "a question comes first"
        if answer := self._run.result().text:
            self.turns.append(Message("assistant", answer))
        else:
            self.turns.pop()
        self._run = None

    def reset(self) -> None:
        """Forget all messages except the system message."""
        self.turns.clear()
