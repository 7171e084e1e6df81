"""Decoders as encoders of sentences: the families whose hidden states sentence-transformers folders pool.

Their token attends to those before it, all positions are computed at once, and there is no cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from intaglio.exporters.encoders.family import EncoderFamily
from intaglio.exporters.files.config import integer

DEFAULT_WINDOW = 4096  # of transformers, where config.json does not mention one


def _window(config: Mapping[str, Any]) -> int | None:
    """The sliding window of a config.json; null: none."""
    return None if config.get("sliding_window", 0) is None else integer(config, "sliding_window", 1, DEFAULT_WINDOW)


def _window_if_used(config: Mapping[str, Any]) -> int | None:
    return _window(config) if config.get("use_sliding_window", False) else None


LLAMA = EncoderFamily(
    model_type="llama",
    architecture="LlamaModel",
    tasks={"LlamaModel": "encode"},
    inputs=("input_ids", "attention_mask"),
    max_length=lambda config: integer(config, "max_position_embeddings", 1),
    blocks="layers",
    has_pooler=False,
    causal=True,
)
FAMILIES = (
    replace(
        LLAMA,
        model_type="gpt2",
        architecture="GPT2Model",
        tasks={"GPT2Model": "encode"},
        max_length=lambda config: integer(config, "n_positions", 1),
        blocks="h",
    ),
    LLAMA,
    replace(LLAMA, model_type="mistral", architecture="MistralModel", tasks={"MistralModel": "encode"}, window=_window),
    *(
        replace(
            LLAMA, model_type=name.lower(), architecture=f"{name}Model", tasks={f"{name}Model": "encode"}, window=window
        )
        for name, window in (("Qwen2", _window_if_used), ("Qwen3", _window_if_used))
    ),
)
