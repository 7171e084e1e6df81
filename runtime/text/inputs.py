"""The inputs of a validation or calibration: sentences, or arrays from a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError, one_line
from intaglio.files.hashes import sha256
from intaglio.files.input_files import open_file, read_bytes, read_text, text_lines
from intaglio.runtime.engines.engine import Array, check_arrays
from intaglio.runtime.text.pairs import SUFFIX, pairs_of, read_documents, shipped_documents, takes_pairs
from intaglio.runtime.text.tokenizer import MASK as MASK
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.samples.sentences import sentences


class InputsUsed(msgspec.Struct):
    """The inputs, as described in reports."""

    source: str
    sha256: str  # of the file, or of the sentences joined by newlines
    samples: int
    available: int  # samples in the source
    batches: int


EXPANDED = 1 << 30  # bytes of arrays that a smaller, compressed file may hold


def check_counts(samples: int, batch_size: int) -> None:
    """Raise `UsageError` for numbers below 1."""
    for name, value in (("samples", samples), ("batch size", batch_size)):
        if value < 1:
            raise UsageError(f"{name} {value}: expected at least 1.")


def load_inputs(
    bundle: Bundle, data: str | Path | None, samples: int, batch_size: int, option: str = "--data"
) -> tuple[list[dict[str, Array]], InputsUsed]:
    """Load batches of feeds for `bundle`, with their origin.

    `data` is a UTF-8 text file with one sentence per line (empty lines are skipped, sentences longer than the model's
    limit are truncated), a .jsonl file of queries with their documents for a model that reads pairs (`pairs`), an .npz
    file of arrays by input name, or None for the sentences that ship with intaglio; `option` is the option that named
    it. Raises `UsageError` for a file without inputs, `EngineError` for arrays that do not fit.
    """
    check_counts(samples, batch_size)
    if data is not None and Path(data).suffix == ".npz":
        return _arrays(bundle, Path(data), samples, batch_size, option)
    if TOKENIZER not in bundle.manifest.files:
        raise UsageError(
            f"bundle {bundle.path}: has no tokenizer, so it needs arrays. Give them with {option} FILE.npz"
        )
    if (data is None and takes_pairs(bundle.manifest)) or (data is not None and Path(data).suffix == SUFFIX):
        return _pairs(bundle, data, samples, batch_size, option)
    lines = sentences() if data is None else _lines(Path(data), option)
    content = "\n".join(lines).encode() if data is None else read_bytes(Path(data))
    used = lines[:samples]
    tokenizer = Tokenizer.open(bundle)
    feeds: list[dict[str, Array]] = [dict(each) for each in tokenizer.batches(used, batch_size, truncate=True)]
    source = "the sentences that ship with intaglio" if data is None else str(data)
    return feeds, InputsUsed(source, hashlib.sha256(content).hexdigest(), len(used), len(lines), len(feeds))


def _pairs(
    bundle: Bundle, data: str | Path | None, samples: int, batch_size: int, option: str
) -> tuple[list[dict[str, Array]], InputsUsed]:
    """Batches of pairs, each of one query, so that the ranks of its documents can be compared."""
    if bundle.manifest.task not in ("classify", "question-answering"):
        raise UsageError(
            f"{option} {data}: has pairs of texts, and the bundle's task is {bundle.manifest.task or 'unknown'}. Give "
            "a file with one sentence per line."
        )
    lines = shipped_documents() if data is None else read_documents(Path(data), option)
    content = msgspec.json.encode(lines) if data is None else read_bytes(Path(data))
    batches = pairs_of(lines, samples, batch_size)
    tokenizer = Tokenizer.open(bundle)
    feeds: list[dict[str, Array]] = [dict(tokenizer.feeds(batch, truncate=True)) for batch in batches]
    source = "pairs of the sentences that ship with intaglio" if data is None else str(data)
    available = sum(len(line.documents) for line in lines)
    used = sum(map(len, batches))
    return feeds, InputsUsed(source, hashlib.sha256(content).hexdigest(), used, available, len(feeds))


def _lines(path: Path, option: str) -> list[str]:
    lines = [line for line in text_lines(read_text(path, option)) if line.strip()]
    if not lines:
        raise UsageError(f"{option} {path}: has no sentences. Write one per line.")
    return lines


def _arrays(
    bundle: Bundle, path: Path, samples: int, batch_size: int, option: str
) -> tuple[list[dict[str, Array]], InputsUsed]:
    """The arrays of an .npz file, split along their first axis if it is symbolic and common to all."""
    arrays = read_arrays(path, option)
    specs = tuple(bundle.manifest.inputs)
    first_axes = {spec.shape[0] if spec.shape else 1 for spec in specs}
    lengths = {array.shape[0] if array.ndim else None for array in arrays.values()}
    if lengths == {0}:
        raise UsageError(f"{option} {path}: its arrays have no samples. Give at least one row.")
    available = lengths.pop() if len(lengths) == len(first_axes) == 1 and isinstance(first_axes.pop(), str) else None
    if available is None:
        used = available = 1
        feeds = [arrays]
    else:
        used = min(samples, available)
        feeds = [
            {name: array[start : min(start + batch_size, used)] for name, array in arrays.items()}
            for start in range(0, used, batch_size)
        ]
    for batch in feeds:
        check_arrays(specs, bundle.manifest.axes, batch)
    if MASK in arrays and not any(np.any(batch[MASK]) for batch in feeds):
        raise UsageError(f"{option} {path}: {MASK} is 0 everywhere, expected 1 at every token. Fix it.")
    return feeds, InputsUsed(str(path), sha256(path), used, available, len(feeds))


def read_arrays(path: Path, option: str) -> dict[str, Array]:
    """The arrays of an .npz file by name.

    Raises `UsageError` if it is not one, or expands to more than `EXPANDED` bytes and more than its own size.
    """
    try:
        with open_file(path, pipes=False) as file, np.load(file, allow_pickle=False) as arrays:
            size, most = sum(member.file_size for member in arrays.zip.infolist()), path.stat().st_size
            if size > max(most, EXPANDED):
                raise ValueError(f"it expands to {size} bytes, expected at most {EXPANDED} of a compressed file")
            return dict(arrays)
    except Exception as error:  # from the archive, its compression, NumPy's headers, or too large an allocation
        reason = one_line(error, 200) or type(error).__name__
        raise UsageError(f"{option} {path}: not a readable .npz file ({reason}). Write it with numpy.savez.") from error
