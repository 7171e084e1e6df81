"""Encode prompts (text, conversations or token ids) to the tokens that the model reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

from intaglio.bundle.bundle import Bundle
from intaglio.errors import ContextLengthError, UsageError
from intaglio.runtime.generation.requests.chat import ChatPrompt, ChatTemplate
from intaglio.runtime.generation.requests.image_prompts import ImagePrompts, ImageText, images_in
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.sessions.image_table import EmbeddedImage
from intaglio.runtime.text.tokenizer import check_characters, check_unicode, check_words, longest_token, read_backend
from intaglio.runtime.vision.image_file import Pixels
from intaglio.runtime.vision.image_reader import ImageFile, ImageReader

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Prompt = str | ImageText | Sequence[Message] | ChatPrompt  # a text to continue, or a conversation to answer


class EncodedPrompt(NamedTuple):
    """A prompt as text and as token ids, in which an image is its one token or the tokens of its frames."""

    text: str
    tokens: list[int]
    image_ids: Sequence[int] = ()  # the tokens with ids of what the images show; none without images
    images: Sequence[EmbeddedImage] = ()


class PromptLimit(NamedTuple):
    """The maximum length of a prompt."""

    tokens: int
    description: str  # in errors, after "prompt of 64 tokens: "

    @classmethod
    def of(cls, positions: int, source: int | None) -> Self:
        """The limit of a model with `positions`; `source`: tokens that its encoder reads, if it has one."""
        if source is not None:
            return cls(source, f"the encoder takes at most {source}")
        return cls(positions - 1, f"the model takes at most {positions}, including at least one new token")

    def check(self, tokens: int) -> None:
        """Raise `UsageError` for a prompt that is empty or too long."""
        if not tokens:
            raise UsageError("the prompt is empty, expected at least one token. Add text to it.")
        if tokens > self.tokens:
            raise ContextLengthError(f"prompt of {tokens} tokens: {self.description}. Shorten the prompt.")


class PromptEncoder:
    """The tokenizer and the chat template of a bundle; thread-safe."""

    def __init__(self, bundle: Bundle, reader: ImageReader | None = None, tokenizer: Tokenizer | None = None):
        """Open the tokenizer, unless it is given. `reader`: of images. Raises `BundleError` without one."""
        self._bundle = bundle
        self.reader = reader
        self._images = ImagePrompts(reader) if reader is not None else None
        self._lock = threading.RLock()  # the template's process answers one at a time
        self.tokenizer = read_backend(bundle) if tokenizer is None else tokenizer
        self._longest_token = longest_token(self.tokenizer)

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template of the bundle. Raises `BundleError` where it has none."""
        return ChatTemplate.open(self._bundle)

    def encode(self, prompt: Prompt | Sequence[int] | EncodedPrompt, limit: PromptLimit | None = None) -> EncodedPrompt:
        """Encode a text (with the tokenizer's special tokens) or a conversation (with its template); keep token ids.

        With a `limit`, a prompt must have a token and fit into it; a far too long text is not tokenized.
        Raises `UsageError` otherwise, for invalid text and images, and for messages or tools that the template rejects.
        """
        if isinstance(prompt, EncodedPrompt):
            return _checked(prompt, limit)
        if isinstance(prompt, str):
            return self._encoded(prompt, limit, special=True)
        if isinstance(prompt, ImageText):
            return self._encoded(prompt.text, limit, special=True, images=prompt.images)
        if isinstance(prompt, ChatPrompt):
            return self._rendered(prompt, limit)
        if messages := [each for each in prompt if isinstance(each, Message)]:
            return self._rendered(ChatPrompt(messages), limit)
        tokens = [each for each in prompt if isinstance(each, int)]
        if limit is not None:
            limit.check(len(tokens))
        return EncodedPrompt(self.tokenizer.decode(tokens, skip_special_tokens=False), tokens)

    def _rendered(self, prompt: ChatPrompt, limit: PromptLimit | None) -> EncodedPrompt:
        with self._lock:
            text = self.template.render(prompt.messages, prompt.tools, prompt.options)
        return self._encoded(text, limit, special=False, images=images_in(prompt.messages))

    def _encoded(
        self, text: str, limit: PromptLimit | None, special: bool, images: Sequence[ImageFile] = ()
    ) -> EncodedPrompt:
        """Encode a text. `special`: add the tokenizer's special tokens, which a chat template writes itself."""
        if images and self._images is None:
            raise UsageError(
                f"bundle {self._bundle.path}: its model reads no images, and the prompt has {len(images)}. Leave them "
                "out, or use the bundle of a model that does, such as SmolVLM."
            )
        if limit is not None:
            check_characters(text, limit.tokens, self._longest_token)
        check_unicode(text)
        check_words(text)
        if not text:
            return _checked(EncodedPrompt(text, []), limit)
        shown, frames = text, list[Pixels]()
        if self._images is not None:
            shown, frames = self._images.expand(text, images, limit.tokens if limit is not None else None)
        # Unlike `encode`, `encode_batch` lets other threads run meanwhile.
        tokens = list(self.tokenizer.encode_batch([shown], add_special_tokens=special)[0].ids)
        encoded = _checked(EncodedPrompt(text, tokens), limit)
        if self._images is None or not frames:
            return encoded
        return EncodedPrompt(text, tokens, *self._images.place(tokens, frames))


def _checked(prompt: EncodedPrompt, limit: PromptLimit | None) -> EncodedPrompt:
    if limit is not None:
        limit.check(len(prompt.tokens))
    return prompt
