"""Small random checkpoints of the causal language models of `transformers`, by their model_type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_decoders import END, VOCABULARY, write_byte_tokenizer

LAYERS = 2
# Sizes by the names that configurations give them; a configuration gets those that it has.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embed_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "decoder_attention_heads"), 4
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", "q_lora_rank",
         "kv_lora_rank", "expert_ffn_hidden_size"),
        16,
    ),
    **dict.fromkeys(("n_shared_experts", "moe_num_shared_experts", "n_group", "topk_group"), 1),
    "first_k_dense_replace": 1,
    **dict.fromkeys(("head_dim", "qk_rope_head_dim", "qk_nope_head_dim"), 8),
    "v_head_dim": 12,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": END,
}  # fmt: skip
WINDOW_THEN_FULL = {"layer_types": ["sliding_attention", "full_attention"]}
ALL_HEADS = {"num_key_value_heads": 4}  # of latent attention
# What a type needs beside.
OPTIONS: dict[str, dict[str, Any]] = {
    "axk1": ALL_HEADS,
    "cohere2": WINDOW_THEN_FULL,
    "cwm": {"bos_token_id": 1, "pad_token_id": 0},
    "deepseek_v2": ALL_HEADS | {"topk_method": "greedy"},
    "deepseek_v3": ALL_HEADS,
    "exaone4": WINDOW_THEN_FULL,
    "gemma3_text": WINDOW_THEN_FULL,
    "gemma3n_text": WINDOW_THEN_FULL
    | {
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0] * LAYERS,
        "intermediate_size": [48] * LAYERS,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "head_dim": 8,
        "global_head_dim": 12,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
    },
    "glm4_moe_lite": ALL_HEADS,
    "gpt_oss": WINDOW_THEN_FULL,
    "granite": {
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.25,
    },
    **dict.fromkeys(
        ("lfm2", "lfm2_moe"),
        {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False}
        | {"num_dense_layers": 1},
    ),
    "llama4_text": {"no_rope_layers": [1, 0], "interleave_moe_layer_step": 2, "intermediate_size_mlp": 48},
    "minicpm3": ALL_HEADS,
    "modernbert-decoder": {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "cls_token_id": 3,
        "sep_token_id": 4,
        "local_attention": 8,
    },
    "olmo3": WINDOW_THEN_FULL,
    "smollm3": {"no_rope_layer_interval": 2},
    "youtu": ALL_HEADS,
    **{name: {"is_decoder": True} for name in ("bert", "bert-generation", "electra", "ernie", "roc_bert")},
    **{
        name: {"is_decoder": True, "pad_token_id": 1, "max_position_embeddings": 66}  # the first token is at position 2
        for name in ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl")
    },
}


def make_config(model_type: str, **options: Any) -> Any:
    """A small configuration of a model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    default = kind()
    sizes = {name: value for name, value in SIZES.items() if _has(default, name)}
    return kind(**{**sizes, **OPTIONS.get(model_type, {}), **options})


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # an attribute that layers have, and the whole has not
        return False


def save_family(folder: Path, model_type: str, **options: Any) -> Path:
    """Write a checkpoint of `model_type` into `folder`, with weights large enough for varied text, and return it."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(make_config(model_type, **options)).eval().float()
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
