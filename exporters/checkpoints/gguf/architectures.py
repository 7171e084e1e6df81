"""The architectures of GGUF files, in the names of transformers: their keys and tensors, and how those are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from intaglio.exporters.checkpoints.gguf.container import StoredBlocks

Config = dict[str, Any]
Tensors = Mapping[str, StoredBlocks]

# Tensors outside of the blocks, without ".weight".
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
NORMALISED = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
AROUND = {  # norms before and after each part
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Tensors of all experts of a block; {} is the expert's number.
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
STACKED = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}

# Keys of the file, after "<architecture>.", and those of config.json. What is read otherwise is in `configuration.py`.
KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
LAYER_NORM = "attention.layer_norm_epsilon"
RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
SLIDING = {"attention.sliding_window": "sliding_window"}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
EXPERT_KEYS = {"expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "moe_intermediate_size"}
OPTIONAL = frozenset({"attention.head_count_kv", *CAPS, "embedding_scale", "residual_scale"})


class Architecture(NamedTuple):
    """How a file of an architecture describes a model of transformers."""

    model_type: str
    model: str  # the class
    names: Mapping[str, str]  # of a block's tensors
    keys: Mapping[str, str]
    fixed: Mapping[str, Any] = {}  # what llama.cpp's code for it has fixed
    interleaved: bool = False  # rows of queries and keys, of each head, as pairs that are rotated together
    norm_offset: float = 0.0  # added to the weights of norms
    complete: Callable[[Config, Tensors], Config] = lambda config, tensors: {}
    stacked: bool = False  # experts as one parameter, in which outputs of gate and up projections alternate
    optional: frozenset[str] = OPTIONAL  # keys, without which llama.cpp and transformers assume the same


def _llama(config: Config, tensors: Tensors) -> Config:
    """Biases, which a file has or has not; experts make it a Mixtral."""
    if "blk.0.ffn_gate_inp.weight" in tensors:
        return {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    return {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}


def _biased(config: Config, tensors: Tensors) -> Config:
    return {"attention_bias": "blk.0.attn_q.bias" in tensors}


def _gemma2(config: Config, tensors: Tensors) -> Config:
    """llama.cpp recognises the largest model, of 27 billion, whose queries have another scale, by its layers."""
    return {"query_pre_attn_scalar": _query_scalar(config, 46)}


def _gemma3(config: Config, tensors: Tensors) -> Config:
    return {"query_pre_attn_scalar": _query_scalar(config, 62)}


def _query_scalar(config: Config, layers_of_27b: int) -> int:
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config["head_dim"])


def _starcoder2(config: Config, tensors: Tensors) -> Config:
    return {"use_bias": "blk.0.attn_q.bias" in tensors}


def _stablelm(config: Config, tensors: Tensors) -> Config:
    return {
        "use_qkv_bias": "blk.0.attn_q.bias" in tensors,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors,
    }


def _cohere(config: Config, tensors: Tensors) -> Config:
    return {"use_qk_norm": "blk.0.attn_q_norm.weight" in tensors, **_biased(config, tensors)}


def _seed(config: Config, tensors: Tensors) -> Config:
    return {"attention_out_bias": "blk.0.attn_output.bias" in tensors, **_biased(config, tensors)}


def _shared(config: Config, tensors: Tensors) -> Config:
    """The width of the shared expert."""
    return {"shared_expert_intermediate_size": tensors["blk.0.ffn_gate_shexp.weight"].shape[0]}


UNGATED = {"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh"}
# By "general.architecture".
ARCHITECTURES = {
    "llama": Architecture(
        "llama",
        "LlamaForCausalLM",
        {**ATTENTION, **GATED, **MIXTRAL},
        {**KEYS, **RMS, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        interleaved=True,
        complete=_llama,
        optional=OPTIONAL | {"expert_count", "expert_used_count"},
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", {**ATTENTION, **GATED}, {**KEYS, **RMS}),
    "qwen3": Architecture(
        "qwen3", "Qwen3ForCausalLM", {**ATTENTION, **NORMALISED, **GATED}, {**KEYS, **RMS}, complete=_biased
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        {**ATTENTION, **NORMALISED, **EXPERTS},
        {**KEYS, **RMS, **EXPERT_KEYS, "expert_count": "num_experts"},
        {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
        complete=_biased,
    ),
    "gemma": Architecture(
        "gemma",
        "GemmaForCausalLM",
        {**ATTENTION, **GATED},
        {**KEYS, **RMS},
        {**GEMMA, "hidden_act": "gelu_pytorch_tanh"},
        norm_offset=1.0,
    ),
    "gemma2": Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        {**ATTENTION, **AROUND, **GATED},
        {**KEYS, **RMS, **SLIDING, **CAPS},
        GEMMA,
        norm_offset=1.0,
        complete=_gemma2,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**ATTENTION, **NORMALISED, **AROUND, **GATED},
        {**KEYS, **RMS, **SLIDING, **CAPS},
        {**GEMMA, "sliding_window_pattern": 6},
        norm_offset=1.0,
        complete=_gemma3,
    ),
    "phi3": Architecture(
        "phi3",
        "Phi3ForCausalLM",
        {**ATTENTION, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"},
        {**KEYS, **RMS, **SLIDING},
        optional=OPTIONAL | {"attention.sliding_window"},
    ),
    "granite": Architecture(
        "granite",
        "GraniteForCausalLM",
        {**ATTENTION, **GATED},
        {
            **KEYS,
            **RMS,
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        interleaved=True,
        complete=_llama,
    ),
    "smollm3": Architecture(
        "smollm3",
        "SmolLM3ForCausalLM",
        {**ATTENTION, **GATED},
        {**KEYS, **RMS},
        {"no_rope_layer_interval": 4, "use_sliding_window": False},
        interleaved=True,
        complete=_llama,
    ),
    "olmo2": Architecture(
        "olmo2",
        "Olmo2ForCausalLM",
        {
            **{name: path for name, path in ATTENTION.items() if "norm" not in name},
            **NORMALISED,
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
            **GATED,
        },
        {**KEYS, **RMS},
        complete=_biased,
    ),
    "starcoder2": Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        {**ATTENTION, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        {**KEYS, LAYER_NORM: "norm_epsilon"},
        {"sliding_window": None},
        complete=_starcoder2,
    ),
    "stablelm": Architecture(
        "stablelm",
        "StableLmForCausalLM",
        {**ATTENTION, **GATED},
        {**KEYS, LAYER_NORM: "layer_norm_eps", "use_parallel_residual": "use_parallel_residual"},
        complete=_stablelm,
        optional=OPTIONAL | {"use_parallel_residual"},
    ),
    "arcee": Architecture(
        "arcee", "ArceeForCausalLM", {**ATTENTION, **UNGATED}, {**KEYS, **RMS}, interleaved=True, complete=_biased
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        {
            **ATTENTION,
            "attn_sinks": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_gate_inp": "mlp.router",
            **{name: f"mlp.experts.{name}" for name in STACKED},
        },
        {
            **KEYS,
            **RMS,
            **SLIDING,
            "expert_feed_forward_length": "intermediate_size",
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
        },
        {"attention_bias": True},
        stacked=True,
        optional=OPTIONAL | {"feed_forward_length"},
    ),
    "command-r": Architecture(
        "cohere",
        "CohereForCausalLM",
        {**ATTENTION, **NORMALISED, **GATED},
        {**KEYS, LAYER_NORM: "layer_norm_eps", "logit_scale": "logit_scale"},
        complete=_cohere,
    ),
    "cohere2": Architecture(
        "cohere2",
        "Cohere2ForCausalLM",
        {**ATTENTION, **GATED},
        {**KEYS, **SLIDING, LAYER_NORM: "layer_norm_eps", "logit_scale": "logit_scale"},
        {"sliding_window_pattern": 4},
        complete=_biased,
    ),
    "nemotron": Architecture(
        "nemotron",
        "NemotronForCausalLM",
        {**ATTENTION, **UNGATED},
        {**KEYS, LAYER_NORM: "norm_eps"},
        norm_offset=1.0,
        complete=_llama,
    ),
    "ernie4_5": Architecture(
        "ernie4_5", "Ernie4_5ForCausalLM", {**ATTENTION, **GATED}, {**KEYS, **RMS}, complete=_biased
    ),
    "seed_oss": Architecture(
        "seed_oss",
        "SeedOssForCausalLM",
        {**ATTENTION, "post_attention_norm": "post_attention_layernorm", **GATED},
        {**KEYS, **RMS},
        complete=_seed,
    ),
    "glm4": Architecture(
        "glm4",
        "Glm4ForCausalLM",
        {
            **ATTENTION,
            "post_attention_norm": "post_self_attn_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        {**KEYS, **RMS},
        complete=_biased,
    ),
    "olmoe": Architecture(
        "olmoe",
        "OlmoeForCausalLM",
        {**ATTENTION, **NORMALISED, **EXPERTS},
        {**KEYS, **RMS, "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"},
        {"norm_topk_prob": False},
        complete=_biased,
    ),
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        {
            **ATTENTION,
            **EXPERTS,
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        },
        {
            **KEYS,
            **RMS,
            **EXPERT_KEYS,
            "expert_count": "num_experts",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        {"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
        complete=_shared,
    ),
}
