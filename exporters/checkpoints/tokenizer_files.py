"""Write a checkpoint's tokenizer into the bundle, in the one format that the runtime reads."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.marian_tokenizer import has_marian_files, read_marian
from intaglio.exporters.files.config import integer
from intaglio.extras import load
from intaglio.files.hashes import copy_file
from intaglio.files.input_files import read_text
from intaglio.runtime.text.tokenizer import TOKENIZER

# Files from which transformers builds a tokenizer; without any of them it builds an empty one.
MODELS = ("spiece.model", "sentencepiece.bpe.model", "sentencepiece.model", "tokenizer.model", "tiktoken.model")
VOCABULARIES = ("vocab.txt", "vocab.json", *MODELS)
GENERIC = "TokenizersBackend"  # the class of transformers for a tokenizer of an unknown class
MERGES = "merges.txt"  # without it, transformers would build a tokenizer of single characters from vocab.json
RANKS = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")  # the first line of tiktoken's files: a token in base64, its rank
BESIDE = ("config.json", "tokenizer_config.json", "special_tokens_map.json")
BESIDE_DECODER = ("generation_config.json", "chat_template.jinja", "chat_template.json")


def write_tokenizer(checkpoint: Checkpoint, folder: Path, pad_token_id: int, tokenizer: Any = None) -> None:
    """Write tokenizer.json, with padding by the model's own token, and copy the files next to it.

    `pad_token_id`: the family's, for a config.json without one. `tokenizer`: of the library tokenizers; None: that of
    the checkpoint, without truncation. A checkpoint with only a vocabulary is converted by `transformers`; one without
    a tokenizer is rejected.
    """
    tokenizer = tokenizer or read_tokenizer(checkpoint)
    _check_vocabulary(checkpoint, tokenizer, integer(checkpoint.config, "vocab_size", 1))
    _pad(checkpoint, tokenizer, pad_token_id)
    _write(checkpoint, tokenizer, folder, BESIDE)


def check_tokenizer(checkpoint: Checkpoint) -> None:
    """Raise `SourceError` unless the checkpoint has a readable tokenizer, with words, that fits its vocabulary."""
    _check_vocabulary(checkpoint, read_tokenizer(checkpoint), integer(checkpoint.config, "vocab_size", 1))


def write_decoder_tokenizer(checkpoint: Checkpoint, folder: Path, vocab_size: int) -> None:
    """Write the tokenizer of a decoder, without padding and truncation, and copy the files next to it.

    Raises `SourceError` when it does not belong to a model of `vocab_size` tokens.
    """
    tokenizer = read_tokenizer(checkpoint)
    _check_vocabulary(checkpoint, tokenizer, vocab_size)
    tokenizer.no_padding()
    _write(checkpoint, tokenizer, folder, (*BESIDE, *BESIDE_DECODER))


def _pad(checkpoint: Checkpoint, tokenizer: Any, default: int) -> None:
    number = integer(checkpoint.config, "pad_token_id", 0, default=default)
    token = {identity: token for token, identity in tokenizer.get_vocab().items()}.get(number)
    if token is None:
        raise SourceError(
            f"{checkpoint.folder}: its tokenizer has no token {number}, the pad_token_id of config.json. "
            "Give the tokenizer that the model was trained with."
        )
    tokenizer.enable_padding(pad_id=number, pad_token=token)


def _write(checkpoint: Checkpoint, tokenizer: Any, folder: Path, beside: Sequence[str]) -> None:
    tokenizer.save(str(folder / TOKENIZER))
    for name in beside:
        if (checkpoint.folder / name).is_file():
            copy_file(checkpoint.folder / name, folder / name)


def read_tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer of a checkpoint, of the library tokenizers, without truncation. Raises `SourceError`."""
    tokenizer = _read_file(checkpoint)
    tokenizer.no_truncation()
    return tokenizer


def _read_file(checkpoint: Checkpoint) -> Any:
    path = checkpoint.folder / TOKENIZER
    if path.is_file():
        from tokenizers import Tokenizer

        text = read_text(path, "", error=SourceError, fix="Download or copy the file again.")
        try:
            return Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception
            reason = f"{path}: not a readable tokenizer ({error})"
            raise SourceError(f"{reason}. Download or copy the file again.") from error
    if has_marian_files(checkpoint.folder):
        return read_marian(checkpoint.folder)
    if not any((checkpoint.folder / name).is_file() for name in VOCABULARIES):
        raise SourceError(f"{checkpoint.folder}: no tokenizer, neither {TOKENIZER} nor a vocabulary. Put it there.")
    _check_readable(checkpoint.folder)
    transformers = load("transformers")
    try:
        folder = str(checkpoint.folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        _check_class(checkpoint.folder, tokenizer)
        return tokenizer.backend_tokenizer
    except (OSError, ValueError, AttributeError, KeyError, TypeError, ImportError) as error:
        raise SourceError(
            f"{checkpoint.folder}: no readable tokenizer ({' '.join(str(error).split())[:200]}). "
            f"Put its {TOKENIZER} there."
        ) from error


def _check_readable(folder: Path) -> None:
    """Raise `SourceError` if the vocabulary needs a library or a file that is not there."""
    for path in (folder / name for name in MODELS if (folder / name).is_file()):
        kind, library = (
            ("tiktoken's", "tiktoken") if _has_ranks(path) else ("a model of sentencepiece", "sentencepiece")
        )
        if importlib.util.find_spec(library) is None:
            raise SourceError(
                f"{folder}: no {TOKENIZER}, and its {path.name} is {kind}, which needs a library to be read. "
                f"Install it with: pip install {library} protobuf. Or put the model's {TOKENIZER} there."
            )
        return
    if (folder / "vocab.json").is_file() and not any((folder / name).is_file() for name in ("vocab.txt", MERGES)):
        raise SourceError(f"{folder}: no {TOKENIZER}, and vocab.json lacks its {MERGES}. Put one of them there.")


def _check_class(folder: Path, tokenizer: Any) -> None:
    """Raise `SourceError` if `transformers` read a model of sentencepiece without knowing its class.

    The class has the rules around the pieces, such as the space before the first word; without it, ids differ.
    """
    found = next((name for name in MODELS if (folder / name).is_file()), None)
    if found and type(tokenizer).__name__ == GENERIC and not _has_ranks(folder / found):
        raise SourceError(
            f"{folder}: {found} alone does not identify its tokenizer. Put the model's tokenizer_config.json "
            f"there, with its tokenizer_class, or its {TOKENIZER}."
        )


def _has_ranks(path: Path) -> bool:
    """Whether the file is tiktoken's, and not of sentencepiece."""
    with path.open("rb") as file:
        return RANKS.match(file.read(1000)) is not None


def _check_vocabulary(checkpoint: Checkpoint, tokenizer: Any, size: int) -> None:
    """Reject a tokenizer that has special tokens only, or that of another model, with ids beyond the vocabulary."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if len(vocabulary) <= len(tokenizer.get_added_tokens_decoder()):
        raise SourceError(
            f"{checkpoint.folder}: its tokenizer has an empty vocabulary. Put the {TOKENIZER} of this model there."
        )
    largest = max(vocabulary.values())
    if largest >= size:
        raise SourceError(
            f"{checkpoint.folder}: its tokenizer returns ids up to {largest}, the model expects ids below {size}. "
            f"Put the {TOKENIZER} of this model there."
        )
