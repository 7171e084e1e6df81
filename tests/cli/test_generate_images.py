"""`intaglio generate --image` and `/image` of `intaglio chat`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from picture_files import odd_files, picture_files, refused_files

from intaglio.runtime.generation.generate import generate

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return picture_files(tmp_path)


def test_images_are_at_their_places_in_a_prompt(
    intaglio: Run, image_text: tuple[Path, Path], files: list[Path]
) -> None:
    bundle = image_text[1]
    options = ["--image", files[0], "--image", files[1], "-n", 8, "--json"]
    code, out, err = intaglio("generate", bundle, *options, "<image> or <image>?")
    (expected,) = generate(bundle, "<image> or <image>?", image=files[:2], max_new_tokens=8)
    assert (code, err) == (0, "") and json.loads(out)["tokens"] == expected.tokens


def test_images_precede_a_message(intaglio: Run, image_text: tuple[Path, Path], files: list[Path]) -> None:
    bundle = image_text[1]
    code, out, _ = intaglio("generate", bundle, "--image", files[0], "--chat", "What?", "-n", 8, "--json")
    written = json.loads(out)
    assert code == 0 and written["prompt"] == "user:<image>What?<end_of_utterance>\nAssistant:"
    code, out, err = intaglio("chat", bundle, "-n", 8, "--json", stdin=f"/image {files[0]}\nWhat?\n/image\nAnd?\n")
    first, second = (json.loads(line) for line in out.splitlines())
    assert code == 0 and first["tokens"] == written["tokens"] and "/image FILE: name a file." in err
    assert second["prompt"].startswith("user:<image>What?") and second["prompt"].count("<image>") == 1


@pytest.mark.parametrize("name", refused_files())
def test_file_that_is_no_readable_image_ends_with_one_line(
    name: str, intaglio: Run, image_text: tuple[Path, Path], tmp_path: Path
) -> None:
    data, words = refused_files()[name]
    (tmp_path / "file.png").write_bytes(data)
    code, out, err = intaglio("generate", image_text[1], "--image", tmp_path / "file.png", "<image>")
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err and f"image {tmp_path}/file.png: " in err


@pytest.mark.parametrize("name", odd_files())
def test_image_of_another_kind_is_read(name: str, intaglio: Run, image_text: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file.png").write_bytes(odd_files()[name][0])
    code, out, _ = intaglio("generate", image_text[1], "--image", tmp_path / "file.png", "<image>", "-n", 2, "--json")
    assert code == 0 and json.loads(out)["prompt"] == "<image>"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["no place"], "the prompt has 0 <image> and 1 images"),
        (["<image><image>"], "the prompt has 2 <image> and 1 images"),
        (["--beams", 2, "<image>"], "--image does not apply to beam search"),
        (["--chat", "an <image>"], "the prompt has 2 <image> and 1 images"),
        (["--image", "missing.png", "<image><image>"], "image missing.png: No such file or directory"),
        (["--image", ".", "<image><image>"], "image .: is a folder"),
        (["<image>" + 500 * "a"], "prompt of"),
    ],
)
def test_images_that_do_not_fit_the_prompt_end_with_one_line(
    options: list[object], words: str, intaglio: Run, image_text: tuple[Path, Path], files: list[Path]
) -> None:
    code, out, err = intaglio("generate", image_text[1], "--image", files[0], *options)
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err


def test_model_for_texts_refuses_an_image(intaglio: Run, tiny_decoder: Path, files: list[Path]) -> None:
    code, out, err = intaglio("generate", tiny_decoder, "--image", files[0], "--chat", "What?")
    assert (code, out, err.count("\n")) == (2, "", 1) and "its model reads no images" in err


def test_images_of_a_refused_or_forgotten_message_are_not_kept_silently(
    intaglio: Run, image_text: tuple[Path, Path], files: list[Path]
) -> None:
    lines = [f"/image {files[0]}", "an <image>", "What?", f"/image {files[0]}", "/reset", "What?"]
    code, out, err = intaglio("chat", image_text[1], "-n", 2, "--json", stdin="\n".join(lines))
    assert code == 1 and "name them again with /image" in err
    assert [json.loads(line)["prompt"].count("<image>") for line in out.splitlines()] == [0, 0]


def test_missing_image_is_named_before_the_message(intaglio: Run, image_text: tuple[Path, Path]) -> None:
    code, out, err = intaglio("chat", image_text[1], "-n", 2, "--json", stdin="/image no.png\nWhat?\n")
    assert code == 1 and "image no.png: No such file or directory" in err
    assert json.loads(out)["prompt"].count("<image>") == 0
