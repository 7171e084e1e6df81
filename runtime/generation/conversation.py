"""A conversation that goes on: what was said is sent again with each message, as far as the model has room for it."""

from __future__ import annotations

from intaglio.runtime.generation.chat import Message
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.text_run import TextRun

ANSWER = 4  # an answer should have this part of the model's positions, unless fewer tokens are asked for


class Conversation:
    """Messages of a user and of the model in turn, after a system message if there is one.

    conversation = Conversation(generator, system="Answer in one sentence.")
    print(conversation.ask("Why is the sky blue?").whole().text)
    conversation.answered()
    """

    def __init__(self, generator: TextGenerator, system: str | None = None):
        """Raises `BundleError` where the model of `generator` has no chat template."""
        _ = generator.template
        self.system = system
        self.turns: list[Message] = []  # of the user, of the model, of the user, ...
        self.dropped = 0  # of the oldest messages, those that the last question left no room for
        self._generator = generator
        self._run: TextRun | None = None

    def ask(self, text: str) -> TextRun:
        """Begin the answer to a user's message: iterate over its pieces, or take it `whole`; then say `answered`.

        Where all messages and an answer do not fit into the model, the oldest question and its answer are dropped, and
        those after it, until they fit. Raises `UsageError` for a message that does not fit alone or that the chat
        template refuses; the conversation stays as it was then.
        """
        generator = self._generator
        before = [Message("system", self.system)] if self.system else []
        wanted = min(generator.max_new_tokens, generator.limit // ANSWER)
        turns = [*self.turns, Message("user", text)]
        while len(turns) > 1 and generator.room([*before, *turns]) < wanted:
            turns = turns[2:]
        self._run = generator.write([*before, *turns])
        self.dropped = len(self.turns) + 1 - len(turns)
        self.turns = turns
        return self._run

    def answered(self) -> None:
        """Keep the answer as far as it is written; a question without a word of answer is forgotten."""
        assert self._run is not None, "a question comes first"
        if answer := self._run.result().text:
            self.turns.append(Message("assistant", answer))
        else:
            self.turns.pop()
        self._run = None

    def reset(self) -> None:
        """Forget all messages but the system's."""
        self.turns.clear()
