"""Encode prompts (text, conversations or token ids) to the tokens that the model reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from intaglio.bundle import Bundle
from intaglio.runtime.generation.chat import ChatPrompt, ChatTemplate, Message
from intaglio.runtime.tokenizer import check_unicode, check_words, read_backend

Prompt = str | Sequence[Message] | ChatPrompt  # a text to continue, or a conversation to answer


class EncodedPrompt(NamedTuple):
    """A prompt as text and as token ids."""

    text: str
    tokens: list[int]


class PromptReader:
    """The tokenizer and the chat template of a bundle; thread-safe."""

    def __init__(self, bundle: Bundle):
        """Open the tokenizer. Raises `BundleError` for a bundle without one."""
        self._bundle = bundle
        self._lock = threading.RLock()  # the template's process answers one at a time
        self.tokenizer = read_backend(bundle)

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template of the bundle. Raises `BundleError` where it has none."""
        return ChatTemplate.open(self._bundle)

    def encode(self, prompt: Prompt | Sequence[int] | EncodedPrompt) -> EncodedPrompt:
        """Encode a text (with the tokenizer's special tokens) or a conversation (with its template); keep token ids.

        Raises `UsageError` for invalid text, and for messages or tools that the template rejects.
        """
        if isinstance(prompt, EncodedPrompt):
            return prompt
        if isinstance(prompt, str):
            return self._encoded(prompt, special=True)
        if isinstance(prompt, ChatPrompt):
            return self._rendered(prompt)
        if messages := [each for each in prompt if isinstance(each, Message)]:
            return self._rendered(ChatPrompt(messages))
        tokens = [each for each in prompt if isinstance(each, int)]
        return EncodedPrompt(self.tokenizer.decode(tokens, skip_special_tokens=False), tokens)

    def _rendered(self, prompt: ChatPrompt) -> EncodedPrompt:
        with self._lock:
            text = self.template.render(prompt.messages, prompt.tools, prompt.options)
        return self._encoded(text, special=False)

    def _encoded(self, text: str, special: bool) -> EncodedPrompt:
        """Encode a text. `special`: add the tokenizer's special tokens, which a chat template writes itself."""
        check_unicode(text)
        check_words(text)
        if not text:
            return EncodedPrompt(text, [])
        # Unlike `encode`, `encode_batch` lets other threads run meanwhile.
        return EncodedPrompt(text, list(self.tokenizer.encode_batch([text], add_special_tokens=special)[0].ids))
