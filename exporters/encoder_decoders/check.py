"""Check an exported encoder-decoder against the source model, in a separate process; see `check`.

The source model reads each sequence alone, and its decoder runs in one pass, without a cache. The graphs run the
sequences in one batch of mixed lengths on both sides, and the decoder in steps through the cache, as in
`decoders.check`. So the check finds bugs in position biases, masks, padding and the cache, as well as in the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import MODEL, Decoder, Encoder
from intaglio.exporters.decoders.check import LENGTHS, LONGEST, TEXTS, run_in_pieces
from intaglio.exporters.reference.check import Checked, Floats, answer, check_sequences, open_checked
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession
from intaglio.runtime.sessions.step import CROSS, KINDS
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.samples.sentences import sentences


class Pair(msgspec.Struct):
    """The token ids of a source sequence and of a target sequence, which begins with the decoder's start token."""

    source: list[int]
    written: list[int]


def pair_batch(folder: Path, encoder: Encoder) -> list[Pair]:
    """Real sentences, from the tokenizer in `folder`, of mixed lengths on both sides."""
    tokenizer = Tokenizer(folder / TOKENIZER, ["input_ids"], None).backend
    texts = [ids for ids in (tokenizer.encode(text).ids for text in sentences()) if len(ids) > 1][: TEXTS + 1]
    pairs = []
    for index, (source, written) in enumerate(pairwise(texts)):
        place = index % LENGTHS
        source, written = source[: max(LONGEST - 5 * place, 2)], written[: max(LONGEST - 3 * (LENGTHS - place), 2)]
        pairs.append(Pair(source, [encoder.decoder_start_token_id, *written]))
    return pairs


def check_encoder_decoder(
    folder: Path,
    decoder: Decoder,
    encoder: Encoder,
    bounds: Bounds,
    batch: list[Pair],
    expected: Mapping[str, list[Floats]],
    cuts: Sequence[str],
) -> dict[str, Checked]:
    """Run the two ONNX files in `folder` on `batch`; compare with `expected`; `cuts` as in `open_checked`.

    `expected` holds the outputs of `outputs_of` for every pair, in order.
    """
    return check_sequences("encoder_decoders.check", folder, (decoder, encoder, batch, cuts), expected, bounds)


def outputs_of(
    folder: Path, decoder: Decoder, encoder: Encoder, batch: list[Pair], cuts: Sequence[str] = ()
) -> dict[str, list[Floats]]:
    """The outputs of the graphs in `folder` by name, for every pair of a batch, float32.

    cross_key, cross_value  [layers, heads, tokens of the source, head_dim]
    logits                  [tokens written, vocab], through the cache
    """
    engines = open_checked(folder / MODEL, cuts), open_checked(folder / encoder.file, cuts)
    with EncoderDecoderSession(*engines, decoder, encoder, len(batch)) as session:
        session.encode([pair.source for pair in batch])
        outputs = run_in_pieces(session, [pair.written for pair in batch])
        cross_kv = [session.cross_kv(row) for row in range(len(batch))]
        for kind in KINDS:
            names = [f"{CROSS}{kind}_{index}" for index in range(decoder.layers)]
            outputs[CROSS + kind] = [np.stack([row[name][:] for name in names]).astype(np.float32) for row in cross_kv]
        return outputs


def _run(folder: Path, request: tuple[Decoder, Encoder, list[Pair], list[str]]) -> Iterator[dict[str, list[Floats]]]:
    decoder, encoder, batch, cuts = request
    yield outputs_of(folder, decoder, encoder, batch, cuts)


if __name__ == "__main__":
    answer(tuple[Decoder, Encoder, list[Pair], list[str]], _run)
