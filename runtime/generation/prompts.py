"""Prompts from a file: with what is expected, or was written, after them; or windows of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intaglio.errors import UsageError, one_line
from intaglio.files import read_text
from intaglio.runtime.tokenizer import check_words

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


class Example(msgspec.Struct, frozen=True):
    """A line of the file."""

    prompt: str
    reference: str | None = None  # what should be written; None where nobody knows
    text: str | None = None  # what a model wrote, as `intaglio generate --json` tells it


def read_examples(path: Path, option: str) -> list[Example]:
    """The examples of a file: JSON objects with "prompt" and, in all or none, "reference", one a line.

    Raises `UsageError` that names the line.
    """
    examples = _examples(read_text(path, option), f"{option} {path}")
    if len({example.reference is None for example in examples}) == 2:
        raise UsageError(f"{option} {path}: some lines have a reference, some have none. Give it in all, or in none.")
    return examples


def read_prompts(path: Path, option: str, tokenizer: Backend, tokens: int) -> list[str]:
    """The prompts of a file, each once: of its JSON lines if it begins with "{", else its text in windows of `tokens`.

    What is left at the end of a text, less than a window, is left out. Raises `UsageError` that names the line.
    """
    text = read_text(path, option)
    if _is_lines(text):
        prompts = [example.prompt for example in _examples(text, f"{option} {path}")]
    else:
        prompts = [window for window in _windows(text, tokenizer, tokens) if window.strip()]
    return list(dict.fromkeys(prompts))


def read_texts(path: Path, option: str) -> list[str]:
    """The texts of a file: the whole of it, or if it begins with "{", each JSON line's prompt and what follows it.

    That is the line's "text", what a model wrote, or else its "reference". Raises `UsageError` that names the line.
    """
    text = read_text(path, option)
    if not _is_lines(text):
        return [text]
    return [each.prompt + (each.text or each.reference or "") for each in _examples(text, f"{option} {path}")]


def _is_lines(text: str) -> bool:
    return text.lstrip().startswith("{")


def _examples(text: str, where: str) -> list[Example]:
    examples = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            examples.append(msgspec.json.decode(line, type=Example))
        except msgspec.MsgspecError as error:
            raise UsageError(
                f'{where}, line {number}: {one_line(error, 80)}. Write {{"prompt": "...", "reference": "..."}}.'
            ) from error
        if not examples[-1].prompt:
            raise UsageError(f"{where}, line {number}: the prompt is empty. Give at least one character.")
    if not examples:
        raise UsageError(f'{where}: no lines. Write {{"prompt": "...", "reference": "..."}}, one a line.')
    return examples


def _windows(text: str, tokenizer: Backend, tokens: int) -> list[str]:
    """Cut out of the text itself: tokens that are decoded may give other characters, as half of a letter does."""
    check_words(text)
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    ends = zip(offsets[::tokens], offsets[tokens - 1 :: tokens], strict=False)
    return [text[begin:end] for (begin, _), (_, end) in ends]
