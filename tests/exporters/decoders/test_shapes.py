"""Every family in every shape that config.json allows: logits and texts equal the source model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from decoder_logits import TEXTS, assert_same_logits, rewrite, source_logits
from tiny_decoders import FAMILIES

from intaglio.bundle.bundle import Bundle
from intaglio.exporters import export
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.step import decoder_of

MakeDecoder = Callable[..., tuple[Path, Path]]
LONGER = {"max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("family", "length", "options"), [*((family, 40, {}) for family in FAMILIES), ("qwen3", 64, LONGER)]
)
def test_greedy_batch_equals_transformers_token_for_token(
    make_decoder: MakeDecoder, family: str, length: int, options: dict[str, Any]
) -> None:
    import torch
    import transformers

    checkpoint, bundle = make_decoder(family, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    expected = []
    for text in TEXTS:
        ids = torch.tensor([text])
        whole = model.generate(ids, max_new_tokens=length, do_sample=False, eos_token_id=None, pad_token_id=0)
        expected.append(whole[0, len(text) :].tolist())
    with DecoderSession.open(bundle, batch=len(TEXTS)) as session:
        tokens = [session.prefill(TEXTS).argmax(-1)]
        while len(tokens) < length:
            tokens.append(session.step(tokens[-1][:, None])[:, 0].argmax(-1))
    assert np.array(tokens).T.tolist() == expected
    assert len(set(expected[0])) > 5, "a text of one token proves nothing"


ROPE = {"rope_theta": 10000.0}
YARN = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    **ROPE,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "scaled by layer": (
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True, "n_inner": 40, "activation_function": "gelu"},
    ),
    "not scaled": ("gpt2", {"scale_attn_weights": False, "tie_word_embeddings": False}),
    "norms after, narrow embedding": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    "no biases": ("opt", {"enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False}),
    "no last norm": ("opt", {"_remove_final_layer_norm": True}),
    "biases, wide heads, tied": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "head_dim": 12, "tie_word_embeddings": True},
    ),
    "linear rope": ("llama", {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 2.0}}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "yarn rope": ("llama", {"rope_parameters": YARN}),
    "no window": ("mistral", {"sliding_window": None}),
    "windows in all layers": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}),
    "windows beyond the last layer": ("qwen2", {"use_sliding_window": True, "sliding_window": 8}),
    "biases, a window": (
        "qwen3",
        {"attention_bias": True, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
    ),
    "one key head": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("variant", few(VARIANTS, ["norms after, narrow embedding", "yarn rope"]))
def test_logits_equal_the_source_for_every_shape(make_decoder: MakeDecoder, variant: str) -> None:
    family, options = VARIANTS[variant]
    assert_same_logits(*make_decoder(family, **options))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_bias_and_norm_is_applied(make_decoder: MakeDecoder, tmp_path: Path, family: str) -> None:
    """In a fresh model all biases are 0 and all scales 1, so a swapped one would not be noticed."""
    import torch

    torch.manual_seed(1)

    def shaken(found: dict[str, Any]) -> dict[str, Any]:
        return {
            name: tensor + 0.3 * torch.randn_like(tensor) if tensor.ndim == 1 else tensor
            for name, tensor in found.items()
        }

    folder = rewrite(make_decoder(family)[0], tmp_path / "shaken", shaken)
    export(str(folder), tmp_path / "bundle", check=False)
    assert_same_logits(folder, tmp_path / "bundle")


def test_sliding_window_masks_earlier_tokens(make_decoder: MakeDecoder) -> None:
    checkpoint, bundle = make_decoder("mistral")
    assert_same_logits(checkpoint, bundle)
    assert {cache.window for cache in decoder_of(Bundle.open(bundle)).layer_caches} == {8}
    expected = source_logits(checkpoint, TEXTS)
    seeing = source_logits(make_decoder("mistral", sliding_window=None)[0], TEXTS)
    np.testing.assert_allclose(seeing[2][:8], expected[2][:8], atol=1e-4)
    assert np.abs(seeing[2][8:] - expected[2][8:]).max() > 1e-2
