"""Split a text file into chunks of tokens, and build a decoder's inputs to run each chunk as a separate sequence."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.files.input_files import read_bytes, read_text
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.sessions.step import ATTENTION_MASK, decoder_of, empty_caches, step_feeds
from intaglio.runtime.text.inputs import InputsUsed, check_counts
from intaglio.runtime.text.tokenizer import check_words, read_backend

Integers = npt.NDArray[np.int64]

CHUNK = 512  # tokens
DRAFTED_EVERY = 8  # tokens


def load_chunks(
    bundle: Bundle, path: str | Path, samples: int, batch_size: int, option: str, length: int = CHUNK
) -> tuple[list[dict[str, Array]], InputsUsed]:
    """The first `samples` chunks of the text in `path` as batches of feeds for a decoder, with their origin.

    Chunks are consecutive and have `length` tokens, or the model's limit; a shorter rest at the end is skipped, unless
    it is the whole text. Raises `UsageError` for a file without text.
    """
    check_counts(samples, batch_size)
    ids = read_tokens(bundle, path, option)
    digest = hashlib.sha256(read_bytes(Path(path))).hexdigest()
    return chunk_batches(bundle, ids, samples, batch_size, length, str(path), digest)


def chunk_batches(
    bundle: Bundle, ids: Integers, samples: int, batch_size: int, length: int, source: str, digest: str
) -> tuple[list[dict[str, Array]], InputsUsed]:
    """The first `samples` chunks of the tokens `ids` [tokens] of `source`, as batches; see `load_chunks`."""
    length = min(length, decoder_of(bundle).max_positions, len(ids))
    chunks = ids[: len(ids) // length * length].reshape(-1, length)
    used = chunks[:samples]
    feeds = [chunk_feeds(bundle, used[start : start + batch_size]) for start in range(0, len(used), batch_size)]
    return feeds, InputsUsed(source, digest, len(used), len(chunks), len(feeds))


def read_tokens(bundle: Bundle, path: str | Path, option: str) -> Integers:
    """The tokens [tokens] of the UTF-8 text in `path`. Raises `UsageError` for a file without text."""
    text = read_text(Path(path), option)
    check_words(text)
    ids = read_backend(bundle).encode(text).ids if text.strip() else []
    if not ids:
        raise UsageError(f"{option} {path}: has no text. Give a few pages of text.")
    return np.array(ids, np.int64)


def chunk_feeds(bundle: Bundle, ids: Integers) -> dict[str, Array]:
    """Input name -> array, to run the sequences `ids` [batch, tokens] from their first token, with all logits.

    The caches have as many slots as there are tokens, and share one array of zeros, which is only read. A graph that
    drafts does so after one of every `DRAFTED_EVERY` tokens, so that most positions are real tokens; no token exits
    early.
    """
    decoder = decoder_of(bundle)
    origins = np.tile(np.arange(0, ids.shape[1], DRAFTED_EVERY), (len(ids), 1))
    feeds = step_feeds(decoder, ids, draft_indices=origins)
    return feeds | empty_caches(bundle.manifest.inputs, len(ids), feeds[ATTENTION_MASK.name].shape[2])
