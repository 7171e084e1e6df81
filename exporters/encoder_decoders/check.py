"""Check an exported encoder-decoder against the source model, in a separate process; see `check`.

The source model reads each sequence alone, and its decoder runs in one pass, without a cache. The graphs run the
sequences in batches of mixed lengths on both sides, and the decoder in steps through the cache, as in
`decoders.check`. So the check finds bugs in position biases, masks, padding and the cache, as well as in the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.accuracy.bounds import Bounds
from intaglio.bundle.bundle import MODEL, Decoder, Encoder
from intaglio.exporters.check import Checked, compared, open_checked, run_check
from intaglio.exporters.decoders.check import LONGEST, TEXTS, TOGETHER, pieces
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.engine import Array, Engine
from intaglio.runtime.sessions.step import LOGITS, SOURCE_IDS, SOURCE_MASK, empty_caches, next_caches, step_feeds
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.samples.sentences import sentences

Floats = npt.NDArray[np.float32]
OUTPUTS = ("cross_key", "cross_value", LOGITS)  # all layers together, and all tokens


class Pair(msgspec.Struct):
    """The token ids of a source sequence and of a target sequence, which begins with the decoder's start token."""

    source: list[int]
    written: list[int]


def pair_batches(folder: Path, encoder: Encoder) -> list[list[Pair]]:
    """Real sentences, from the tokenizer in `folder`, in batches of mixed lengths on both sides."""
    tokenizer = Tokenizer(folder / TOKENIZER, ["input_ids"], None).backend
    texts = [ids for ids in (tokenizer.encode(text).ids for text in sentences()) if len(ids) > 1][: TEXTS + 1]
    pairs = []
    for index, (source, written) in enumerate(pairwise(texts)):
        place = index % TOGETHER
        source, written = source[: max(LONGEST - 5 * place, 2)], written[: max(LONGEST - 3 * (TOGETHER - place), 2)]
        pairs.append(Pair(source, [encoder.decoder_start_token_id, *written]))
    return [pairs[start : start + TOGETHER] for start in range(0, len(pairs), TOGETHER)]


def check_encoder_decoder(
    folder: Path,
    decoder: Decoder,
    encoder: Encoder,
    bounds: Bounds,
    batches: list[list[Pair]],
    expected: list[dict[str, Floats]],
    cuts: Sequence[str],
) -> dict[str, Checked]:
    """Run the two ONNX files in `folder` on `batches`; compare with `expected`; `cuts` as in `open_checked`.

    `expected` holds the arrays of `outputs_of` for every pair, in order.
    """
    with scratch_directory("check") as scratch:
        (scratch / "texts.json").write_bytes(msgspec.json.encode([decoder, encoder, batches, cuts]))
        run_check("encoder_decoders.check", folder, scratch)
        with np.load(scratch / "outputs.npz", allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in OUTPUTS}
    return {name: compared(found[name], joined(expected, name), bounds) for name in OUTPUTS}


def joined(outputs: list[dict[str, Floats]], name: str) -> Floats:
    """Output `name` of all pairs, flattened to rows along its last axis."""
    return np.concatenate([arrays[name].reshape(-1, arrays[name].shape[-1]) for arrays in outputs])


def outputs_of(
    folder: Path, decoder: Decoder, encoder: Encoder, batch: list[Pair], cuts: Sequence[str] = ()
) -> list[dict[str, Floats]]:
    """The outputs of the graphs in `folder` for every pair of a batch, float32.

    cross_key, cross_value  [layers, heads, tokens of the source, head_dim]
    logits                  [tokens written, vocab], through the cache
    """
    longest = max(len(pair.source) for pair in batch)
    ids = np.full((len(batch), longest), encoder.pad_token_id, np.int64)
    mask = np.zeros((len(batch), longest), np.bool_)
    for row, pair in enumerate(batch):
        ids[row, : len(pair.source)] = pair.source
        mask[row, : len(pair.source)] = True
    with open_checked(folder / encoder.file, cuts) as engine:
        crossed = engine.run({SOURCE_IDS.name: ids, SOURCE_MASK.name: mask})
    with open_checked(folder / MODEL, cuts) as engine:
        logits = _stepwise_logits(
            engine, decoder, {SOURCE_MASK.name: mask, **crossed}, [pair.written for pair in batch]
        )
    found = []
    for row, pair in enumerate(batch):
        read = slice(len(pair.source))
        keys, values = (
            np.stack([crossed[f"{kind}_{index}"][row, :, read] for index in range(decoder.layers)])
            for kind in ("cross_key", "cross_value")
        )
        found.append({"cross_key": keys.astype(np.float32), "cross_value": values.astype(np.float32), **logits[row]})
    return found


def _stepwise_logits(
    engine: Engine, decoder: Decoder, read: Mapping[str, Array], texts: list[list[int]]
) -> list[dict[str, Floats]]:
    """The logits of every target sequence of a batch, run in pieces of mixed lengths."""
    cut = pieces([len(text) for text in texts])
    longest = max(piece.stop - piece.start for piece in cut)
    capacity = max(map(len, texts)) + longest
    collected: list[list[Floats]] = [[] for _ in texts]
    caches = empty_caches(engine.inputs, len(texts), capacity)
    lengths: npt.NDArray[np.int64] = np.zeros(len(texts), np.int64)
    for piece in cut:
        real = [text[piece] for text in texts]
        ids = np.zeros((len(texts), max(map(len, real))), np.int64)
        for row, tokens in zip(ids, real, strict=True):
            row[: len(tokens)] = tokens
        outputs = engine.run({**step_feeds(decoder, ids, lengths, capacity), **caches, **read})
        caches = next_caches(outputs)
        for rows, logits, tokens in zip(collected, outputs[LOGITS], real, strict=True):
            rows.append(logits[: len(tokens)].astype(np.float32))
        lengths = lengths + np.array([len(tokens) for tokens in real])
    return [{LOGITS: np.concatenate(rows)} for rows in collected]


def _run(folder: Path, scratch: Path) -> None:
    """The child process: write the outputs for every pair of texts.json, in order, to outputs.npz."""
    decoder, encoder, batches, cuts = msgspec.json.decode(
        (scratch / "texts.json").read_bytes(), type=tuple[Decoder, Encoder, list[list[Pair]], list[str]]
    )
    outputs = [arrays for batch in batches for arrays in outputs_of(folder, decoder, encoder, batch, cuts)]
    np.savez(scratch / "outputs.npz", allow_pickle=False, **{name: joined(outputs, name) for name in OUTPUTS})


if __name__ == "__main__":
    _run(Path(sys.argv[1]), Path(sys.argv[2]))
