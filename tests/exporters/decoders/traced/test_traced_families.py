"""Decoders of all kinds, exported by tracing, write what `transformers` writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from covering import few
from tiny_families import save_family

from intaglio.bundle.bundle import Bundle
from intaglio.exporters import export
from intaglio.runtime import generate

PROMPTS = ["Hello wo", "The", "A cat sat on"]
TOKENS = 40
# What each adds to the ones before it.
KINDS = {
    "gemma2": "caps of scores and logits, windows in every other layer, scaled embeddings",
    "gemma3_text": "two rotary settings in one model, normalised queries and keys",
    "phi3": "joined projections",
    "granite": "multipliers of embeddings, residuals, attention and logits",
    "gpt_neox": "parallel residuals, part of each head rotated, biases",
    "cohere2": "interleaved rotary, layers without positions, a norm that subtracts the mean",
    "gpt_oss": "sinks, experts with biases and a gate of their own",
    "mixtral": "experts in tensors of their own",
    "deepseek_v3": "latent attention: keys and values of different widths; shared experts, groups of experts",
    "deepseek_v2": "rotary by complex numbers",
    "llama4_text": "attention in chunks, scaled by the position",
    "olmo2": "norms behind the layers",
}


@pytest.mark.parametrize("model_type", few(KINDS, list(KINDS)))
def test_text_equals_that_of_transformers(model_type: str, tmp_path: Path) -> None:
    checkpoint = save_family(tmp_path / "checkpoint", model_type)
    assert export(str(checkpoint), tmp_path / "bundle").passed
    written = [text.tokens for text in generate(tmp_path / "bundle", PROMPTS, max_new_tokens=TOKENS, batch=3)]
    assert written == [continued(checkpoint, tmp_path / "bundle", prompt) for prompt in PROMPTS]


def continued(checkpoint: Path, bundle: Path, prompt: str) -> list[int]:
    """The tokens that transformers writes greedily after a prompt, with the end token."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(prompt).ids
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    decoder = Bundle.open(bundle).manifest.decoder
    assert decoder is not None
    written = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=TOKENS, do_sample=False,
        eos_token_id=list(decoder.eos_token_ids), pad_token_id=0,
    )  # fmt: skip
    return [int(token) for token in written[0, len(ids) :]]
