"""The messages of a conversation, as clients of OpenAI's API send them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from intaglio.runtime.generation.requests.image_prompts import message_of
from intaglio.runtime.generation.requests.message import FunctionCall, Message, ToolCall
from intaglio.runtime.vision.image_reader import ImageFile
from intaglio.serve.models.model import DecoderModel
from intaglio.serve.responses.errors import invalid

# Clients send an answer back as they got it, from this server or another one. What an answer holds beside its text and
# its calls is accepted and not used; any other field is refused by its name.


TEXTS = ("text", "input_text", "output_text")  # types of parts
FIX = "Send the image itself: data:image/png;base64,..."
DATA = re.compile(r"data:([^;,]{0,80}?)(;base64)?,", re.IGNORECASE)
# How a JPEG 2000 begins, a file or its content alone. Its decoder lets no other thread run: 3 s for 33 million pixels.
JPEG_2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message: a text, or for a model that reads them an image."""

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None  # a text is what the Responses API has, in which images are refused
    annotations: list[Any] | None = None  # of an answer
    logprobs: list[Any] | None = None  # of an answer


class SentFunction(msgspec.Struct, forbid_unknown_fields=True):
    """The function of a call, and its arguments."""

    name: str
    arguments: str | dict[str, Any]  # JSON text of an object, or the object
    parsed_arguments: object = None  # of the client's `parse` and `stream`


class SentCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call of an earlier answer."""

    function: SentFunction
    id: str | None = None
    type: Literal["function"] | None = None
    index: int | None = None  # of an answer that was streamed


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[SentCall] | None = None
    tool_call_id: str | None = None
    annotations: list[Any] | None = None  # of an answer
    parsed: object = None  # of the client's `parse` and `stream`
    reasoning_content: str | None = None  # of an answer
    refusal: None = None


def text_of(content: str | Sequence[ContentPart] | None, where: str) -> str | None:
    """The text of a message's content; None where there is none. Raises `ApiError` for anything but text."""
    if content is None or isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(content):
        texts.append(_text_of(part, f"{where}[{number}]"))
    return "\n".join(texts)


def _text_of(part: ContentPart, place: str) -> str:
    if part.type not in TEXTS or part.text is None or part.image_url is not None:
        raise invalid(f"{place}: type {part.type[:40]!r} is not supported here, only text is.", place)
    return part.text


def _parts_of(content: Sequence[ContentPart], role: str, where: str, most_pixels: int) -> list[str | ImageFile]:
    """The texts and images of a message's content. Raises `ApiError`."""
    parts: list[str | ImageFile] = []
    for number, part in enumerate(content):
        place = f"{where}[{number}]"
        if part.type not in (*TEXTS, "image_url"):
            raise invalid(f"{place}: type {part.type[:40]!r} is not supported, only text and image_url.", place)
        if part.type != "image_url":
            parts.append(_text_of(part, place))
        elif role != "user":
            raise invalid(f"{place}: only messages of the user may have images, this is the {role}'s.", place)
        elif not isinstance(part.image_url, ImageUrl) or part.text is not None:
            expected = '{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}'
            raise invalid(f"{place}: not an image as expected: {expected}. Fix it.", place)
        else:
            parts.append(image_of(part.image_url, place, most_pixels))
    return parts


def messages_of(messages: Sequence[ChatMessage], model: DecoderModel | None = None) -> list[Message]:
    """Convert messages to those of the runtime; those of the user may have images, if `model` reads them.

    Raises `ApiError`.
    """
    if not messages:
        raise invalid("messages: the list is empty. Send at least one message.", "messages")
    found = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if model is not None and model.reads_images and isinstance(message.content, list):
            parts = _parts_of(message.content, message.role, f"{where}.content", model.max_image_pixels)
            if message.role == "user":
                found.append(message_of("user", parts, message.name))
                continue
        text = text_of(message.content, f"{where}.content")
        if text is None and not (message.role == "assistant" and message.tool_calls):
            raise invalid(f"{where}.content: is missing. Add it.", f"{where}.content")
        if message.tool_calls and message.role != "assistant":
            raise invalid(f"{where}.tool_calls: only messages of the assistant have calls.", f"{where}.tool_calls")
        calls = None if message.tool_calls is None else [_call(each) for each in message.tool_calls]
        found.append(Message(message.role, text, message.name, calls, message.tool_call_id))
    return found


def _call(sent: SentCall) -> ToolCall:
    return ToolCall(FunctionCall(sent.function.name, sent.function.arguments), sent.id, sent.type)


class ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    """An image, in the URL itself."""

    url: str  # "data:image/png;base64,..."
    detail: str | None = None  # only "auto": the model's image processor decides


def image_of(given: ImageUrl, place: str, most_pixels: int) -> ImageFile:
    """The image of a data URL; its pixels are decoded later. `place`: of the part, in errors.

    The content decides which format it is, not the type that is stated. Raises `ApiError` for any other URL, and for
    JPEG 2000.
    """
    param = f"{place}.image_url"
    if given.detail not in (None, "auto"):
        raise invalid(f"{param}.detail: {given.detail[:40]!r} is not supported, only 'auto'. Leave it out.", param)
    scheme, colon, _ = given.url[:40].partition(":")
    if scheme.lower() != "data" or not colon:
        kind = f"a URL of type {scheme!r}" if colon else "no URL"
        raise invalid(f"{param}.url: got {kind}, and the server fetches nothing. {FIX}", param)
    head = DATA.match(given.url)
    if head is None or not head[1].lower().startswith("image/") or not head[2]:
        stated = given.url[5:85].partition(",")[0]
        raise invalid(f"{param}.url: its data are {stated!r}, expected an image in base64. {FIX}", param)
    try:
        data = base64.b64decode(given.url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"{param}.url: not valid base64 ({error}). {FIX}", param) from error
    if data.startswith(JPEG_2000):
        raise invalid(f"{place}: JPEG 2000 would hold up all other requests. Convert it to a PNG or JPEG.", param)
    return ImageFile(data, place, most_pixels)
