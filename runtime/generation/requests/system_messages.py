"""System messages in chat templates: some read all of them, some only the first or the last, some none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.message import Message

SYSTEM = ("system", "developer")  # OpenAI's newer name is the second
FIX = "Put their text into the first message of the user."

Render = Callable[[Sequence[Message]], str]


class RejectedError(UsageError):
    """A chat template raised an error for a conversation."""

    def __init__(self, where: str, reason: str):
        super().__init__(f"{where}: the chat template rejects the messages: {reason}. Change them.")
        self.reason = reason


def rendered(render: Render, messages: Sequence[Message], where: str, known: bool) -> str:
    """Render a conversation so that no system message is lost.

    1. Unchanged, if the template outputs the text of each system message.
    2. Else with one system message at the beginning, which holds the text of all.
    3. Else `UsageError`: the template rejects system messages, or leaves them out.

    `known`: the template outputs a single system message at the beginning, so that this is not tried again.
    """
    if all(message.role not in SYSTEM for message in messages) or (known and is_plain(messages)):
        return render(messages)
    refusal: RejectedError | None = None
    for tried in [messages] if is_plain(messages) else [messages, merged(messages)]:
        try:
            text = render(tried)
        except RejectedError as error:
            refusal = error
            continue
        if not _drops_system_message(render, tried):
            return text
        refusal = None
    if refusal is None:
        raise UsageError(f"{where}: the chat template leaves out system messages. {FIX}")
    rest = [message for message in messages if message.role not in SYSTEM]
    try:
        render(rest)
    except UsageError:
        raise refusal from None
    raise UsageError(f"{where}: the chat template rejects system messages: {refusal.reason}. {FIX}") from refusal


def is_plain(messages: Sequence[Message]) -> bool:
    """Whether the only system message is the first message."""
    return [place for place, message in enumerate(messages) if message.role in SYSTEM] == [0]


def merged(messages: Sequence[Message]) -> list[Message]:
    """The conversation with one system message at its beginning, which holds the text of all."""
    system = [message for message in messages if message.role in SYSTEM]
    text = "\n\n".join(message.content or "" for message in system)
    one = msgspec.structs.replace(system[0], content=text)
    return [one, *(message for message in messages if message.role not in SYSTEM)]


def _drops_system_message(render: Render, messages: Sequence[Message]) -> bool:
    """Whether the prompt contains texts of the user, but nothing of some system message.

    The word that is looked for stands at both ends: a template may keep a part of a message, as for short prompts.
    """
    marked, words = [], dict[str, bool]()  # a word in each message -> whether it is a system message
    for number, message in enumerate(messages):
        if message.content is not None and message.role in (*SYSTEM, "user"):
            words[word := f"qz{number}zq"] = message.role in SYSTEM
            message = message.between(word)
        marked.append(message)
    try:
        text = render(marked)
    except UsageError:  # it is longer, for example
        return False
    reads_user = any(word in text for word, system in words.items() if not system)
    return reads_user and not all(word in text for word, system in words.items() if system)
