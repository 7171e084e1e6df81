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

# All others that are known to export, for `make families`. Written families are traced where a setting needs it.
OTHERS = (  # noqa: SIM905
    "afmoe apertus arcee aria_text axk1 beam bert bert-generation biogpt bitnet cohere cohere2_moe ctrl cwm "
    "diffllama dots1 electra ernie ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo flint gemma gemma3n_text "
    "gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite gpt-sw3 gpt2 gpt_bigcode granite_swa granitemoe "
    "granitemoe_swa granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder "
    "jais2 kolibri1 laguna llama mellum mimo_v2_flash minicpm3 minimax_m2 minimax_m3_vl_text ministral ministral3 "
    "mistral modernbert-decoder nanochat nemotron olmo olmo3 olmoe opt persimmon phi phimoe qwen2 qwen2_moe qwen3 "
    "qwen3_moe roc_bert seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu"
).split()


@pytest.mark.parametrize("model_type", few([*KINDS, *OTHERS], list(KINDS)))
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
