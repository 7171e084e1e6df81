"""Images in prompts: frames as the library cuts them, tokens in the places of image tokens, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_files import encoded, odd_files, picture, picture_files, refused_files
from tiny_image_text import CHAT, TOKENS, library_processor

from intaglio.bundle.bundle import ImageEncoder
from intaglio.errors import ContextLengthError, UsageError
from intaglio.runtime.generation.conversation import Conversation
from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.generation.requests.image_prompts import ImageText, message_of, with_images
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.vision.frames import frames_of, grid_of, image_text
from intaglio.runtime.vision.image_file import decode_image
from intaglio.runtime.vision.image_reader import ImageFile

NEW = 12
FILTERS = {"lanczos": 1, "bilinear": 2, "bicubic": 3}


@pytest.fixture(scope="module")
def generator(image_text: tuple[Path, Path]) -> Iterator[TextGenerator]:
    with TextGenerator(image_text[1], max_new_tokens=NEW, ignore_eos=True, batch=2) as opened:
        yield opened


@pytest.fixture
def files(tmp_path: Path) -> list[ImageFile]:
    return [ImageFile(path.read_bytes(), path.name) for path in picture_files(tmp_path)]


def described(side: int, longest: int, resample: str, splits: bool) -> ImageEncoder:
    return ImageEncoder("f", (), (), side, longest, resample, splits, TOKENS, 257, "<image>", "<around>", "<whole>")


@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize("splits", [True, False])
def test_frames_equal_transformers_on_pillow(resample: str, splits: bool) -> None:
    """All of their pixels, for images of many shapes."""
    import transformers

    numbers = random.Random(1)
    shapes = [(1, 1), (1, 90), (90, 1), (33, 31)]
    shapes += [(numbers.randint(1, 150), numbers.randint(1, 150)) for _ in range(20)]
    for height, width in shapes:
        side, longest = numbers.choice((16, 24, 32)), numbers.choice((16, 32, 64, 100))
        library = transformers.SmolVLMImageProcessorPil(
            size={"longest_edge": longest},
            max_image_size={"longest_edge": side},
            do_image_splitting=splits,
            resample=FILTERS[resample],
            do_rescale=False,
            do_normalize=False,
        )
        pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3)).astype(np.uint8)
        expected = library(pixels, return_row_col_info=True, input_data_format="channels_last")
        encoder = described(side, longest, resample, splits)
        np.testing.assert_array_equal(frames_of(pixels, encoder), np.asarray(expected["pixel_values"][0]))
        assert grid_of(height, width, encoder) == (expected["rows"][0][0], expected["cols"][0][0])


def test_text_of_an_image_equals_transformers() -> None:
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    for size in ((20, 20), (20, 60), (60, 20), (90, 50)):
        encoder = described(16, 64, "lanczos", True)
        grid = grid_of(*size, encoder)
        expected = get_image_prompt_string(*grid, TOKENS, "<around>", "<image>", "<whole>")
        assert image_text(grid, encoder) == expected


def test_chat_prompt_has_the_tokens_of_transformers(
    generator: TextGenerator, image_text: tuple[Path, Path], files: list[ImageFile]
) -> None:
    messages = [
        Message("system", "Be brief."),
        message_of("user", [files[0], "What is it?", files[1]]),
        Message("assistant", "A cat."),
        Message("user", "Sure?"),
    ]
    found = generator.checked(messages)
    pictures = [picture(40, 90, 1), picture(90, 40, 2)]
    conversation: list[dict[str, Any]] = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [
                {"type": "image", "image": pictures[0]},
                {"type": "text", "text": "What is it?"},
                {"type": "image", "image": pictures[1]},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
        {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
    ]
    library = library_processor(image_text[0])
    rendered = library.apply_chat_template(conversation, add_generation_prompt=True, chat_template=CHAT)
    assert found.text == rendered
    expected = library(text=rendered, images=[pictures], add_special_tokens=False)["input_ids"]
    assert found.tokens == np.ravel(expected).tolist()


def test_same_image_has_the_same_ids_and_another_image_has_others(
    generator: TextGenerator, files: list[ImageFile]
) -> None:
    """What keys and values are shared by: two images never, even behind the same tokens."""
    first, again, other = (generator.checked(ImageText("a <image> b", [files[index]])) for index in (0, 0, 1))
    assert list(first.image_ids) == list(again.image_ids)
    assert first.tokens[:4] == other.tokens[:4] and set(first.image_ids) & set(other.image_ids) <= set(first.tokens)


def test_prefix_is_shared_up_to_an_image_that_differs(generator: TextGenerator, image_text: tuple[Path, Path]) -> None:
    square = [ImageFile(encoded(picture(60, 60, number)), "square") for number in (1, 2)]
    before = "A sentence that is long enough to be shared: "
    prompts = [ImageText(f"{before}<image> and more", [image]) for image in (square[0], *square)]
    alone = [generator.write(prompt).whole().tokens for prompt in prompts[1:]]
    assert alone[0] != alone[1]
    with TextGenerator(image_text[1], max_new_tokens=NEW, ignore_eos=True, batch=3) as opened:
        results = [opened.write(prompt).whole() for prompt in prompts]
    assert [each.tokens for each in results] == [alone[0], *alone]
    image = len(before) + 2  # the image's first token, after two markers
    whole = results[0].prompt_tokens - 1
    assert [each.reused_tokens for each in results] == [0, whole, image]


def test_images_in_a_batch_belong_to_their_prompts(generator: TextGenerator, files: list[ImageFile]) -> None:
    prompts = [ImageText("x <image>", [files[0]]), ImageText("much longer <image> and <image>", files[1:])]
    alone = [generator.write(prompt).whole().tokens for prompt in prompts]
    assert [each.result().tokens for each in generator.generate_many([*prompts, "text alone"])][:2] == alone
    assert [each.tokens for each in generator.write_batch(prompts).whole()] == alone


def test_long_prompt_with_images_is_prefilled_in_chunks(
    image_text: tuple[Path, Path], files: list[ImageFile], generator: TextGenerator
) -> None:
    from intaglio.runtime.generation.scheduling.scheduler_options import SchedulerOptions

    prompt = ImageText("<image><image> and <image>: what are they?", files)
    expected = generator.write(prompt).whole().tokens
    options = {"max_new_tokens": NEW, "ignore_eos": True}
    with TextGenerator(image_text[1], scheduling=SchedulerOptions(chunk=7), **options) as chunked:  # type: ignore[arg-type]
        assert chunked.write(prompt).whole().tokens == expected


@pytest.mark.parametrize("name", refused_files())
def test_file_that_is_no_readable_image_is_refused_in_one_line(name: str) -> None:
    data, words = refused_files()[name]
    with pytest.raises(UsageError, match=words) as caught:
        decode_image(data, "image x")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("image x: ")


@pytest.mark.parametrize("name", odd_files())
def test_image_of_another_kind_is_read_in_red_green_and_blue(name: str) -> None:
    data, expected = odd_files()[name]
    np.testing.assert_array_equal(decode_image(data, "x"), np.asarray(expected))


@pytest.mark.parametrize(
    ("text", "count", "words"),
    [
        ("no place", 1, r"the prompt has 0 <image> and 1 images, expected as many of each"),
        ("<image>", 0, r"the prompt has 1 <image> and 0 images"),
        ("<image><image>", 1, r"the prompt has 2 <image> and 1 images"),
        ("<image>", 2, r"the prompt has 1 <image> and 2 images"),
    ],
)
def test_images_and_their_places_must_agree(
    generator: TextGenerator, files: list[ImageFile], text: str, count: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        generator.checked(ImageText(text, files[:count]))


def test_images_beyond_the_context_are_refused_and_not_all_read(
    generator: TextGenerator, files: list[ImageFile]
) -> None:
    """The last one, which is no image, is never decoded."""
    images = [files[0]] * 60 + [ImageFile(b"", "none")]
    with pytest.raises(ContextLengthError, match=r"prompt of \d+ tokens: the model takes at most 512"):
        generator.checked(ImageText("<image>" * len(images), images))


def test_model_without_image_encoder_refuses_images(tiny_decoder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"its model reads no images, and the prompt has 1\. Leave them out"):
        next(iter(generate(tiny_decoder, "<image>", image=picture_files(tmp_path)[:1])))


def test_draft_model_and_images_exclude_each_other(image_text: tuple[Path, Path], files: list[ImageFile]) -> None:
    with TextGenerator(image_text[1], draft=image_text[1], strategy="speculative", max_new_tokens=4) as opened:
        assert opened.write("text alone").whole().tokens
        with pytest.raises(UsageError, match=r"the prompt has images, which a draft model does not read"):
            opened.write(ImageText("<image>", files[:1]))


def test_conversation_keeps_the_images_of_its_questions(generator: TextGenerator, tmp_path: Path) -> None:
    talk = Conversation(generator, "Be brief.")
    path = picture_files(tmp_path)[0]
    talk.ask("What is it?", [path]).whole()
    talk.answered()
    second = talk.ask("And now?")
    assert "<image>What is it?" in second.whole().prompt
    (image,) = second.state.prompt.images
    assert image.ids[0] in second.state.prompt.image_ids
    with pytest.raises(UsageError, match=r"--image: the last message is not a text of the user"):
        next(iter(generate(generator.bundle, [[Message("assistant", "a")]], image=[path])))


def test_one_path_is_one_image(tmp_path: Path) -> None:
    path = picture_files(tmp_path)[0]
    alone, listed, text = (with_images("<image>", given) for given in (path, [path], str(path)))
    assert (
        list(alone)
        == list(listed)
        == list(text)
        == [ImageText("<image>", [ImageFile(path.read_bytes(), f"image {path}")])]
    )


@pytest.mark.parametrize("prompt", [[97, 98], [], [{"role": "user", "content": "a"}]])
def test_images_beside_token_ids_are_refused(prompt: list[Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the prompt is neither a text nor a list of Message"):
        list(with_images([prompt], picture_files(tmp_path)))
