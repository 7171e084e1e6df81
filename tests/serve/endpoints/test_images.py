"""Images in conversations: content parts as OpenAI's clients send them, in the URL itself."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from picture_files import data_url, encoded, odd_files, picture, refused_files
from served import Served, served

from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.image_prompts import message_of
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.vision.image_reader import ImageFile
from intaglio.serve.requests.messages import ChatMessage, ContentPart, ImageUrl, image_of, messages_of
from intaglio.serve.responses.errors import ApiError

PNG = encoded(picture(40, 90))
URL = data_url(PNG)
NEW = 12
PIXELS = 60_000  # the server's maximum
# Requests that are refused: the URL, and what the error says.
URLS = {
    "http": ("http://127.0.0.1/cat.png", "got a URL of type 'http', and the server fetches nothing"),
    "https": ("https://example.com/cat.png", "got a URL of type 'https', and the server fetches nothing"),
    "file": ("file:///etc/passwd", "got a URL of type 'file', and the server fetches nothing"),
    "path": ("/etc/passwd", "got no URL, and the server fetches nothing"),
    "empty": ("", "got no URL"),
    "text": (data_url(PNG, "text/plain"), "its data are 'text/plain;base64', expected an image in base64"),
    "no type": (f"data:;base64,{base64.b64encode(PNG).decode()}", "expected an image in base64"),
    "no base64": ("data:image/png,abc", "its data are 'image/png', expected an image in base64"),
    "JPEG 2000": (data_url(encoded(picture(40, 90), "JPEG2000")), "JPEG 2000 would hold up all other requests"),
    "JPEG 2000's content": (data_url(encoded(picture(40, 90), "JPEG2000", no_jp2=True)), "JPEG 2000 would hold up"),
    "cut base64": (URL[:-3], "not valid base64"),
    "signs in base64": (URL[:40] + "!!" + URL[42:], "not valid base64"),
    "spaces in base64": (URL[:40] + "\n" + URL[40:], "not valid base64"),
}


def part(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


class ReadsImages:
    """The part of a served model that messages depend on."""

    reads_images, max_image_pixels = True, PIXELS


def sent(*content: dict[str, Any], role: str = "user") -> list[Message]:
    """The messages of a request with one message."""
    import msgspec

    message = msgspec.convert({"role": role, "content": list(content)}, ChatMessage)
    return messages_of([message], ReadsImages())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", URLS)
def test_url_that_is_not_an_image_itself_is_refused(name: str) -> None:
    url, words = URLS[name]
    with pytest.raises(ApiError, match=words) as caught:
        image_of(ImageUrl(url), "messages[0].content[1]", PIXELS)
    assert caught.value.status == 400
    assert caught.value.body.error.param == "messages[0].content[1].image_url"
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_parts_keep_their_order_and_the_type_in_the_url_is_not_trusted() -> None:
    (found,) = sent(text("a"), part(data_url(PNG, "image/jpeg"), detail="auto"), text("b"), part(URL))
    images = [ImageFile(PNG, f"messages[0].content[{place}]", PIXELS) for place in (1, 3)]
    assert found == message_of("user", ["a", images[0], "b", images[1]])


@pytest.mark.parametrize(
    ("content", "role", "words"),
    [
        (part(URL), "assistant", r"content\[0\]: only messages of the user may have images, this is the assistant's"),
        (part(URL), "system", r"content\[0\]: only messages of the user may have images, this is the system's"),
        (part(URL, detail="high"), "user", r"image_url\.detail: 'high' is not supported, only 'auto'"),
        ({"type": "image_url"}, "user", r"not an image as expected"),
        ({"type": "image_url", "image_url": URL}, "user", r"not an image as expected: \{\"type\": \"image_url\""),
        ({**part(URL), "text": "a"}, "user", r"not an image as expected"),
        ({**part(URL), "type": "text", "text": "a"}, "user", r"type 'text' is not supported"),
        (
            {"type": "input_audio", "text": None},
            "user",
            r"'input_audio' is not supported, only text and",
        ),
    ],
)
def test_parts_that_are_not_supported_are_refused_by_name(content: dict[str, Any], role: str, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        sent(content, role=role)


def test_model_for_texts_refuses_images_by_name() -> None:
    message = ChatMessage("user", [ContentPart("image_url", image_url=ImageUrl(URL))])
    with pytest.raises(ApiError, match=r"type 'image_url' is not supported here, only text is"):
        messages_of([message])


@pytest.fixture(scope="module")
def server(image_text: tuple[Path, Path], tiny_decoder: Path) -> Iterator[Served]:
    limits = ("--rows", 2, "--max-image-pixels", PIXELS, "--max-body-bytes", 2_000_000)
    with served(f"vlm={image_text[1]}", f"lm={tiny_decoder}", *limits) as running:
        yield running


def chat(server: Served, *content: dict[str, Any], model: str = "vlm", **fields: Any) -> tuple[int, Any]:
    messages = [{"role": "user", "content": list(content)}]
    return server.post(
        "/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": NEW, "temperature": 0, **fields}
    )


@pytest.mark.proof
def test_answers_about_images_equal_the_model_alone(server: Served, image_text: tuple[Path, Path]) -> None:
    other = encoded(picture(40, 90, 2))
    files = {data_url(data): ImageFile(data, "x") for data in (PNG, other)}
    questions = [(URL,), (data_url(other),), (URL, data_url(other)), (URL,)]
    with TextGenerator(image_text[1], max_new_tokens=NEW) as alone:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
        for urls in questions:
            asked: list[str | ImageFile] = ["Look:", *(files[url] for url in urls), "what?"]
            expected = alone.write([message_of("user", asked)]).whole()
            content: Any = [text("Look:"), *map(part, urls), text("what?")]
            messages: Any = [{"role": "user", "content": content}]
            answer = client.chat.completions.create(model="vlm", messages=messages, max_tokens=NEW, temperature=0)
            assert answer.choices[0].message.content == expected.text
            assert answer.usage is not None and answer.usage.prompt_tokens == expected.prompt_tokens
        assert answer.usage.prompt_tokens_details is not None and answer.usage.prompt_tokens_details.cached_tokens
        stream = client.chat.completions.create(
            model="vlm", messages=messages, max_tokens=NEW, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == answer.choices[0].message.content


@pytest.mark.proof
def test_malformed_images_get_400_and_the_server_goes_on(server: Served) -> None:
    requests = [(part(data_url(data)), words) for data, words in refused_files().values()]
    requests += [(part(url), words) for url, words in URLS.values()]
    requests.append((part(data_url(encoded(picture(300, 300)))), f"more than {PIXELS} pixels in all"))
    requests.append((text("an <image> of words"), "the prompt has 1 <image> and 0 images"))
    for content, words in requests:
        status, answer = chat(server, content)
        message = answer["error"]["message"]
        assert (status, "\n" in message) == (400, False) and words in message, message
    status, answer = chat(server, *[part(URL)] * 100)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    item = {"role": "user", "content": [{"type": "input_image", "image_url": URL}]}
    status, answer = server.post("/v1/responses", {"model": "vlm", "input": [item]})
    assert status == 400 and "type 'input_image' is not supported" in answer["error"]["message"]
    status, answer = chat(server, part(URL), model="lm")
    assert status == 400 and "only text is" in answer["error"]["message"]
    for data, _ in odd_files().values():
        assert chat(server, part(data_url(data)), text("?"))[0] == 200
    assert chat(server, part(URL))[0] == 200 and server.get("/health/live")[0] == 200


@pytest.mark.proof
def test_requests_at_a_time_keep_their_images(server: Served) -> None:
    from concurrent.futures import ThreadPoolExecutor

    contents = [(part(data_url(encoded(picture(40, 60 + 10 * number, number + 1)))), text("?")) for number in range(8)]
    alone = [chat(server, *content)[1]["choices"][0]["message"]["content"] for content in contents]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda content: chat(server, *content)[1], contents * 2))
    assert [answer["choices"][0]["message"]["content"] for answer in together] == alone * 2
