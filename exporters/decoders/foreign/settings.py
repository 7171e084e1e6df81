"""What a graph does not say of its decoder: the files beside it, of onnxruntime-genai and of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from intaglio.errors import SourceError
from intaglio.files.json_object import read_json

GENAI, CONFIG, GENERATION = "genai_config.json", "config.json", "generation_config.json"
LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")


class Settings(NamedTuple):
    """The settings of a decoder; None or empty where no file has them."""

    max_positions: int | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def read_settings(places: Sequence[Path]) -> Settings:
    """The settings in the first of the folders `places` that has a file with them. Raises `SourceError`."""
    genai = dict(_read(places, GENAI)).get("model", {})
    config = dict(_read(places, CONFIG))
    config |= config["text_config"] if isinstance(config.get("text_config"), dict) else {}
    if not isinstance(genai, dict):
        raise SourceError(f"{GENAI}: model is {genai!r}, expected an object")
    tokens = {
        **config,
        **{key: value for key, value in genai.items() if key != "decoder"},
        **dict(_read(places, GENERATION)),
    }
    lengths = [genai.get("context_length"), *(config.get(name) for name in LENGTHS)]
    found = [length for length in lengths if isinstance(length, int) and not isinstance(length, bool) and length > 0]
    end = tokens.get("eos_token_id")
    ends = [number for number in (end if isinstance(end, list) else [end]) if number is not None]
    begin = tokens.get("bos_token_id")
    for number in [*ends, *([begin] if begin is not None else [])]:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise SourceError(f"a BOS or EOS id beside it is {number!r}, expected a number")
    return Settings(found[0] if found else None, begin, tuple(ends))


def _read(places: Sequence[Path], name: str) -> Iterator[tuple[str, Any]]:
    """The entries of the first file of this name that are not null."""
    path = next((place / name for place in places if (place / name).is_file()), None)
    if path is not None:
        yield from ((key, value) for key, value in read_json(path).items() if value is not None)
