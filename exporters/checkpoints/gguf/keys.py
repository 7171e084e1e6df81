"""The keys of a GGUF file that describe a model of transformers, as `configuration` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.gguf.architectures import ARCHITECTURES
from intaglio.exporters.checkpoints.gguf.configuration import (
    ARCHITECTURE,
    FREQUENCIES,
    ROPE,
    SCALING,
    WIDTHS,
    llama3_factors,
)

FLAVOURS = {"mistral": "llama", "mixtral": "llama"}  # model types whose files are of another's architecture
QUANTISATION = {"general.quantization_version": 2}  # of ggml's blocks
# Settings without consequence for the numbers that a model computes, or that a file has elsewhere.
ELSEWHERE = {
    "architectures",
    "model_type",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "_name_or_path",
    "use_cache",
    "initializer_range",
    "pretraining_tp",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "quantization_config",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "max_window_layers",
    "id2label",
    "label2id",
    "problem_type",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
}


def architecture_name(config: Any) -> str:
    """The architecture of GGUF for a configuration of transformers. Raises `SourceError` for one that it lacks."""
    kind = config.model_type
    found = next((name for name, known in ARCHITECTURES.items() if known.model_type == kind), FLAVOURS.get(kind))
    if found is None or ARCHITECTURES[found].stacked:
        known = sorted({each.model_type for each in ARCHITECTURES.values() if not each.stacked} | set(FLAVOURS))
        raise SourceError(
            f"--format gguf: no file of the model type {kind} is written, expected one of {', '.join(known)}. Write "
            "--format compressed-tensors, or convert the checkpoint with llama.cpp's own script."
        )
    return found


def model_keys(config: Any) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """The keys of the model, and the tensors that belong to them, float32. Raises `SourceError`.

    `config`: of transformers. What they do not express is found by `check_same`.
    """
    name = architecture_name(config)
    values: dict[str, Any] = {}
    for key, attribute in ARCHITECTURES[name].keys.items():
        value = getattr(config, attribute, None)
        if value is not None:
            values[key] = value
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values |= dict.fromkeys(WIDTHS, width)
    rotary = dict(config.rope_parameters)
    kind, theta = rotary.get("rope_type", "default"), rotary.get("rope_theta")
    if theta is None or kind not in ("default", "linear", "llama3", "yarn"):
        raise SourceError(
            f"--format gguf: a rotary embedding of the type {kind!r} is not written. Write --format compressed-tensors."
        )
    rotated = int(width * rotary.get("partial_rotary_factor", 1.0))
    base, dimensions, scaling, factor = ROPE
    values |= {base: float(theta), dimensions: rotated}
    tensors = {}
    if kind in ("linear", "yarn"):
        values |= {scaling: kind, factor: float(rotary["factor"])}
    if kind == "yarn":
        values[SCALING[0]] = rotary["original_max_position_embeddings"]
    if kind == "llama3":
        tensors[FREQUENCIES] = llama3_factors(rotary, theta, rotated).astype(np.float32)
    return {ARCHITECTURE: name, **QUANTISATION, **{f"{name}.{key}": each for key, each in values.items()}}, tensors


def check_same(expected: Any, found: Any) -> None:
    """Raise `SourceError` for a setting of `expected` that the configuration `found`, read back, has otherwise."""
    there = found.to_dict()
    for key, value in expected.to_dict().items():
        if key in ELSEWHERE or "dropout" in key or key.startswith("output_"):
            continue
        other = there.get(key, getattr(found, key, None))
        if not _equal(value, other):
            raise SourceError(
                f"--format gguf: {key} is {str(value)[:80]} in config.json, and a file of GGUF cannot say so: it would "
                f"be {str(other)[:80]}. Write --format compressed-tensors."
            )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_equal(one.get(key), other.get(key)) for key in {*one, *other})
    if isinstance(one, float) and isinstance(other, float | int):
        return bool(np.float32(one) == np.float32(other))
    return bool(one == other) or (other is None and one is False)  # a switch that the other class lacks
