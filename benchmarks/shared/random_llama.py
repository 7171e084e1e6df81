"""A LLaMA of random parameters, 0.95 billion of them, as a checkpoint: what whole models are measured on.

A decoder's speed and memory depend on the shapes of its weights and not on their values. The folder holds what
`transformers` saves (config.json, model.safetensors in float16, tokenizer.json), so that every contestant starts from
the same file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.display.progress import step, track
from intaglio.exporters.checkpoints.checkpoint import CONFIG as CONFIG_FILE
from intaglio.exporters.checkpoints.checkpoint import WEIGHTS
from intaglio.runtime.text.tokenizer import TOKENIZER

VOCABULARY = 32_000
INITIALIZER_RANGE = 0.02


@dataclass(frozen=True)
class Shape:
    """How large a model is."""

    hidden: int = 2048
    feed_forward: int = 5632
    layers: int = 16
    heads: int = 32
    key_value_heads: int = 0  # 0: as many as `heads`
    vocabulary: int = VOCABULARY
    positions: int = 2048

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.hidden // self.heads

    @property
    def key_value(self) -> int:
        """The width of the keys, and of the values."""
        return self.head * (self.key_value_heads or self.heads)

    def parameters(self) -> int:
        """How many numbers the weights are."""
        return sum(map(prod, self.weights().values()))

    def weights(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every weight, in the order of the file."""
        square, narrow = (self.hidden, self.hidden), (self.key_value, self.hidden)
        layer = {
            "input_layernorm": (self.hidden,),
            **{f"self_attn.{name}_proj": narrow if name in "kv" else square for name in "qkvo"},
            "post_attention_layernorm": (self.hidden,),
            "mlp.gate_proj": (self.feed_forward, self.hidden),
            "mlp.up_proj": (self.feed_forward, self.hidden),
            "mlp.down_proj": (self.hidden, self.feed_forward),
        }
        outer = (self.vocabulary, self.hidden)
        first, last = (
            {"model.embed_tokens.weight": outer},
            {"model.norm.weight": (self.hidden,), "lm_head.weight": outer},
        )
        layers = {f"model.layers.{i}.{name}.weight": shape for i in range(self.layers) for name, shape in layer.items()}
        return first | layers | last

    def config(self) -> dict[str, Any]:
        """What config.json says."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads or self.heads,
            "head_dim": self.head,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "initializer_range": INITIALIZER_RANGE,
            "dtype": "float16",
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


BILLION = Shape()  # 0.95 of it
SPECIAL = ["<pad>", "<s>", "</s>"]  # at the ids that the configuration names


# dtype -> its name in .safetensors and the dtype of the same size that NumPy writes
STORED = {"float16": ("F16", "<f2"), "bfloat16": ("BF16", "<u2"), "float32": ("F32", "<f4")}


def checkpoint(folder: Path, shape: Shape = BILLION, stored: str = "float16") -> Path:
    """The checkpoint `folder` with weights of the dtype `stored`, written there unless it is there.

    One tensor is in memory at a time.
    """
    if not (folder / CONFIG_FILE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with step("writing a tokenizer"):
            write_tokenizer(folder / TOKENIZER, shape.vocabulary)
        write_weights(shape.weights(), folder / WEIGHTS, stored)
        config = shape.config() | {"dtype": stored}
        (folder / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2))
    return folder


def write_weights(weights: Mapping[str, tuple[int, ...]], path: Path, stored: str, norm: float = 1.0) -> None:
    """A safetensors file with random `weights`, by the shape of each; one is in memory at a time. See `_arrays`."""
    header, end = {}, 0
    name_in_file, kind = STORED[stored]
    for name, lengths in weights.items():
        size = np.dtype(kind).itemsize * prod(lengths)
        header[name] = {"dtype": name_in_file, "shape": lengths, "data_offsets": (end, end := end + size)}
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)  # the format aligns the data to 8 bytes
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in track(_arrays(weights.values(), norm), "writing random weights", total=len(header)):
            if stored == "bfloat16":
                (array.view(np.uint32) >> 16).astype(kind).tofile(file)  # its upper half
            else:
                array.astype(kind).tofile(file)


def _arrays(shapes: Iterable[tuple[int, ...]], norm: float) -> Iterator[npt.NDArray[np.float32]]:
    """The weights in their order: normal as LLaMA starts its training, those of norms equal to `norm`."""
    generator = np.random.default_rng(0)
    for lengths in shapes:
        if len(lengths) == 1:
            yield np.full(lengths, norm, np.float32)
        else:
            values = generator.standard_normal(lengths, np.float32)
            values *= INITIALIZER_RANGE
            yield values


def write_tokenizer(path: Path, vocabulary: int = VOCABULARY) -> None:
    """A byte-level BPE learnt from Python's manual, which is too short for all of `vocabulary`; then filled up."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for _, text in sorted(topics.items())), trainer)
    tokenizer.add_tokens([f"<unused {index}>" for index in range(vocabulary - tokenizer.get_vocab_size())])
    tokenizer.save(str(path))
