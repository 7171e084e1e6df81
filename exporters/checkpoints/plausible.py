"""Reject config.json values that are impossible for a checkpoint with these weights, before they are used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint

# The keys that different families use for the same quantity.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")
LENGTHS = (
    "vocab_size", "type_vocab_size", "hidden_size", "n_embd", "dim", "d_model", "word_embed_proj_dim",
    "intermediate_size", "n_inner", "hidden_dim", "ffn_dim", "d_ff", "head_dim", "d_kv", "num_attention_heads",
    "num_key_value_heads", "n_head", "n_heads", "num_heads", "relative_attention_num_buckets", "n_positions",
)  # fmt: skip
BY_LAYER = ("intermediate_size", "num_attention_heads", "num_heads")  # of these, some have one for each layer or stage
POSITIONS = ("max_position_embeddings", "relative_attention_max_distance", "sliding_window")
MOST_POSITIONS = 1 << 30  # rotary and relative positions have no weight to compare with


def check_config(checkpoint: Checkpoint, learned_positions: bool, unread: Collection[str] = ()) -> None:
    """Raise `SourceError` for a value that is no number, more layers than weights, or a length beyond every weight.

    Such a number would otherwise cost a lot of time first: `transformers` creates lists of that many layers. With
    `learned_positions`, the model has a weight with one row per position. It does not read the lengths `unread`.
    """
    shapes = checkpoint.shapes()
    longest = max((length for shape in shapes for length in shape), default=0)
    _check(checkpoint.config, LAYERS, len(shapes), "the number of weights")
    lengths = (*LENGTHS, *POSITIONS) if learned_positions else LENGTHS
    read = [key for key in lengths if key not in unread]
    _check(checkpoint.config, read, longest, "the longest axis of any weight")
    _check(checkpoint.config, POSITIONS, MOST_POSITIONS, "the limit for any model")


def _check(config: Mapping[str, Any], keys: Iterable[str], most: int, what: str) -> None:
    for key in keys:
        value = config.get(key)
        if key in BY_LAYER and isinstance(value, list) and value and all(isinstance(each, int) for each in value):
            value = max(value)
        if not isinstance(value, int | float | None):
            raise SourceError(f"config.json: {key} is {str(value)[:40]!r}, expected a number. Fix it.")
        if value is not None and value > most:
            raise SourceError(f"config.json: {key} is {value}, expected at most {most} ({what}). Fix it.")
