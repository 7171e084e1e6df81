"""Bringing a checkpoint's tokenizer into the bundle, in the one form that the runtime reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoint import Checkpoint
from intaglio.extras import load
from intaglio.files import copy_file

TOKENIZER = "tokenizer.json"
BESIDE = ("config.json", "tokenizer_config.json", "special_tokens_map.json")


def write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """Write tokenizer.json, padded with the model's own token and never cut, and copy the files beside it.

    A checkpoint that has only a vocabulary is converted by `transformers`; one without a tokenizer is refused.
    """
    tokenizer = _read(checkpoint)
    tokenizer.no_truncation()
    number = int(checkpoint.config.get("pad_token_id") or 0)
    token = tokenizer.id_to_token(number)
    if token is None:
        raise SourceError(
            f"{checkpoint.folder}: its tokenizer has no token {number}, which config.json names for padding "
            "(pad_token_id). Give the tokenizer that the model was trained with."
        )
    tokenizer.enable_padding(pad_id=number, pad_token=token)
    tokenizer.save(str(folder / TOKENIZER))
    for name in BESIDE:
        if (checkpoint.folder / name).is_file():
            copy_file(checkpoint.folder / name, folder / name)


def _read(checkpoint: Checkpoint) -> Any:
    path = checkpoint.folder / TOKENIZER
    if path.is_file():
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            reason = f"{path}: not a readable tokenizer ({error})"
            raise SourceError(f"{reason}. Download or copy the file again.") from error
    transformers = load("transformers")
    try:
        return transformers.AutoTokenizer.from_pretrained(str(checkpoint.folder)).backend_tokenizer
    except (OSError, ValueError, AttributeError, KeyError, TypeError, ImportError) as error:
        raise SourceError(
            f"{checkpoint.folder}: holds no tokenizer that can be read ({' '.join(str(error).split())[:200]}). "
            f"Put its {TOKENIZER} there."
        ) from error
