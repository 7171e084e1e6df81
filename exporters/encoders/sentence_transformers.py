"""Folders of the sentence-transformers library: read which modules follow the encoder.

`modules.json` lists them in order: the Transformer itself, then Pooling and Normalize, each with a folder for its
config.json. Pooling configurations of old and new versions of the library differ in their keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from intaglio.errors import BundleError, SourceError
from intaglio.exporters.checkpoints.config import integer, read_json
from intaglio.files import inside
from intaglio.input_files import read_text

MODULES = "modules.json"
SETTINGS = "sentence_bert_config.json"

# Key of a pooling configuration -> the pooling's name. Several poolings are concatenated in this order.
POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}


class Module(msgspec.Struct):
    """One line of modules.json."""

    type: str
    path: str


@dataclass(frozen=True)
class SentenceHead:
    """The layers after the encoder: the poolings, concatenated along the last axis, and optional normalisation."""

    poolings: tuple[str, ...]
    normalize: bool
    max_tokens: int | None  # the library truncates inputs to this length, often shorter than the model's limit


def read_head(folder: Path) -> SentenceHead | None:
    """The modules after the encoder, or None if `folder` is not from sentence-transformers."""
    file = folder / MODULES
    if not file.is_file():
        return None
    try:
        text = read_text(file, error=SourceError, fix="Download or copy it again.")
        modules = msgspec.json.decode(text, type=list[Module])
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError(f"{file}: damaged ({error}). Download or copy the file again.") from error
    names = [module.type.rsplit(".", 1)[-1] for module in modules]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise SourceError(
            f"{file}: modules {', '.join(names) or 'none'} are not supported, expected Transformer, Pooling and "
            f"at most Normalize. Remove {MODULES} from a copy of the folder to export the encoder alone."
        )
    if modules[0].path not in ("", "."):
        raise SourceError(f"{file}: the Transformer is in {modules[0].path!r}. Give that folder as the source.")
    try:
        pooling = inside(folder, modules[1].path, str(file)) / "config.json"
    except BundleError as error:
        raise SourceError(str(error)) from error
    return SentenceHead(_poolings(read_json(pooling), pooling), "Normalize" in names, _max_tokens(folder))


def _max_tokens(folder: Path) -> int | None:
    file = folder / SETTINGS
    if not file.is_file() or (settings := read_json(file)).get("max_seq_length") is None:
        return None
    return integer(settings, "max_seq_length", 1)


def _poolings(config: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    named = config.get("pooling_mode")
    if named is not None:
        wanted = [str(name) for name in named] if isinstance(named, list) else [str(named)]
    else:
        wanted = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
        wanted = sorted(
            (POOLINGS.get(key, key) for key in wanted), key=lambda name: [*POOLINGS.values(), name].index(name)
        )
    if not wanted or (unknown := [name for name in wanted if name not in POOLINGS.values()]):
        raise SourceError(
            f"{where}: pooling {', '.join(wanted and unknown) or 'none'} is not supported. "
            f"Supported are: {', '.join(POOLINGS.values())}."
        )
    return tuple(wanted)
