"""Images in prompts: as parts of messages or beside a text, and as tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.chat import ChatPrompt
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.sessions.image_table import EmbeddedImage, with_ids
from intaglio.runtime.vision.frames import image_text
from intaglio.runtime.vision.image_file import Pixels, read_file
from intaglio.runtime.vision.image_reader import ImageFile, ImageReader


@dataclass(frozen=True)
class ImageText:
    """A text to continue, with images in the places of its image tokens, in order."""

    text: str
    images: Sequence[ImageFile]


class ImageMessage(Message, kw_only=True):
    """A message of texts and images; its `content` is the texts alone."""

    parts: Sequence[str | ImageFile]

    def as_variable(self) -> dict[str, Any]:
        """See `Message`; the content is a list of parts."""
        parts = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in self.parts]
        return {**super().as_variable(), "content": parts}

    def between(self, word: str) -> Message:
        """See `Message`."""
        return message_of(self.role, [f"{word} ", *self.parts, f" {word}"], self.name)


def message_of(role: str, parts: Sequence[str | ImageFile], name: str | None = None) -> Message:
    """A message of these parts, some of which are images."""
    return ImageMessage(role, "\n".join(part for part in parts if isinstance(part, str)), name, parts=parts)


def images_in(messages: Iterable[Message]) -> list[ImageFile]:
    """The images of a conversation, in order."""
    shown = (message.parts for message in messages if isinstance(message, ImageMessage))
    return [part for parts in shown for part in parts if isinstance(part, ImageFile)]


def with_images(prompts: str | Iterable[Any], paths: str | Path | Sequence[str | Path]) -> Iterable[Any]:
    """Each of `prompts`, texts or conversations, with the images at `paths`, or the one at that path.

    In a text they are in the places of its image tokens, in a conversation before the text of its last message. Raises
    `UsageError` for a file that cannot be read, token ids, and a conversation whose last message is not the user's.
    """
    files = [paths] if isinstance(paths, str | Path) else paths
    images = [ImageFile(read_file(path), f"image {path}") for path in files]
    given = [prompts] if isinstance(prompts, str) else prompts
    return (_with_images(prompt, images) for prompt in given) if images else given


def _with_images(prompt: Any, images: Sequence[ImageFile]) -> ImageText | list[Message]:
    if isinstance(prompt, str):
        return ImageText(prompt, images)
    *before, last = prompt if isinstance(prompt, list | tuple) and prompt else [None]
    if not isinstance(last, Message):
        raise UsageError("image: the prompt is neither a text nor a list of Message. Give one of these beside images.")
    if last.role != "user" or isinstance(last, ImageMessage):
        raise UsageError("--image: the last message is not a text of the user. Add one to the conversation.")
    return [*before, message_of("user", [*images, last.content or ""], last.name)]


def shows_images(prompt: object) -> bool:
    """Whether a prompt has images to be read."""
    if isinstance(prompt, ChatPrompt):
        prompt = prompt.messages
    messages = prompt if isinstance(prompt, list | tuple) else ()
    return isinstance(prompt, ImageText) or bool(images_in(messages))


class Expanded(NamedTuple):
    """A prompt's text with the markers and tokens of its images, and their frames."""

    text: str
    frames: list[Pixels]


class ImagePrompts:
    """The images in the prompts of a bundle: their tokens' places in a text, and their ids."""

    def __init__(self, reader: ImageReader):
        self._reader, self._encoder = reader, reader.encoder

    def expand(self, text: str, images: Sequence[ImageFile], most: int | None) -> Expanded:
        """Write the tokens of each image in the place of its one token. No more images are read beyond `most` tokens.

        Raises `UsageError` for images that cannot be read, and if the text has another number of image tokens.
        """
        token, tokens = self._encoder.token, self._encoder.tokens
        *before, end = text.split(token)
        if len(before) != len(images):
            raise UsageError(
                f"the prompt has {len(before)} {token} and {len(images)} images, expected as many of each. In a plain "
                f"prompt write {token} where each image belongs, in messages nowhere."
            )
        frames: list[Pixels] = []
        pieces: list[str] = []
        count = 0
        for piece, image in zip(before, images, strict=True):
            pieces.append(piece)
            if most is None or count <= most:
                grid, cut = self._reader.frames(image)
                frames.append(cut)
                pieces.append(image_text(grid, self._encoder))
                count += grid.frames * tokens
            else:
                pieces.append(token * tokens)  # at least; the prompt is too long anyway
        return Expanded("".join([*pieces, end]), frames)

    def place(self, tokens: Sequence[int], frames: Sequence[Pixels]) -> tuple[list[int], list[EmbeddedImage]]:
        """The ids of a prompt's tokens with those of its images, and the images.

        Raises `UsageError` if the tokenizer made other tokens of the images' text.
        """
        images = [self._reader.embed(cut) for cut in frames]
        expected, written = sum(len(image.ids) for image in images), tokens.count(self._encoder.token_id)
        if written != expected:
            raise UsageError(
                f"the prompt has {written} tokens of images, and its images have {expected}. Separate "
                f"{self._encoder.token} from the text around it."
            )
        return with_ids(tokens, self._encoder.token_id, images), images
