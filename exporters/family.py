"""What the exporters need to know of a model family, and the table of the families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from intaglio.bundle import Decoder
from intaglio.errors import SourceError

if TYPE_CHECKING:
    from intaglio.exporters.decoders.graph import DecoderGraph
    from intaglio.exporters.encoder_decoders.graph import EncoderGraph, ReadingDecoderGraph


@dataclass(frozen=True)
class DecoderFamily:
    """A family of decoders. The configurations are those of `transformers`, with its defaults filled in.

    `base` is the path of the model below its head, `blocks` that of the list of Transformer blocks, `embedding` that
    of the token embedding. `describe` reads what the manifest records and refuses configurations that are not
    supported; `build` writes the graph.
    """

    model_type: str
    architecture: str  # the one with a language model's head
    base: str
    blocks: str
    embedding: str
    describe: Callable[[dict[str, Any]], Decoder]
    build: Callable[[DecoderGraph, dict[str, Any]], None]


@dataclass(frozen=True)
class EncoderDecoderFamily:
    """A family of encoder-decoders. The configurations are those of `transformers`, with its defaults filled in.

    `blocks` are the paths of the lists of Transformer blocks, `embedding` that of the token embedding, `copies` the
    paths in the two parts under which a checkpoint may hold it again. `describe` reads what the manifest records of
    the decoder and refuses configurations that are not supported; `encode` and `decode` write the two graphs.
    """

    model_type: str
    architecture: str  # the one with a language model's head
    blocks: tuple[str, ...]
    embedding: str
    copies: tuple[str, ...]
    describe: Callable[[dict[str, Any]], Decoder]
    encode: Callable[[EncoderGraph, dict[str, Any]], None]
    decode: Callable[[ReadingDecoderGraph, dict[str, Any]], None]


@dataclass(frozen=True)
class Family:
    """A family of encoders, as `transformers` implements it.

    `model_type` is what config.json calls it; `architectures` maps the names that config.json may list to our
    tasks; `max_length` reads the longest sequence, in tokens, from config.json; `blocks` is the path of the list
    of Transformer blocks below the base model.
    """

    model_type: str
    base: str  # the architecture without a head
    architectures: Mapping[str, str]
    inputs: tuple[str, ...]
    max_length: Callable[[Mapping[str, Any]], int]
    blocks: str
    has_pooler: bool  # a BERT-style pooler, which no supported task uses and which can be left out


def integer(config: Mapping[str, Any], key: str, minimum: int, default: int | None = None) -> int:
    """The whole number of at least `minimum` that a config.json has under `key`. Raises `SourceError`."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise SourceError(f"config.json: {key} is {value!r}, expected a whole number of at least {minimum}. Mend it.")
    return value


def families() -> dict[str, Family]:
    """Every supported family by its `model_type`."""
    from intaglio.exporters.encoders import bert, distilbert, roberta

    return {family.model_type: family for family in (bert.FAMILY, distilbert.FAMILY, roberta.FAMILY)}


def decoder_families() -> dict[str, DecoderFamily]:
    """Every supported family of decoders by its `model_type`."""
    from intaglio.exporters.decoders import gpt2, llama, mistral, opt, qwen2

    return {module.FAMILY.model_type: module.FAMILY for module in (gpt2, opt, llama, mistral, qwen2)}


def encoder_decoder_families() -> dict[str, EncoderDecoderFamily]:
    """Every supported family of encoder-decoders by its `model_type`."""
    from intaglio.exporters.encoder_decoders import mt5, t5

    return {module.FAMILY.model_type: module.FAMILY for module in (t5, mt5)}


def find_decoder(config: Mapping[str, Any]) -> DecoderFamily | None:
    """The family of a config.json whose architecture is a decoder with a language model's head, or None."""
    family = decoder_families().get(str(config.get("model_type")))
    listed = config.get("architectures") or ([family.architecture] if family else [])
    return family if family and listed == [family.architecture] else None


def find_encoder_decoder(config: Mapping[str, Any]) -> EncoderDecoderFamily | None:
    """The family of a config.json whose architecture is an encoder-decoder with a language model's head, or None."""
    family = encoder_decoder_families().get(str(config.get("model_type")))
    listed = config.get("architectures") or ([family.architecture] if family else [])
    return family if family and listed == [family.architecture] else None


def find_family(config: Mapping[str, Any], where: str) -> tuple[Family, str]:
    """The family of a config.json and the architecture to export. Raises `SourceError` listing what is supported."""
    table = families()
    encoders = [name for family in table.values() for name in family.architectures]
    decoders = [family.architecture for family in decoder_families().values()]
    both = [family.architecture for family in encoder_decoder_families().values()]
    supported = ", ".join([*encoders, *decoders, *both])
    family = table.get(str(config.get("model_type")))
    listed = config.get("architectures") or ([family.base] if family else [])
    architecture = str(listed[0]) if isinstance(listed, list) and listed else str(listed)
    if family is None or architecture not in family.architectures:
        raise SourceError(
            f"{where}: architecture {architecture or config.get('model_type')} is not supported. "
            f"Supported are: {supported}."
        )
    if (positions := config.get("position_embedding_type", "absolute")) != "absolute":
        raise SourceError(f"{where}: position embeddings of type {positions!r} are not supported, only 'absolute'.")
    for key in ("num_hidden_layers", "n_layers"):
        integer(config, key, 1, default=1)
    return family, architecture
