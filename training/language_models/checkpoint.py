"""A language model's checkpoint: open it for training in float32, and write it again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError, UsageError, one_line
from intaglio.extras import load as load_library
from intaglio.files.atomic import CHECKPOINT, atomic_directory, check_output_directory
from intaglio.files.input_files import check_folder, decode, read_bytes, read_text
from intaglio.networks import drafts, early_exit
from intaglio.runtime.generation.requests.prompts import read_texts
from intaglio.runtime.text.tokenizer import check_words

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
SAFETENSORS = (".safetensors", ".safetensors.index.json")
WEIGHTS = (*SAFETENSORS, ".bin", ".bin.index.json")  # suffixes of files not to copy
COMPANIONS = (".json", ".txt", ".jinja", ".model")  # suffixes of files to copy: the tokenizer's, and settings
HELD_OUT = 10  # one in 10 windows or prompts is held out, at the end of the file
MOST_HELD_OUT = 64

Windows = npt.NDArray[np.int64]  # [windows, tokens]


def open_network(folder: Path, encoder_decoders: bool = False) -> tuple[Any, str]:
    """The network in `folder`, in float32, and the dtype of its stored weights.

    Raises `SourceError` if the folder is not a causal language model (or, with `encoder_decoders`, an encoder-decoder)
    with safetensors.
    """
    try:
        config = msgspec.json.decode(decode(read_bytes(folder / CONFIG)), type=dict[str, Any])
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        reason = getattr(error, "strerror", None) or one_line(error, 120)
        raise SourceError(f"source {folder}: no readable {CONFIG} ({reason}). Give a checkpoint's folder.") from error
    if config.get("is_encoder_decoder") is True and not encoder_decoders:
        raise SourceError(
            f"source {folder}: is an encoder-decoder ({config.get('model_type')}), expected a decoder. Give the "
            "folder of a decoder's checkpoint."
        )
    check_folder(folder)
    torch, transformers = load_library("torch"), load_library("transformers")
    reads = encoder_decoders and config.get("is_encoder_decoder") is True
    kind = transformers.AutoModelForSeq2SeqLM if reads else transformers.AutoModelForCausalLM
    wanted = "an encoder-decoder" if reads else "a causal language model"
    try:
        with _without_bars(transformers):
            network = kind.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, local_files_only=True)
    except Exception as error:  # a damaged checkpoint can make the library raise anything
        reason = one_line(error, 200)
        raise SourceError(
            f"source {folder}: transformers cannot open it as {wanted} ({reason}). "
            "Give the folder of a decoder's checkpoint, with safetensors."
        ) from error
    stored = config.get("dtype", config.get("torch_dtype"))
    return network, stored if stored == "float16" else "float32"


def check_output(source: Path, output: Path, force: bool) -> None:
    """Reject a path that exists (without `force`), cannot be created, or equals the source.

    Raises `UsageError`, `StorageError`.
    """
    if output.exists() and output.resolve() == source.resolve():
        raise UsageError(f"output {output}: is the source itself, which would be overwritten. Choose another path.")
    check_output_directory(output, force, CHECKPOINT)


def write_network(
    network: Any, dtype: str, source: Path, output: Path, force: bool, further: Mapping[str, bytes] | None = None
) -> None:
    """Write `network` in `dtype` to the folder `output` atomically, with the tokenizer's files of `source`.

    `force`: replace an existing checkpoint. `further`: additional files to write, by name.
    """
    torch, transformers = load_library("torch"), load_library("transformers")
    with atomic_directory(output, force, CHECKPOINT) as folder:
        copy_files(source, folder)
        with _without_bars(transformers):
            network.to(getattr(torch, dtype)).save_pretrained(folder)
        for name, content in (further or {}).items():
            (folder / name).write_bytes(content)
        for path in folder.iterdir():
            path.chmod(0o644)


def copy_files(source: Path, folder: Path, weights: bool = False) -> None:
    """Copy a checkpoint's files without its weights, or with its safetensors too, byte for byte.

    The records of drafts and early exits are not copied: they belong to the old weights.
    """
    for path in sorted(source.iterdir()):
        companion = path.suffix in COMPANIONS and not path.name.endswith(WEIGHTS)
        wanted = companion or (weights and path.name.endswith(SAFETENSORS))
        if path.is_file() and wanted and path.name not in (drafts.RECORD, drafts.MATRICES, early_exit.RECORD):
            shutil.copyfile(path, folder / path.name)


def read_windows(folder: Path, data: str | Path, option: str, length: int) -> tuple[Windows, Windows]:
    """The text in `data`, or the concatenated texts of its JSON lines, as windows of `length` tokens.

    Returns the windows to train on, then the held-out ones, which are the last.

    Raises `SourceError` for a folder without tokenizer, `UsageError` for a text shorter than two windows.
    """
    tokenizer = read_tokenizer(folder)
    texts = read_texts(Path(data), option)
    for text in texts:
        check_words(text)
    ids = np.array([token for encoded in tokenizer.encode_batch(texts) for token in encoded.ids], np.int64)
    windows = ids[: len(ids) // length * length].reshape(-1, length)
    if len(windows) < 2:
        raise UsageError(
            f"{option} {data}: {len(ids)} tokens, expected at least two windows of {length}: one to train on, one to "
            "hold out. Give more text, or shorter windows."
        )
    return windows[: -held_out(windows)], windows[-held_out(windows) :]


def held_out(items: Sized) -> int:
    """The number of held-out `items`: a tenth, at least one and at most 64."""
    return min(max(1, len(items) // HELD_OUT), MOST_HELD_OUT)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint, without padding and truncation. Raises `SourceError` if it is missing."""
    from tokenizers import Tokenizer

    if not (folder / TOKENIZER).is_file():
        raise SourceError(f"source {folder}: no {TOKENIZER}, so text cannot be read. Add the tokenizer's files.")
    text = read_text(folder / TOKENIZER, "tokenizer", error=SourceError, fix="Copy it again.")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        reason = one_line(error)
        raise SourceError(f"{folder / TOKENIZER}: not a readable tokenizer ({reason}). Copy it again.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def shuffled(windows: Windows, size: int, random: np.random.Generator) -> Iterator[Windows]:
    """Endless batches; each window appears once per epoch."""
    size = min(size, len(windows))
    while True:
        order = random.permutation(len(windows))
        for start in range(0, len(order) - size + 1, size):
            yield windows[order[start : start + size]]


@contextmanager
def _without_bars(transformers: Any) -> Iterator[None]:
    """Keep the library's own progress bars from the terminal."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
