"""Small random checkpoints of every causal language model of `transformers`, by its model_type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_decoders import END, VOCABULARY, write_byte_tokenizer

LAYERS = 4
# Sizes by the names that configurations give them; a configuration gets those that it has.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "n_embd": 32,
    "d_model": 32,
    "dim": 32,
    "embed_dim": 32,
    "intermediate_size": 48,
    "ffn_dim": 48,
    "n_inner": 48,
    "ffn_hidden_size": 48,
    "expert_ffn_hidden_size": 16,
    "num_hidden_layers": LAYERS,
    "n_layer": LAYERS,
    "n_layers": LAYERS,
    "num_layers": LAYERS,
    "decoder_layers": LAYERS,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "n_ctx": 64,
    "max_seq_len": 64,
    "sliding_window": 8,
    "attention_chunk_size": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "n_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": END,
}


def make_config(model_type: str, **options: Any) -> Any:
    """A small configuration of a model type."""
    import transformers

    kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING[model_type]
    default = kind()
    sizes = {name: value for name, value in SIZES.items() if hasattr(default, name)}
    return kind(**{**sizes, **options})


def save_family(folder: Path, model_type: str, **options: Any) -> Path:
    """Write a checkpoint of `model_type` into `folder`, with weights large enough for varied text, and return it."""
    import torch
    import transformers

    config = make_config(model_type, **options)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim <= 1 or "norm" in name.lower():
                parameter.add_(torch.rand(parameter.shape, generator=random) * 0.5 - 0.1)
            elif VOCABULARY in (parameter.shape[0], parameter.shape[-1]):
                parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.5)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=random) * (1.2 / parameter.shape[-1] ** 0.5))
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder
