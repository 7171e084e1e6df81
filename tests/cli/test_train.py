"""`intaglio train`: output and errors of align, and existing outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intaglio.samples.sentences import sentences

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def pair(make_decoder: Callable[..., tuple[Path, Path]]) -> tuple[Path, Path]:
    """The checkpoint of a draft model, and the bundle of a target model."""
    return make_decoder("gpt2", n_layer=1)[0], make_decoder("llama")[1]


def test_checkpoint_is_aligned_and_exported(intaglio: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
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


def test_too_short_text_file_prints_one_line(intaglio: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("two words")
    code, out, err = intaglio(
        "train", "align", pair[0], "-o", tmp_path / "made", "--teacher", pair[1], "--data", tmp_path / "text.txt"
    )
    assert (code, out) == (2, "") and err.count("\n") == 1 and "0 prompts, expected at least 2" in err
    assert not (tmp_path / "made").exists()


@pytest.fixture(scope="module")
def checkpoint(make_decoder: Callable[..., tuple[Path, Path]]) -> Path:
    """The checkpoint of a small model of two blocks."""
    return make_decoder("gpt2")[0]


METHODS: dict[str, list[Any]] = {
    "align": ["--teacher", "TEACHER", "--prompt-tokens", 16, "-n", 4, "--texts", 4, "--steps", 1],
    "prune": ["--fraction", 0.5, "--steps", 1, "--stages", 1, "--max-tokens", 32],
    "early-exit": ["--steps", 1, "--max-tokens", 32],
    "hidden-transfer": ["--steps", 1, "--max-tokens", 32],
    "medusa": ["--steps", 1, "--max-tokens", 32],
}


@pytest.mark.parametrize("method", METHODS)
def test_existing_checkpoint_is_replaced_only_with_force(
    method: str, intaglio: Run, pair: tuple[Path, Path], checkpoint: Path, tmp_path: Path
) -> None:
    source = pair[0] if method == "align" else checkpoint
    (tmp_path / "text.txt").write_text(" ".join(sentences()[:8]))
    made = tmp_path / "made"
    made.mkdir()
    (made / "mine.txt").write_text("mine")
    options = [pair[1] if each == "TEACHER" else each for each in METHODS[method]]
    command = ["train", method, source, "-o", made, "--data", tmp_path / "text.txt", *options]
    for more, message in (([], "the directory exists. Add --force"), (["--force"], "has no config.json")):
        code, out, err = intaglio(*command, *more)
        assert (code, out) == (2, "") and err.count("\n") == 1 and message in err
    assert [path.name for path in made.iterdir()] == ["mine.txt"]
    (made / "config.json").write_text("{}")
    code, _, err = intaglio(*command, "--force")
    assert code == 0, err
    assert not (made / "mine.txt").exists() and (made / "model.safetensors").exists()
