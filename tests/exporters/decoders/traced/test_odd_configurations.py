"""Unusual and damaged configurations of decoders are refused in one line, or exported as `transformers` runs them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from covering import few
from tiny_families import save_family

from intaglio.errors import IntaglioError
from intaglio.exporters import export

MakeFamily = Callable[[str], Path]
REMOVED = "removed"  # the field is not in the file
LONGEST = 500  # characters of a refusal that can be read at a glance, the folder included
NO_MODEL = "do not form a"
OTHER_SHAPES = "do not have the shape"
MISSING = "are missing"
NOT_TRACED = "could not be traced"

# What is changed in the configuration of a checkpoint, and a part of the refusal.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3_text", {"head_dim": 7}, NO_MODEL),
    ("gemma3_text", {"head_dim": 0}, OTHER_SHAPES),
    ("gemma3_text", {"head_dim": -8}, NO_MODEL),
    ("gemma3_text", {"head_dim": None}, NO_MODEL),
    ("gemma3_text", {"head_dim": "8"}, "head_dim is '8', expected a number"),
    ("gemma3_text", {"num_key_value_heads": 3}, OTHER_SHAPES),
    ("gemma3_text", {"num_key_value_heads": 0}, NO_MODEL),
    ("gemma3_text", {"num_hidden_layers": 1}, NO_MODEL),
    ("gemma3_text", {"num_hidden_layers": 0}, NO_MODEL),
    ("gemma3_text", {"sliding_window": 0}, "sliding_window is 0 in config.json, expected 1 or more"),
    ("gemma3_text", {"sliding_window": -1}, "sliding_window is -1 in config.json, expected 1 or more"),
    ("gemma3_text", {"sliding_window": None}, "sliding_window is null in config.json, expected 1 or more tokens for"),
    ("gemma3_text", {"layer_types": ["full_attention"]}, NO_MODEL),
    ("gemma3_text", {"layer_types": ["full_attention", "linear_attention"]}, NO_MODEL),
    ("gemma3_text", {"vocab_size": 7}, OTHER_SHAPES),
    ("gemma3_text", {"query_pre_attn_scalar": 0}, NO_MODEL),
    ("gemma3_text", {"hidden_activation": "unknown"}, NO_MODEL),
    ("gemma3_text", {"max_position_embeddings": None}, NO_MODEL),
    ("gemma3_text", {"max_position_embeddings": 1}, "max_position_embeddings is 1, expected an integer of at least 2"),
    ("gemma3_text", {"attention_bias": True}, MISSING),
    ("gemma3_text", {"rms_norm_eps": "abc"}, NO_MODEL),
    ("gemma3_text", {"rms_norm_eps": 0}, NO_MODEL),
    ("gemma3_text", {"architectures": ["Gemma3ForSequenceClassification"]}, "not supported"),
    ("gemma3_text", {"model_type": REMOVED}, "no model_type"),
    ("phi3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, NO_MODEL),
    (
        "phi3",
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0], "long_factor": [1.0]}},
        NO_MODEL,
    ),
    ("phi3", {"intermediate_size": None}, NO_MODEL),
    ("phi3", {"intermediate_size": 47}, OTHER_SHAPES),
    ("phi3", {"hidden_size": 33}, OTHER_SHAPES),
    ("phi3", {"pad_token_id": 5000}, NO_MODEL),
    ("mixtral", {"num_experts_per_tok": 0}, NOT_TRACED),
    ("mixtral", {"num_experts_per_tok": 9}, NOT_TRACED),
    ("mixtral", {"num_local_experts": 3}, OTHER_SHAPES),
    ("mixtral", {"num_local_experts": 5}, OTHER_SHAPES),
    ("gpt_oss", {"num_attention_heads": 5}, OTHER_SHAPES),
    ("cohere2", {"logit_scale": None}, NO_MODEL),
    ("deepseek_v3", {"q_lora_rank": None}, MISSING),
    ("deepseek_v3", {"n_group": 3}, NOT_TRACED),
    ("deepseek_v3", {"topk_group": 9}, NOT_TRACED),
    ("deepseek_v3", {"first_k_dense_replace": 5}, MISSING),
    ("granite", {"logits_scaling": 0}, "NaN or infinity"),
    ("granite", {"attention_multiplier": None}, NO_MODEL),
    ("lfm2", {"conv_L_cache": 1}, OTHER_SHAPES),
    ("lfm2", {"layer_types": ["conv", "conv", "conv"]}, MISSING),
    ("lfm2", {"conv_bias": True}, MISSING),
    ("gemma2", {"num_attention_heads": 1, "num_key_value_heads": 1}, OTHER_SHAPES),
]
EQUAL: list[tuple[str, dict[str, Any]]] = [
    ("gemma3_text", {"sliding_window": 1}),
    ("gemma3_text", {"layer_types": None}),
    ("gemma3_text", {"eos_token_id": 9999}),
    ("gemma3_text", {"rope_parameters": None}),
    ("gemma3_text", {"final_logit_softcapping": 0.0}),
    ("gemma3_text", {"attn_logit_softcapping": -1.0}),
    ("gemma3_text", {"architectures": None}),
    ("phi3", {"partial_rotary_factor": 0.3}),
    ("phi3", {"tie_word_embeddings": True}),  # the file has a head of its own, which counts
    ("phi3", {"sliding_window": 2}),
    ("mixtral", {"num_experts_per_tok": 4}),
    ("mixtral", {"router_jitter_noise": 0.5}),
    ("mixtral", {"output_router_logits": True}),
    ("gpt_oss", {"sliding_window": 1}),
    ("cohere2", {"use_cache": False}),
    ("cohere2", {"is_decoder": False}),
    ("deepseek_v3", {"norm_topk_prob": False}),
]


@pytest.fixture(scope="module")
def make_family(tmp_path_factory: pytest.TempPathFactory) -> MakeFamily:
    """Write the checkpoint of a type once, and return a copy of it."""
    written: dict[str, Path] = {}

    def make(model_type: str) -> Path:
        if model_type not in written:
            written[model_type] = save_family(tmp_path_factory.mktemp("family"), model_type)
        copy = tmp_path_factory.mktemp("odd") / "checkpoint"
        return Path(shutil.copytree(written[model_type], copy))

    return make


def change(checkpoint: Path, fields: dict[str, Any]) -> None:
    """Change fields of its configuration."""
    file = checkpoint / "config.json"
    config = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({name: value for name, value in config.items() if value != REMOVED}))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(("model_type", "fields", "reason"), few(REFUSED, REFUSED[1::4]), ids=str)
def test_odd_configuration_gets_one_line(
    model_type: str, fields: dict[str, Any], reason: str, make_family: MakeFamily
) -> None:
    checkpoint = make_family(model_type)
    change(checkpoint, fields)
    with pytest.raises(IntaglioError) as error:
        export(str(checkpoint), checkpoint.parent / "bundle")
    message = str(error.value)
    assert reason in message
    assert "\n" not in message
    assert len(message) <= LONGEST
    assert [path.name for path in checkpoint.parent.iterdir()] == ["checkpoint"]


@pytest.mark.proof
@pytest.mark.parametrize(("model_type", "fields"), EQUAL, ids=str)
def test_odd_configuration_runs_as_in_transformers(
    model_type: str, fields: dict[str, Any], make_family: MakeFamily
) -> None:
    checkpoint = make_family(model_type)
    change(checkpoint, fields)
    assert export(str(checkpoint), checkpoint.parent / "bundle").passed
