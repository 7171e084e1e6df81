"""The step contract: the inputs and outputs of a decoder's graph (names, axes, dtypes, meaning), and its feeds.

A step appends tokens to the sequences of a batch. The graph writes their keys and values into the caches, which are
inputs (past) and outputs (present) of the same shape, from the slots `write_start` on, and returns logits after some of
the tokens. Exporters write graphs by this contract; checks, perplexity and sessions run them by it. docs/bundle.md
documents it for users.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle, Decoder, TensorSpec
from intaglio.bundle.image_records import EMBEDDINGS
from intaglio.errors import BundleError
from intaglio.networks.early_exit import NEVER
from intaglio.runtime.engines.memory import Array
from intaglio.runtime.sessions.draft_inputs import draft_mask, drafted
from intaglio.runtime.sessions.masks import fill_mask, seen_among

Integers = npt.NDArray[np.int64]

# Axes.
BATCH = "batch"  # sequences
TOKENS = "tokens"  # appended tokens, of the longest row
CAPACITY = "capacity"  # slots of a cache
WANTED = "positions_wanted"  # tokens whose logits are returned
DRAFTING = "drafting"  # tokens to draft after, in a graph that drafts
DRAFTED = "drafted"  # pseudo states of hidden transfer: drafts · drafting, grouped by step
SOURCE = "source"  # tokens of the encoder's input
IMAGE_TOKENS = "image_tokens"  # image embeddings of a step, at least 1, in a graph that reads images

# Inputs of every decoder, in the graph's order; then those of some decoders; then the caches.
INPUT_IDS = TensorSpec("input_ids", "int64", (BATCH, TOKENS))
POSITIONS = TensorSpec("positions", "int64", (BATCH, TOKENS))  # positions of the tokens in their sequences
ATTENTION_MASK = TensorSpec("attention_mask", "bool", (BATCH, TOKENS, CAPACITY))  # the slots that a token attends to
WRITE_START = TensorSpec("write_start", "int64", (BATCH,))  # the slot of a row's first token
LOGIT_INDICES = TensorSpec("logit_indices", "int64", (BATCH, WANTED))  # the tokens whose logits are returned
STEP = (INPUT_IDS, POSITIONS, ATTENTION_MASK, WRITE_START, LOGIT_INDICES)

DRAFT_INDICES = TensorSpec("draft_indices", "int64", (BATCH, DRAFTING))  # the tokens to draft after
DRAFT_POSITIONS = TensorSpec("draft_positions", "int64", (BATCH, DRAFTED))  # positions of pseudo states
DRAFT_MASK = TensorSpec("draft_mask", "bool", (BATCH, DRAFTED, CAPACITY))  # the slots that a pseudo state attends to
EXIT_THRESHOLDS = TensorSpec("exit_thresholds", "float32", (BATCH,))  # cosines above which a token exits
SOURCE_IDS = TensorSpec("source_ids", "int64", (BATCH, SOURCE))  # of the encoder
SOURCE_MASK = TensorSpec("source_mask", "bool", (BATCH, SOURCE))  # false at padding

# Outputs. The logits of all kinds end in the vocabulary: see `logits_spec`.
LOGITS = "logits"  # [batch, positions_wanted, vocab]
EXIT_LOGITS = "exit_logits"  # the same for the early exit
DRAFT_LOGITS = "draft_logits"  # [batch, drafting, drafts, vocab]: for the tokens after the next one
# Of some heads of a decoder that attends to a source, how much each token attends to each of its positions.
ALIGNMENT = "alignment_weights"  # [batch, heads, tokens, source]
BLOCKS_RUN = TensorSpec("blocks_run", "int64", (BATCH, WANTED))  # blocks that computed a token

KINDS = ("key", "value")
PAST, PRESENT, CROSS = "past_", "present_", "cross_"


def cache_names(layers: int) -> list[str]:
    """The caches of the first `layers` blocks, without `PAST` or `PRESENT`: "key_0", "value_0", "key_1", ..."""
    return [f"{kind}_{index}" for index in range(layers) for kind in KINDS]


def cache_axes(decoder: Decoder) -> tuple[int | str, ...]:
    """The axes of a cache; the keys and values of a token are in one slot."""
    return BATCH, decoder.kv_heads, CAPACITY, decoder.head_dim


def cross_axes(decoder: Decoder) -> tuple[int | str, ...]:
    """The axes of the keys and values of a source, `CROSS` + a cache's name."""
    return BATCH, decoder.kv_heads, SOURCE, decoder.head_dim


def image_embeddings_spec(width: int) -> TensorSpec:
    """The input of a decoder that reads images: row i is what the token id `vocab_size` + i of the step stands for."""
    return TensorSpec(EMBEDDINGS, "float32", (IMAGE_TOKENS, width))


