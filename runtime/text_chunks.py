"""A text file as chunks of tokens, and the inputs that a decoder takes to run each chunk as a text of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from intaglio.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.files import read_text, sha256
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.inputs import InputsUsed
from intaglio.runtime.sessions.step import ATTENTION_MASK, decoder_of, empty_caches, step_feeds
from intaglio.runtime.tokenizer import check_words, read_backend

Integers = npt.NDArray[np.int64]

CHUNK = 512  # tokens
DRAFTED_EVERY = 8  # tokens


def load_chunks(
    bundle: Bundle, path: str | Path, samples: int, batch_size: int, option: str, length: int = CHUNK
) -> tuple[list[dict[str, Array]], InputsUsed]:
    """The first `samples` chunks of the text in `path` as batches of feeds for a decoder, and where they came from.

    Chunks are of `length` tokens, or of as many as the model takes, one after the other; what is left at the end is
    passed over, unless it is all there is. Raises `UsageError` for a file that holds no text.
    """
    for name, value in (("samples", samples), ("batch size", batch_size)):
        if value < 1:
            raise UsageError(f"{name} {value}: expected at least 1.")
    ids = read_tokens(bundle, path, option)
    length = min(length, decoder_of(bundle).max_positions, len(ids))
    chunks = ids[: len(ids) // length * length].reshape(-1, length)
    used = chunks[:samples]
    feeds = [chunk_feeds(bundle, used[start : start + batch_size]) for start in range(0, len(used), batch_size)]
    return feeds, InputsUsed(str(path), sha256(Path(path)), len(used), len(chunks), len(feeds))


def read_tokens(bundle: Bundle, path: str | Path, option: str) -> Integers:
    """The tokens [tokens] of the UTF-8 text in `path`. Raises `UsageError` for a file that holds none."""
    text = read_text(Path(path), option)
    check_words(text)
    ids = read_backend(bundle).encode(text).ids if text.strip() else []
    if not ids:
        raise UsageError(f"{option} {path}: holds no text. Give some pages of it.")
    return np.array(ids, np.int64)


def chunk_feeds(bundle: Bundle, ids: Integers) -> dict[str, Array]:
    """Input name -> array, to run the texts `ids` [batch, tokens] from their first token on, all logits wanted.

    The caches have as many slots as there are tokens, and share one array of zeros, which is only read. A graph that
    drafts does so after one token of every `DRAFTED_EVERY`, so that most of what runs is text; no token exits early.
    """
    decoder = decoder_of(bundle)
    origins = np.tile(np.arange(0, ids.shape[1], DRAFTED_EVERY), (len(ids), 1))
    feeds = step_feeds(decoder, ids, draft_indices=origins)
    return feeds | empty_caches(bundle.manifest.inputs, len(ids), feeds[ATTENTION_MASK.name].shape[2])
