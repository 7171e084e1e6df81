"""Read prompts from a file: JSON lines with references or generated texts, or windows of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intaglio.errors import UsageError, one_line
from intaglio.files.input_files import read_text, text_lines
from intaglio.runtime.text.tokenizer import check_words

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


class Example(msgspec.Struct, frozen=True):
    """One JSON line."""

    prompt: str
    reference: str | None = None  # the expected text, if there is one
    text: str | None = None  # a model's text, as printed by `intaglio generate --json`


def read_examples(path: Path, option: str) -> list[Example]:
    """Read JSON lines with "prompt" and, in all lines or in none, "reference".

    Raises `UsageError` with the line number.
    """
    examples = _examples(read_text(path, option), f"{option} {path}")
    if len({example.reference is None for example in examples}) == 2:
        raise UsageError(
            f"{option} {path}: some lines have a reference, some have none. Add it to all lines, or to none."
        )
    return examples


def read_prompts(path: Path, option: str, tokenizer: Backend, tokens: int) -> list[str]:
    """Read the prompts of a file, without duplicates: of JSON lines if it begins with "{", else windows of `tokens`.

    An incomplete window at the end of a text is dropped. Raises `UsageError` with the line number.
    """
    text = read_text(path, option)
    if _is_lines(text):
        prompts = [example.prompt for example in _examples(text, f"{option} {path}")]
    else:
        prompts = [window for window in _windows(text, tokenizer, tokens) if window.strip()]
    return list(dict.fromkeys(prompts))


def read_texts(path: Path, option: str) -> list[str]:
    """Read the texts of a file: the whole file, or if it begins with "{", each JSON line's prompt and continuation.

    The continuation is the line's "text", written by a model, or else its "reference". Raises `UsageError` with the
    line number.
    """
    text = read_text(path, option)
    if not _is_lines(text):
        return [text]
    return [each.prompt + (each.text or each.reference or "") for each in _examples(text, f"{option} {path}")]


def _is_lines(text: str) -> bool:
    return text.lstrip().startswith("{")


def _examples(text: str, where: str) -> list[Example]:
    examples = []
    for number, line in enumerate(text_lines(text), 1):
        if not line.strip():
            continue
        try:
            examples.append(msgspec.json.decode(line, type=Example))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(
                f'{where}, line {number}: {one_line(error, 80)}. Write {{"prompt": "...", "reference": "..."}}.'
            ) from error
        if not examples[-1].prompt:
            raise UsageError(
                f"{where}, line {number}: the prompt is empty, expected at least one character. Fix the line."
            )
    if not examples:
        raise UsageError(f'{where}: no lines. Write {{"prompt": "...", "reference": "..."}}, one per line.')
    return examples


def _windows(text: str, tokenizer: Backend, tokens: int) -> list[str]:
    """Cut the text itself into windows; decoded tokens can differ from it, e.g. at half a character."""
    check_words(text)
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    ends = zip(offsets[::tokens], offsets[tokens - 1 :: tokens], strict=False)
    return [text[begin:end] for (begin, _), (_, end) in ends]