def logits_spec(name: str, decoder: Decoder) -> TensorSpec:
    """The output `LOGITS`, `EXIT_LOGITS` or `DRAFT_LOGITS` of a decoder."""
    rows: tuple[int | str, ...] = (DRAFTING, decoder.drafts) if name == DRAFT_LOGITS else (WANTED,)
    return TensorSpec(name, "float32", (BATCH, *rows, decoder.vocab_size))


def whole_outputs(decoder: Decoder) -> list[str] | None:
    """The outputs that a session of the whole model uses; None: all outputs of the graph."""
    return [LOGITS, *present_names(len(decoder.layer_caches))] if decoder.exit_layer else None


def exit_outputs(decoder: Decoder) -> list[str]:
    """The outputs that a session of the blocks before the early exit uses."""
    caches = min(decoder.exit_layer, len(decoder.layer_caches))  # later blocks may share those of earlier ones
    return [EXIT_LOGITS, *present_names(caches)]


def present_names(layers: int) -> list[str]:
    """The cache outputs of the first `layers` blocks."""
    return [PRESENT + name for name in cache_names(layers)]


def decoder_of(bundle: Bundle) -> Decoder:
    """The decoder of a bundle. Raises `BundleError` if the bundle has none."""
    if bundle.manifest.decoder is None or bundle.manifest.encoder is not None:
        raise BundleError(
            f"bundle {bundle.path}: its task is {bundle.manifest.task or 'unknown'!r}, not 'generate'. "
            "Export a decoder, such as GPT2LMHeadModel or LlamaForCausalLM."
        )
    return bundle.manifest.decoder


def step_feeds(
    decoder: Decoder,
    input_ids: Integers,
    lengths: npt.ArrayLike | None = None,
    capacity: int | None = None,
    draft_indices: npt.ArrayLike | None = None,
) -> dict[str, Array]:
    """The feeds of a step without branches, with logits of every token, in the graph's order up to the caches.

    input_ids      [batch, tokens]
    lengths        [batch], cached tokens of each sequence; by default 0
    capacity       slots of the caches; by default as many as the step needs
    draft_indices  [batch, drafting], the tokens to draft after, in a graph that drafts; by default all

    No token exits early. The caches (`empty_caches`) and the encoder's outputs are not included.
    """
    batch, tokens = input_ids.shape
    every = np.tile(np.arange(tokens), (batch, 1))
    start = np.zeros(batch, np.int64) if lengths is None else np.array(lengths, np.int64)
    origins = every if draft_indices is None else np.array(draft_indices, np.int64)
    behind = drafted(decoder, origins.shape[1])
    slots = int(start.max()) + tokens + behind if capacity is None else capacity
    places = start[:, None] + every
    mask = np.zeros((batch, tokens, slots), np.bool_)
    fill_mask(mask, places, np.arange(slots), decoder.sliding_window)
    feeds: dict[str, Array] = {
        INPUT_IDS.name: np.ascontiguousarray(input_ids),
        POSITIONS.name: np.minimum(places, decoder.max_positions - 1),
        ATTENTION_MASK.name: mask,
        WRITE_START.name: start,
        LOGIT_INDICES.name: every,
    }
    if decoder.drafts:
        feeds[DRAFT_INDICES.name] = origins
    if behind:
        seen = np.broadcast_to(seen_among(tokens, None, decoder.sliding_window), (batch, tokens, tokens))
        feeds[DRAFT_POSITIONS.name], feeds[DRAFT_MASK.name] = draft_mask(
            places, seen, start, origins, decoder.drafts, decoder.sliding_window, slots
        )
    if decoder.saturation_exits:
        feeds[EXIT_THRESHOLDS.name] = np.full(batch, NEVER, np.float32)
    return feeds


def empty_caches(inputs: Iterable[TensorSpec], batch: int, capacity: int) -> dict[str, Array]:
    """Caches of zeros for the cache inputs, and image embeddings of none if there are such.

    Those of the same shape share one array, which must only be read.
    """
    lengths = {BATCH: batch, CAPACITY: capacity, IMAGE_TOKENS: 1}
    zeros: dict[tuple[str, Sequence[int | str]], Array] = {}
    caches: dict[str, Array] = {}
    for spec in inputs:
        if spec.name.startswith(PAST) or spec.name == EMBEDDINGS:
            shape = [axis if isinstance(axis, int) else lengths[axis] for axis in spec.shape]
            caches[spec.name] = zeros.setdefault((spec.dtype, spec.shape), np.zeros(shape, spec.dtype))
    return caches
