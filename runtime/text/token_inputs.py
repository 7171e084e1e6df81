"""The inputs of a decoder's validation: chunks of a text, or arrays of token ids from a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.files.hashes import sha256
from intaglio.runtime.engines.engine import Array, check_arrays
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.text.chunks import chunk_batches, chunk_feeds, load_chunks
from intaglio.runtime.text.inputs import InputsUsed, load_inputs, read_arrays
from intaglio.runtime.text.tokenizer import read_backend
from intaglio.samples.sentences import sentences

TOKENS = 64  # per piece of text: the logits of every token are kept, one number per vocabulary entry


def load_token_inputs(
    bundle: Bundle, data: str | Path | None, samples: int, batch_size: int, option: str = "--data"
) -> tuple[list[dict[str, Array]], InputsUsed]:
    """Load batches of feeds for the decoder in `bundle`, with their origin.

    `data` is a UTF-8 text file, cut into chunks of `TOKENS` tokens, an .npz file with `input_ids` int64
    [sequences, tokens] or with every input, or None for the sentences that ship with intaglio. Raises `UsageError`
    for a file without inputs, `EngineError` for arrays that do not fit.
    """
    if data is None:
        text = "\n".join(sentences())
        ids = np.array(read_backend(bundle).encode(text).ids, np.int64)
        source, digest = "the sentences that ship with intaglio", hashlib.sha256(text.encode()).hexdigest()
        return chunk_batches(bundle, ids, samples, batch_size, TOKENS, source, digest)
    path = Path(data)
    if path.suffix != ".npz":
        return load_chunks(bundle, path, samples, batch_size, option, TOKENS)
    arrays = read_arrays(path, option)
    if set(arrays) != {"input_ids"}:
        return load_inputs(bundle, path, samples, batch_size, option)
    return _feeds(bundle, path, arrays["input_ids"], samples, batch_size, option)


def _feeds(
    bundle: Bundle, path: Path, ids: Array, samples: int, batch_size: int, option: str
) -> tuple[list[dict[str, Array]], InputsUsed]:
    decoder = decoder_of(bundle)
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer) or not ids.size:
        raise UsageError(f"{option} {path}: input_ids are {ids.dtype} {ids.shape}, expected int64 [sequences, tokens].")
    if ids.min() < 0 or ids.max() >= decoder.vocab_size:
        raise UsageError(f"{option} {path}: ids {ids.min()} to {ids.max()}, expected 0 to {decoder.vocab_size - 1}.")
    used = ids[:samples].astype(np.int64)
    feeds = [chunk_feeds(bundle, used[start : start + batch_size]) for start in range(0, len(used), batch_size)]
    check_arrays(tuple(bundle.manifest.inputs), bundle.manifest.axes, feeds[0])
    return feeds, InputsUsed(str(path), sha256(path), len(used), len(ids), len(feeds))
