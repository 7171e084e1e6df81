"""Small random encoder-decoders of transformers that are exported by tracing, with a tokenizer of single bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_decoders import END, VOCABULARY, write_byte_tokenizer

PADDING = 260  # a token that is missing in the tokenizer, as padding is not text
POSITIONS = 300  # of which M2M-100 puts PADDING before the first
SIZES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": POSITIONS,
}
# What each adds to the ones before it.
KINDS = {
    "bart": "learned positions, normalised embeddings",
    "marian": "positions by sines, a bias of the logits",
    "m2m_100": "positions by sines that count from the padding, norms before each part, scaled embeddings",
}
OTHERS = ("blenderbot", "blenderbot-small", "mbart", "pegasus", "plbart", "t5gemma")
PART: dict[str, Any] = {  # of T5Gemma, whose encoder and decoder have a configuration each
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "max_position_embeddings": POSITIONS,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}


def save_translator(folder: Path, model_type: str, **options: Any) -> Path:
    """Write a checkpoint into `folder`, with weights large enough for varied text, and return it.

    `options`: of generation_config.json.
    """
    import torch
    import transformers

    tokens = {"vocab_size": VOCABULARY, "eos_token_id": END, "pad_token_id": PADDING, "bos_token_id": END}
    sizes = {"encoder": dict(PART), "decoder": dict(PART)} if model_type == "t5gemma" else SIZES
    config = transformers.AutoConfig.for_model(
        model_type, **{**tokens, **sizes, "decoder_start_token_id": END, "forced_eos_token_id": None}
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "embed_positions" in path:
                continue
            if parameter.ndim > 1:
                parameter.mul_(5)  # more, and all texts are one token again and again
            else:
                parameter.add_(torch.randn_like(parameter) / 4)
        for path, buffer in model.named_buffers():
            if path == "final_logits_bias":
                buffer.add_(torch.randn_like(buffer))
    for name, value in options.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def write_languages(folder: Path, codes: dict[str, int]) -> None:
    """Give the tokenizer in `folder` special tokens of languages, the first of which it writes before each text.

    `codes`: as they are written -> the id, from the first after `END`.
    """
    from tokenizers import Tokenizer, processors

    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_special_tokens(list(codes))
    assert {code: tokenizer.token_to_id(code) for code in codes} == codes
    first = next(iter(codes))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A <|end|>", special_tokens=[(first, codes[first]), ("<|end|>", END)]
    )
    tokenizer.save(path)
