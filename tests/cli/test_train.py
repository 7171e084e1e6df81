"""`intaglio train align`: what it prints, and how it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intaglio.sentences import sentences

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def pair(make_decoder: Callable[..., tuple[Path, Path]]) -> tuple[Path, Path]:
    """The checkpoint of a small model, and the bundle of a larger one."""
    return make_decoder("gpt2", n_layer=1)[0], make_decoder("llama")[1]


def test_a_checkpoint_is_aligned_and_exported(intaglio: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    source, teacher = pair
    (tmp_path / "text.txt").write_text(" ".join(sentences()[:4]))
    arguments: list[Any] = ["--teacher", teacher, "--data", tmp_path / "text.txt", "--prompt-tokens", 16, "-n", 6]
    arguments += ["--texts", 8, "--steps", 2, "--threads", 1]
    code, out, err = intaglio("train", "align", source, "-o", tmp_path / "made", *arguments, "--json")
    assert (code, err) == (0, "") and out.count("\n") == 1
    result = json.loads(out)
    assert (result["texts"], result["held_out_texts"], result["steps"]) == (7, 1, 2)
    assert 0 <= result["agreement_before"] <= 1
    code, out, _ = intaglio("train", "align", source, "-o", tmp_path / "again", *arguments)
    assert code == 0 and "before" in out and "agreement" in out and "texts of" in out
    assert (tmp_path / "made" / "model.safetensors").read_bytes() == (
        tmp_path / "again" / "model.safetensors"
    ).read_bytes()
    code, out, _ = intaglio("export", tmp_path / "made", "-o", tmp_path / "bundle", "--no-check")
    assert code == 0
    code, out, _ = intaglio("generate", teacher, "Hello", "--draft", tmp_path / "bundle", "--strategy", "bild", "-n", 4)
    assert code == 0


def test_a_file_of_two_words_is_one_line(intaglio: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("two words")
    code, out, err = intaglio(
        "train", "align", pair[0], "-o", tmp_path / "made", "--teacher", pair[1], "--data", tmp_path / "text.txt"
    )
    assert (code, out) == (2, "") and err.count("\n") == 1 and "0 prompts, expected at least 2" in err
    assert not (tmp_path / "made").exists()
