"""The recordings of a path: one file, a folder, or a list of files with reference transcripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from intaglio.errors import BundleError, UsageError, one_line
from intaglio.files.hashes import inside
from intaglio.files.input_files import read_text, text_lines

ENDINGS = (".wav", ".flac", ".ogg", ".oga", ".opus")
LISTS = (".tsv", ".jsonl")
MOVE = "Put the list above its recordings."


class Listed(NamedTuple):
    """A recording, and what the list states: its reference transcript; its part, kind and voice in a corpus."""

    path: Path
    text: str | None = None
    part: str = "train"
    kind: str = ""
    voice: str = ""


class _Line(msgspec.Struct):
    audio_filepath: str
    text: str | None = None
    part: str = "train"
    kind: str = ""
    voice: str = ""


def recordings_of(path: Path, option: str) -> list[Listed]:
    """The recordings at `path`, which the option `option` named.

    A folder: the recordings in it, by name. A .tsv file: one recording in a line, and its text after a tab. A .jsonl
    file: one object in a line, {"audio_filepath": PATH, "text": TEXT}, as NeMo writes it, for `train speech` with part,
    kind and voice. The paths of a list are below its folder. Any other file is a recording. Raises `UsageError` for a
    list that is damaged or empty, or a path outside of its folder.
    """
    if path.is_dir():
        found = [Listed(each) for each in sorted(path.iterdir()) if each.suffix.lower() in ENDINGS]
    elif path.suffix not in LISTS:
        return [Listed(path)]
    else:
        found = list(_lines(path, option))
    if not found:
        what = f"has no recordings ({', '.join(ENDINGS)})" if path.is_dir() else "has no lines. Write one per recording"
        raise UsageError(f"{option} {path}: {what}.")
    return found


def _lines(path: Path, option: str) -> Iterator[Listed]:
    for number, line in enumerate(text_lines(read_text(path, option)), 1):
        if not line.strip():
            continue
        labels: tuple[str, ...] = ()
        try:
            if path.suffix == ".jsonl":
                read = msgspec.json.decode(line, type=_Line)
                name, text, labels = read.audio_filepath, read.text, (read.part, read.kind, read.voice)
            else:
                name, tab, reference = line.partition("\t")
                text = reference.strip() if tab else None
            yield Listed(inside(path.parent, name.strip(), f"{option} {path}, line {number}", MOVE), text, *labels)
        except BundleError as error:
            raise UsageError(str(error)) from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(
                f'{option} {path}, line {number}: {one_line(error, 120)}. Write {{"audio_filepath": ..., "text": ...}}.'
            ) from error
