"""Folders of cross-encoders, as sentence-transformers saves them: decoders that answer yes or no, and classifiers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiny_decoders import write_byte_tokenizer
from tiny_families import make_config

# The template of Qwen3-Reranker, for a conversation of the roles query and document.
TEMPLATE = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the \
answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Search") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
# The same with contents of several parts, the document first, and an answer that begins on request.
STRUCTURED = """{% for message in messages | sort(attribute="role") %}<{{ message.role }}>{{ message.content[0].text }}
{% endfor %}{% if add_generation_prompt %}{{ sign }}:{% endif %}"""
TOKENS = ("<|im_start|>", "<|im_end|>")
ANSWERS = ("yes", "no")  # the tokens after those of the bytes


def save_backbone(
    folder: Path, model_type: str, template: str | None = TEMPLATE, head: str = "CausalLM", **options: Any
) -> Path:
    """A small random decoder with a tokenizer that has the tokens of the template and the answers."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    folder.mkdir()
    write_byte_tokenizer(folder, template)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([*TOKENS])
    tokenizer.add_tokens([*ANSWERS])
    tokenizer.save(str(folder / "tokenizer.json"))
    configuration = json.loads((folder / "tokenizer_config.json").read_text())
    configuration |= {"pad_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration))
    torch.manual_seed(0)
    sizes = {"vocab_size": 272, "max_position_embeddings": 1024, "pad_token_id": 256}
    config = make_config(model_type, **{**sizes, **options})
    model = getattr(transformers, f"AutoModelFor{head}").from_config(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.2 + (parameter.ndim == 1))
    model.save_pretrained(folder)
    return folder


def save_reranker(backbone: Path, folder: Path, answers: int = 2, **options: Any) -> Path:
    """The folder of a decoder that answers with the first, or either of both, of `ANSWERS`."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    processing: Mapping[str, Any] = options.pop("processing_kwargs", {})
    transformer = Transformer(str(backbone), transformer_task="text-generation", processing_kwargs=processing)
    transformer.max_seq_length = options.pop("limit", 500)
    tokens = [transformer.tokenizer.convert_tokens_to_ids(answer) for answer in ANSWERS[:answers]]
    model = CrossEncoder(modules=[transformer, LogitScore(*tokens)], device="cpu", **options)
    model.save_pretrained(str(folder), create_model_card=False)
    return folder
