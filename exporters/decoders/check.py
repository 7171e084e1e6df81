"""Check an exported decoder against the source model, in a separate process; see `check`.

The source model runs each sequence alone and in one pass, without a cache. The graph runs the sequences in batches of
mixed lengths, through the cache: first a prefill, then the rest in steps of one, two and three tokens. So the check
finds bugs in positions, masks, padding and the cache, as well as in the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.accuracy.bounds import Bounds
from intaglio.bundle.bundle import Decoder
from intaglio.exporters.check import Checked, compared, open_checked, run_check
from intaglio.exporters.decoders.draft_check import stepwise_drafts
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.early_exit import EarlyExitSession
from intaglio.runtime.sessions.step import DRAFT_LOGITS, EXIT_LOGITS, LOGITS, exit_outputs, whole_outputs
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.samples.sentences import sentences

Batch = list[list[int]]  # token ids of each sequence
Logits = npt.NDArray[np.float32]
TEXTS, TOGETHER, LONGEST = 8, 4, 24  # sequences in total, per batch, and tokens per sequence
STEPS = (1, 2, 3)  # tokens per step, repeated, after the first half of the shortest sequence


def token_batches(folder: Path, decoder: Decoder) -> list[Batch]:
    """Real sentences as token ids, from the tokenizer in `folder`, in batches of mixed lengths."""
    tokenizer = Tokenizer(folder / TOKENIZER, ["input_ids"], None).backend
    longest = min(LONGEST, decoder.max_positions)
    encoded = (tokenizer.encode(text).ids for text in sentences())
    texts = [ids for ids in encoded if len(ids) > 1][:TEXTS]
    cut = [ids[: max(longest - 3 * (index % TOGETHER), 2)] for index, ids in enumerate(texts)]
    return [cut[start : start + TOGETHER] for start in range(0, len(cut), TOGETHER)]


def check_decoder(
    model: Path,
    decoder: Decoder,
    bounds: Bounds,
    batches: list[Batch],
    expected: Mapping[str, list[Logits]],
    cuts: Sequence[str],
) -> dict[str, Checked]:
    """Run the ONNX file `model` on `batches` and compare its outputs with `expected`; `cuts` as in `open_checked`.

    `expected` maps the name of each output to float32 [tokens, ..., vocab] for each sequence of each batch in order.
    """
    with scratch_directory("check") as folder:
        (folder / "texts.json").write_bytes(msgspec.json.encode([decoder, batches, cuts]))
        run_check("decoders.check", model, folder)
        return {name: _compared(folder / f"{name}.npz", bounds, arrays) for name, arrays in expected.items()}


def _compared(file: Path, bounds: Bounds, expected: list[Logits]) -> Checked:
    with np.load(file, allow_pickle=False) as arrays:
        return compared(np.concatenate(list(arrays.values())), np.concatenate(expected), bounds)


def stepwise_logits(
    model: Path, decoder: Decoder, batch: Batch, cuts: Sequence[str] = (), early: bool = False
) -> list[Logits]:
    """The logits [tokens, vocab] of each sequence of a batch, through the cache; `early`: those of the early exit."""
    collected: list[list[Logits]] = [[] for _ in batch]
    with ExitStack() as opened:
        whole = open_checked(model, cuts, whole_outputs(decoder))
        session = opened.enter_context(DecoderSession(whole, decoder, len(batch)))
        if early:
            first = open_checked(model, cuts, exit_outputs(decoder))
            session = opened.enter_context(EarlyExitSession(first, session))
        for piece in pieces([len(text) for text in batch]):
            counts = np.array([max(0, min(piece.stop, len(text)) - piece.start) for text in batch])
            ids = np.zeros((len(batch), int(counts.max())), np.int64)
            for row, text in zip(ids, batch, strict=True):
                real = text[piece.start : piece.stop]
                row[: len(real)] = real
            every = np.tile(np.arange(ids.shape[1]), (len(batch), 1))
            logits = session.step(ids, counts, logit_indices=every)
            for rows, row, count in zip(collected, logits, counts, strict=True):
                rows.append(row[:count])
    return [np.concatenate(rows) for rows in collected]


def pieces(lengths: Sequence[int]) -> list[slice]:
    """The pieces into which sequences of `lengths` tokens are cut: half of the shortest, then by `STEPS`."""
    cuts = [0, (min(lengths) + 1) // 2]
    while cuts[-1] < max(lengths):
        cuts.append(cuts[-1] + STEPS[len(cuts) % len(STEPS)])
    return [slice(start, stop) for start, stop in pairwise(cuts)]


def _run(model: Path, folder: Path) -> None:
    """The child process: write each output, for all sequences of texts.json in order, to a file of its name."""
    decoder, batches, cuts = msgspec.json.decode(
        (folder / "texts.json").read_bytes(), type=tuple[Decoder, list[Batch], list[str]]
    )
    outputs: dict[str, list[Logits]] = {LOGITS: []}
    for batch in batches:
        if decoder.drafts:
            found = stepwise_drafts(model, decoder, batch, pieces([len(text) for text in batch]), cuts)
            outputs[LOGITS] += [logits for logits, _ in found]
            outputs.setdefault(DRAFT_LOGITS, []).extend(drafts for _, drafts in found)
        else:
            outputs[LOGITS] += stepwise_logits(model, decoder, batch, cuts)
        if decoder.exit_layer:
            outputs.setdefault(EXIT_LOGITS, []).extend(stepwise_logits(model, decoder, batch, cuts, early=True))
    for name, arrays in outputs.items():
        np.savez(folder / f"{name}.npz", *arrays, allow_pickle=False)


if __name__ == "__main__":
    _run(Path(sys.argv[1]), Path(sys.argv[2]))
