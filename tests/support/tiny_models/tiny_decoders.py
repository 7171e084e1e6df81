"""Small random decoders of every family, as transformers saves them, with a tokenizer of single bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from intaglio.exporters import export

Once = Callable[[str, Callable[[Path], object]], Path]  # `once` of conftest.py
Change = Callable[[dict[str, Any]], None]  # changes weights by name, in place

END = 256  # the token <|end|>, after one for every byte
VOCABULARY = 272  # wider than the tokenizer, as in many models
CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}>"
GROUPED: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
# Family -> the class of transformers, and its sizes by the names in its configuration.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "opt": (
        "OPT",
        {
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
            "pad_token_id": 1,
        },
    ),
    "llama": ("Llama", GROUPED),
    "mistral": ("Mistral", GROUPED | {"sliding_window": 8}),
    "qwen2": ("Qwen2", GROUPED),
    "qwen3": ("Qwen3", GROUPED | {"head_dim": 24}),
}


def save_decoder(folder: Path, family: str, **options: Any) -> Path:
    """Write a checkpoint of `family` into `folder`, with weights large enough for varied text, and return it."""
    import torch
    import transformers

    name, sizes = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(
        **{"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": END, **sizes, **options}
    )
    torch.manual_seed(0)
    classes = {"OPT": "OPTForCausalLM", "GPT2": "GPT2LMHeadModel"}
    model = getattr(transformers, classes.get(name, f"{name}ForCausalLM"))(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def write_byte_tokenizer(folder: Path, template: str | None = None) -> None:
    """Write tokenizer.json, a token for every byte and <|end|>, and a configuration with the chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    configuration = {"eos_token": "<|end|>"} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration))


class MadeDecoder(Sequence[Path]):
    """A checkpoint and its bundle, each made when it is looked at first."""

    def __init__(self, once: Once, name: str, family: str, chat: str | None, options: dict[str, Any]):
        self._once, self._name, self._family, self._chat, self._options = once, name, family, chat, options

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        checkpoint = self._once(f"{self._name}/checkpoint", self._save)
        made = [lambda: checkpoint, lambda: self._once(f"{self._name}/bundle", partial(self._export, checkpoint))]
        return made[index]()

    def _save(self, path: Path) -> None:
        unfinished = save_decoder(path.with_suffix(".unfinished"), self._family, **self._options)
        write_byte_tokenizer(unfinished, self._chat)
        unfinished.rename(path)

    def _export(self, checkpoint: Path, path: Path) -> None:
        export(str(checkpoint), path, check=False)


def altered(checkpoint: Path, change: Change, folder: Path) -> Path:
    """Export a copy of `checkpoint` with weights changed in place to a bundle in `folder`, and return that."""
    from safetensors.torch import load_file, save_file

    copy = folder / "checkpoint"
    shutil.copytree(checkpoint, copy)
    weights = load_file(copy / "model.safetensors")
    change(weights)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    export(str(copy), folder / "bundle", check=False)
    return folder / "bundle"


def add_noise(weights: dict[str, Any]) -> None:
    """Add noise of a tenth of their spread to matrices."""
    import torch

    generator = torch.Generator().manual_seed(1)
    for weight in weights.values():
        if weight.ndim > 1:
            weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=generator)
