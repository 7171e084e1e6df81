"""Prompts with what is expected after them, from a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from intaglio.errors import UsageError, one_line
from intaglio.files import read_text


class Example(msgspec.Struct, frozen=True):
    """A line of the file."""

    prompt: str
    reference: str | None = None  # what should be written; None where nobody knows


def read_examples(path: Path, option: str) -> list[Example]:
    """The examples of a file: JSON objects with "prompt" and, in all or none, "reference", one a line.

    Raises `UsageError` that names the line.
    """
    examples = []
    for number, line in enumerate(read_text(path, option).splitlines(), 1):
        if not line.strip():
            continue
        try:
            examples.append(msgspec.json.decode(line, type=Example))
        except msgspec.MsgspecError as error:
            raise UsageError(
                f'{option} {path}, line {number}: {one_line(error, 80)}. Write {{"prompt": "...", "reference": "..."}}.'
            ) from error
        if not examples[-1].prompt:
            raise UsageError(f"{option} {path}, line {number}: the prompt is empty. Give at least one character.")
    if not examples:
        raise UsageError(f'{option} {path}: no lines. Write {{"prompt": "...", "reference": "..."}}, one a line.')
    if len({example.reference is None for example in examples}) == 2:
        raise UsageError(f"{option} {path}: some lines have a reference, some have none. Give it in all, or in none.")
    return examples
