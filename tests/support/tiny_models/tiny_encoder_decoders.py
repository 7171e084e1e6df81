"""Small random encoder-decoders of every family, as transformers saves them, with a tokenizer of single bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_decoders import END, VOCABULARY, write_byte_tokenizer

PADDING = 260  # a token that is missing in the tokenizer, as padding is not text
SIZES: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_heads": 4,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 14,
}
# Family -> the class of transformers, and its configuration besides the sizes.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", {"feed_forward_proj": "relu"}),
    "mt5": ("MT5", {"feed_forward_proj": "gated-gelu"}),
    "umt5": ("UMT5", {"feed_forward_proj": "gated-gelu"}),
}


def save_encoder_decoder(folder: Path, family: str, untied: bool = False, **options: Any) -> Path:
    """Write a checkpoint of `family` into `folder`, with weights large enough for varied text, and return it.

    `untied`: with a separate head, as in T5 since version 1.1.
    """
    import torch
    import transformers

    name, given = FAMILIES[family]
    tokens = {"vocab_size": VOCABULARY, "eos_token_id": END, "pad_token_id": PADDING}
    tokens["decoder_start_token_id"] = PADDING
    if untied:
        given = {**given, "tie_word_embeddings": False}
    config = getattr(transformers, f"{name}Config")(**{**tokens, **SIZES, **given, **options})
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("relative_attention_bias.weight"):
                parameter.mul_(8)
            elif parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) / 4)
        if untied:
            model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, config.d_model))
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder
