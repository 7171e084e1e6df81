"""From a prompt, whatever it is given as, to the tokens that the model reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from intaglio.bundle import Bundle
from intaglio.runtime.generation.chat import ChatTemplate, Message
from intaglio.runtime.tokenizer import check_unicode, check_words, read_backend

Prompt = str | Sequence[Message]  # a text to go on with, or a conversation to answer


class EncodedPrompt(NamedTuple):
    """What a model reads."""

    text: str
    tokens: list[int]


class PromptReader:
    """The tokenizer and the chat template of a bundle; may be used by several threads."""

    def __init__(self, bundle: Bundle):
        """Raises `BundleError` for a bundle without tokenizer."""
        self._bundle = bundle
        self._lock = threading.RLock()  # the template's process answers one at a time
        self.tokenizer = read_backend(bundle)

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template of the bundle. Raises `BundleError` where it has none."""
        return ChatTemplate.open(self._bundle)

    def encode(self, prompt: Prompt | Sequence[int] | EncodedPrompt) -> EncodedPrompt:
        """A text with the tokens that the tokenizer puts before one, a conversation as its template has it, or tokens.

        Raises `UsageError` for what is no text, and for messages that the template refuses.
        """
        if isinstance(prompt, EncodedPrompt):
            return prompt
        if isinstance(prompt, str):
            return self._encoded(prompt, special=True)
        if messages := [each for each in prompt if isinstance(each, Message)]:
            with self._lock:
                return self._encoded(self.template.render(messages), special=False)
        tokens = [each for each in prompt if isinstance(each, int)]
        return EncodedPrompt(self.tokenizer.decode(tokens, skip_special_tokens=False), tokens)

    def _encoded(self, text: str, special: bool) -> EncodedPrompt:
        """`special`: with the tokens that come before a text, which a chat template writes itself."""
        check_unicode(text)
        check_words(text)
        return EncodedPrompt(text, list(self.tokenizer.encode(text, add_special_tokens=special).ids) if text else [])
