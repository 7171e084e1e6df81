"""A LLaMA of 0.95 billion random parameters, as a checkpoint: what the speeds of whole models are measured on.

A decoder's speed depends on the shapes of its weights and not on what is in them. The folder holds what
`transformers` saves (config.json, model.safetensors in float16, tokenizer.json), so that every contestant starts from
the same file.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.exporters.checkpoint import CONFIG as CONFIG_FILE
from intaglio.exporters.checkpoint import WEIGHTS
from intaglio.progress import step, track
from intaglio.runtime.tokenizer import TOKENIZER

HIDDEN, FEED_FORWARD, LAYERS, HEADS, VOCABULARY = 2048, 5632, 16, 32, 32_000
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN // HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "dtype": "float16",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SPECIAL = ["<pad>", "<s>", "</s>"]  # at the ids that the configuration names


def checkpoint(folder: Path) -> Path:
    """The checkpoint `folder`, written there unless it is there; 1.9 GB, of which one tensor at a time is in memory."""
    if not (folder / CONFIG_FILE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with step("writing a tokenizer"):
            _write_tokenizer(folder / TOKENIZER)
        _write_weights(folder / WEIGHTS)
        (folder / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(CONFIG), indent=2))
    return folder


def parameters() -> int:
    """How many numbers the weights are."""
    return sum(map(prod, shapes().values()))


def shapes() -> dict[str, tuple[int, ...]]:
    """The name and shape of every weight, in the order of the file."""
    square = (HIDDEN, HIDDEN)
    layer = {
        "input_layernorm": (HIDDEN,),
        **{f"self_attn.{name}_proj": square for name in "qkvo"},
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
        "mlp.up_proj": (FEED_FORWARD, HIDDEN),
        "mlp.down_proj": (HIDDEN, FEED_FORWARD),
    }
    layers = {f"model.layers.{index}.{name}.weight": shape for index in range(LAYERS) for name, shape in layer.items()}
    outer = (VOCABULARY, HIDDEN)
    return {"model.embed_tokens.weight": outer, **layers, "model.norm.weight": (HIDDEN,), "lm_head.weight": outer}


def _write_weights(path: Path) -> None:
    header, end = {}, 0
    for name, shape in shapes().items():
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": (end, end := end + 2 * prod(shape))}
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)  # the format aligns the data to 8 bytes
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in track(_arrays(), "writing random weights", total=len(header)):
            array.tofile(file)


def _arrays() -> Iterator[npt.NDArray[np.float16]]:
    """The weights in the order of `shapes`: normal as LLaMA starts its training, norms one."""
    generator = np.random.default_rng(0)
    for shape in shapes().values():
        if len(shape) == 1:
            yield np.ones(shape, np.float16)
        else:
            values = generator.standard_normal(shape, np.float32)
            values *= CONFIG["initializer_range"]
            yield values.astype(np.float16)


def _write_tokenizer(path: Path) -> None:
    """A byte-level BPE learnt from Python's manual, which is too short for all of the vocabulary; then filled up."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for _, text in sorted(topics.items())), trainer)
    tokenizer.add_tokens([f"<unused {index}>" for index in range(VOCABULARY - tokenizer.get_vocab_size())])
    tokenizer.save(str(path))
