"""Check an exported decoder against the source model, in a separate process; see `check`.

The source model runs each sequence alone and in one pass, without a cache. The graph runs the sequences in one batch
of mixed lengths, through the cache: first a prefill, then steps of one, two and three tokens, then the rest in a step.
So the check finds bugs in positions, masks, padding and the cache, as well as in the weights, and reads the weights of
a large model seldom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Decoder
from intaglio.bundle.image_records import EMBEDDINGS
from intaglio.exporters.reference.check import Checked, Floats, answer, check_sequences, open_checked
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.early_exit import EarlyExitSession
from intaglio.runtime.sessions.step import (
    ATTENTION_MASK,
    DRAFT_LOGITS,
    KINDS,
    LOGITS,
    PAST,
    empty_caches,
    exit_outputs,
    step_feeds,
    whole_outputs,
)
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.samples.sentences import sentences

Batch = list[list[int]]  # token ids of each sequence
TEXTS, LENGTHS, LONGEST = 8, 4, 24  # sequences, their different lengths, and tokens of the longest
AFTER_PAST = (1, 2, 3, 4)  # token ids
BEYOND = 16  # tokens beyond windows and other borders in the cache of `after_past`
PAST_BYTES = 1 << 30  # of that cache
STEPS = (1, 2, 3)  # tokens per step, after the first half of the shortest sequence and before the rest


def token_batch(folder: Path, decoder: Decoder) -> Batch:
    """Real sentences as token ids, from the tokenizer in `folder`, of mixed lengths."""
    tokenizer = Tokenizer(folder / TOKENIZER, ["input_ids"], None).backend
    longest = min(LONGEST, decoder.max_positions)
    encoded = (tokenizer.encode(text).ids for text in sentences())
    texts = [ids for ids in encoded if len(ids) > 1][:TEXTS]
    return [ids[: max(longest - 3 * (index % LENGTHS), 2)] for index, ids in enumerate(texts)]


def check_decoder(
    model: Path,
    decoder: Decoder,
    bounds: Bounds,
    batch: Batch,
    expected: Mapping[str, list[Floats]],
    cuts: Sequence[str],
    past: int = 0,
) -> dict[str, Checked]:
    """Run the ONNX file `model` on `batch` and compare its outputs with `expected`; `cuts` as in `open_checked`.

    `expected` maps the name of each output to float32 [tokens, ..., vocab] for each sequence in order.
    With `past`, the logits of `after_past` come last.
    """
    return check_sequences("decoders.check", model, (decoder, batch, cuts, past), expected, bounds)


def stepwise_outputs(
    model: Path, decoder: Decoder, batch: Batch, cuts: Sequence[str] = (), early: bool = False
) -> dict[str, list[Floats]]:
    """The outputs of each sequence of a batch, by name, through the cache; `early`: those of the early exit alone."""
    with ExitStack() as opened:
        whole = open_checked(model, cuts, whole_outputs(decoder))
        session = opened.enter_context(DecoderSession(whole, decoder, len(batch)))
        if early:
            first = open_checked(model, cuts, exit_outputs(decoder))
            session = opened.enter_context(EarlyExitSession(first, session))
        return run_in_pieces(session, batch)


def run_in_pieces(session: DecoderSession, batch: Batch) -> dict[str, list[Floats]]:
    """Append the sequences to the rows of a session in `pieces`, the first of them as a prefill.

    Returns logits [tokens, vocab] for each sequence under the session's name for them; and under `DRAFT_LOGITS`, if it
    drafts, [tokens, drafts, vocab]: each piece overwrites the slots in which the previous one drafted.
    """
    collected: dict[str, list[list[Floats]]] = {}
    for piece in pieces([len(text) for text in batch]):
        counts = np.array([len(text[piece]) for text in batch])
        ids = np.zeros((len(batch), int(counts.max())), np.int64)
        for row, text, count in zip(ids, batch, counts, strict=True):
            row[:count] = text[piece]
        every = np.tile(np.arange(ids.shape[1]), (len(batch), 1))
        outputs: dict[str, Sequence[Floats] | Floats] = {session.logits_name: session.step(ids, counts, every)}
        if session.decoder.drafts:
            outputs[DRAFT_LOGITS] = [np.asarray(each) for each in session.draft_logits]
        for name, arrays in outputs.items():
            kept = collected.setdefault(name, [[] for _ in batch])
            for parts, array, count in zip(kept, arrays, counts, strict=True):
                parts.append(array[:count])
    return {name: [np.concatenate(parts) for parts in kept] for name, kept in collected.items()}


def after_past(model: Path, decoder: Decoder, past: int, cuts: Sequence[str] = ()) -> Floats:
    """The logits [tokens, vocab] of the tokens `AFTER_PAST` after `past` others, which the cache has at random.

    So the window of a layer is crossed without computing as many tokens.
    """
    with open_checked(model, cuts, whole_outputs(decoder)) as engine:
        feeds = step_feeds(decoder, np.array([AFTER_PAST]), [past])
        capacity = feeds[ATTENTION_MASK.name].shape[2]
        dtypes = {spec.name: spec.dtype for spec in engine.inputs}
        feeds |= empty_caches([spec for spec in engine.inputs if spec.name == EMBEDDINGS], 1, capacity)
        for index, pair in enumerate(random_past(decoder, past)):
            for kind, array in zip(KINDS, pair, strict=True):
                name = f"{PAST}{kind}_{index}"
                room = np.zeros((*array.shape[:2], capacity, array.shape[3]), dtypes[name])
                room[:, :, :past] = array
                feeds[name] = room
        logits: Floats = engine.run(feeds)[LOGITS][0]
        return logits


def past_tokens(decoder: Decoder, borders: Mapping[str, int], notes: list[str]) -> int:
    """Tokens in the cache of `after_past`: more than the longest of `borders`, if their cache is not too large.

    `borders`: name -> tokens after which a layer may change, such as a window. Those not crossed go into `notes`.
    """
    token = sum(4 * cache.heads * (cache.key_dim + cache.value_dim) for cache in decoder.layer_caches)  # bytes
    room = max(decoder.max_positions - len(AFTER_PAST), 0)
    past = min(max([0, *borders.values()]) + BEYOND, room, PAST_BYTES // token)
    notes += [
        f"the check has caches of {past} tokens, so it does not cross {name} = {border}"
        for name, border in borders.items()
        if past < min(border, room)
    ]
    return past


def random_past(decoder: Decoder, past: int) -> Iterator[tuple[Floats, Floats]]:
    """Keys and values [1, heads, past, dim] of each layer that has a cache, always the same; exact in float16."""
    random = np.random.default_rng(0)
    for cache in decoder.layer_caches:
        keys, values = (
            random.standard_normal((1, cache.heads, past, dim), np.float32).astype(np.float16).astype(np.float32)
            for dim in (cache.key_dim, cache.value_dim)
        )
        yield keys, values


def pieces(lengths: Sequence[int]) -> list[slice]:
    """The pieces into which sequences of `lengths` tokens are cut: half of the shortest, `STEPS`, the rest."""
    cuts = [0, *accumulate(STEPS, initial=(min(lengths) + 1) // 2), max(lengths)]
    return [slice(start, stop) for start, stop in pairwise(cuts) if start < min(stop, max(lengths))]


def _run(model: Path, request: tuple[Decoder, Batch, list[str], int]) -> Iterator[dict[str, list[Floats]]]:
    decoder, batch, cuts, past = request
    for early in (False, True) if decoder.exit_layer else (False,):
        yield stepwise_outputs(model, decoder, batch, cuts, early)
    if past:
        yield {LOGITS: [after_past(model, decoder, past, cuts)]}


if __name__ == "__main__":
    answer(tuple[Decoder, Batch, list[str], int], _run)
