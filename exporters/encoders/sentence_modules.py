"""The modules after the Transformer of a sentence-transformers folder: what their settings say.

The oracle is the library in version 6.2, which also reads what older versions wrote. What it applies is returned, or
refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import CONFIG, WEIGHTS
from intaglio.exporters.files.config import integer
from intaglio.exporters.files.safetensors_file import map_tensors
from intaglio.files.json_object import read_json
from intaglio.files.safetensors_header import read_header

# Key of an older pooling configuration -> the pooling's name. Several poolings are concatenated in this order.
POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
WIDTH_KEYS = ("embedding_dimension", "word_embedding_dimension")
EMBEDDING = "sentence_embedding"
TOKENS = "token_embeddings"
LOGITS = "causal_logits"
ACTIVATIONS = (
    "Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "LeakyReLU", "ELU", "Softplus", "Softsign", "LogSigmoid",
    "Hardtanh", "ReLU6", "Hardswish", "Mish", "SELU", "CELU",
)  # fmt: skip  # of torch.nn, with the defaults of their constructors


@dataclass(frozen=True)
class PoolingSettings:
    """The poolings of the hidden states, concatenated along the last axis."""

    poolings: tuple[str, ...]
    include_prompt: bool  # False: the tokens of a prompt are left out


@dataclass(frozen=True)
class DenseSettings:
    """A linear layer, then an activation of torch.nn; with `residual`, its input is added, projected if it must be."""

    weights: Path
    activation: str
    residual: bool


@dataclass(frozen=True)
class LayerNormSettings:
    """Layer normalisation of the embedding."""

    weights: Path


@dataclass(frozen=True)
class NormalizeSettings:
    """Division by the embedding's length."""


@dataclass(frozen=True)
class SpladeSettings:
    """The weights of a vocabulary: the maximum or the sum of log(1 + relu(logits of masked tokens)) over the tokens."""

    strategy: str  # "max" or "sum"
    logarithms: int  # 1, or 2 of log(1 + log(1 + relu))


@dataclass(frozen=True)
class LogitScoreSettings:
    """The score of a decoder: the logit of a token after the text, without that of another one if there is one."""

    tokens: tuple[int, ...]  # one or two


@dataclass(frozen=True)
class MaskSettings:
    """Words, tokens of the vocabulary, that have no vector, in a model with a vector for each token."""

    words: tuple[str, ...]
    tasks: tuple[str, ...]  # "query", "document"


SentenceModule = (
    SpladeSettings
    | PoolingSettings
    | DenseSettings
    | LayerNormSettings
    | NormalizeSettings
    | LogitScoreSettings
    | MaskSettings
)


def read_module(kind: str, folder: Path, feature: str = EMBEDDING) -> SentenceModule | None:
    """The module of class `kind` in `folder`, which reads and writes `feature`; None if it changes nothing.

    Raises `SourceError` if it is not supported.
    """
    reader = READERS.get(kind)
    if reader is None:
        raise SourceError(
            f"{folder}: the module {kind[:100]} is not supported, expected {', '.join(READERS)}. Remove modules.json "
            "from a copy of the folder to export the encoder alone."
        )
    if kind in OF_FEATURES:
        _check_features(folder / CONFIG, feature, required=kind == "Normalize" and feature != EMBEDDING)
    elif feature != EMBEDDING and kind not in ("MultiVectorMask", "Dropout"):
        raise SourceError(f"{folder}: the module {kind} is not supported on {feature}. Choose another model.")
    return reader(folder)


def _pooling(folder: Path) -> PoolingSettings:
    where = folder / CONFIG
    config = read_json(where)
    check_keys(config, where, *WIDTH_KEYS, *POOLINGS, "pooling_mode", "include_prompt")
    return PoolingSettings(_poolings(config, where), bool(config.get("include_prompt", True)))


def _poolings(config: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    """Its poolings in order; without any setting the library takes the mean."""
    named = config.get("pooling_mode")
    if "pooling_mode" in config:
        wanted = tuple(map(str, named)) if isinstance(named, list) else (str(named),)
    else:
        wanted = tuple(name for key, name in POOLINGS.items() if config.get(key)) or ("mean",)
    if not wanted or (unknown := [name for name in wanted if name not in POOLINGS.values()]):
        raise SourceError(
            f"{where}: pooling {', '.join(wanted and unknown) or 'none'} is not supported. "
            f"Supported are: {', '.join(POOLINGS.values())}."
        )
    return wanted


def _splade(folder: Path) -> SpladeSettings:
    where = folder / CONFIG
    config = read_json(where)
    check_keys(config, where, "pooling_strategy", "activation_function", *WIDTH_KEYS)
    values = []
    for key, known, default in (
        ("pooling_strategy", ("max", "sum"), "max"),
        ("activation_function", ("relu", "log1p_relu"), "relu"),
    ):
        values.append(config.get(key, default))
        if values[-1] not in known:
            raise SourceError(
                f"{where}: {key} {str(values[-1])[:60]!r} is not supported, expected {' or '.join(known)}."
            )
    return SpladeSettings(values[0], 1 if values[1] == "relu" else 2)


def _logit_score(folder: Path) -> LogitScoreSettings:
    where = folder / CONFIG
    config = read_json(where)
    check_keys(config, where, "true_token_id", "false_token_id", FEATURE_KEYS[0])
    if config.get(FEATURE_KEYS[0], LOGITS) != LOGITS:
        raise SourceError(f"{where}: {FEATURE_KEYS[0]} {str(config[FEATURE_KEYS[0]])[:60]!r}, expected {LOGITS!r}.")
    tokens = [integer(config, "true_token_id", 0, where=str(where))]
    if config.get("false_token_id") is not None:
        tokens.append(integer(config, "false_token_id", 0, where=str(where)))
    return LogitScoreSettings(tuple(tokens))


def _dense(folder: Path) -> DenseSettings:
    where = folder / CONFIG
    config = read_json(where)
    check_keys(
        config, where, "in_features", "out_features", "bias", "activation_function", "use_residual", *FEATURE_KEYS
    )
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    name = activation.rpartition(".")[2]
    if not activation.startswith("torch.nn.") or name not in ACTIVATIONS:
        raise SourceError(
            f"{where}: activation_function {activation[:100]} is not supported, expected one of torch.nn: "
            f"{', '.join(ACTIVATIONS)}. Choose a model with one of these."
        )
    inner, outer = integer(config, "in_features", 1), integer(config, "out_features", 1)
    shapes = {"linear.weight": [outer, inner]}
    if config.get("bias", True):
        shapes["linear.bias"] = [outer]
    residual = bool(config.get("use_residual", False))
    if residual and inner != outer:
        shapes["residual.weight"] = [outer, inner]
    return DenseSettings(_weights(folder, shapes), name, residual)


def _layer_norm(folder: Path) -> LayerNormSettings:
    config = read_json(folder / CONFIG)
    check_keys(config, folder / CONFIG, "dimension")
    width = [integer(config, "dimension", 1)]
    return LayerNormSettings(_weights(folder, {"norm.weight": width, "norm.bias": width}))


def _normalize(folder: Path) -> NormalizeSettings:
    return NormalizeSettings()


def _mask(folder: Path) -> MaskSettings:
    where = folder / CONFIG
    config = read_json(where)
    check_keys(config, where, "skiplist_words", "skiplist_tasks", "keep_only_token_ids")
    if config.get("keep_only_token_ids"):
        raise SourceError(f"{where}: keep_only_token_ids is not supported, expected null. Choose another model.")
    found = {}
    for key, default in (("skiplist_words", []), ("skiplist_tasks", ["document"])):
        given = default if config.get(key) is None else config[key]
        found[key] = [given] if isinstance(given, str) and key == "skiplist_tasks" else given
        if not isinstance(found[key], list) or not all(isinstance(each, str) for each in found[key]):
            raise SourceError(f"{where}: {key} {str(given)[:60]} is no list of texts. Fix it.")
    return MaskSettings(tuple(found["skiplist_words"]), tuple(found["skiplist_tasks"]))


def _dropout(folder: Path) -> None:
    """Nothing: it is for training."""


FEATURE_KEYS = ("module_input_name", "module_output_name")
OF_FEATURES = ("Dense", "Normalize")  # modules that name what they read and write
READERS: Mapping[str, Callable[[Path], SentenceModule | None]] = {
    "Pooling": _pooling,
    "SpladePooling": _splade,
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": _normalize,
    "Dropout": _dropout,
    "LogitScore": _logit_score,
    "MultiVectorMask": _mask,
}


def check_keys(config: Mapping[str, Any], where: Path, *known: str) -> None:
    """Raise `SourceError` for a setting that is not among the `known` ones."""
    if unknown := sorted(set(config) - set(known)):
        raise SourceError(
            f"{where}: the setting {unknown[0][:60]!r} is not supported, expected {', '.join(known)}. "
            "Remove it if it has no effect."
        )


def _check_features(where: Path, feature: str, required: bool) -> None:
    """Raise `SourceError` unless a module reads and writes `feature`; without naming it only if not `required`."""
    config = read_json(where) if where.is_file() else {}  # older versions save nothing for Normalize
    source = config.get(FEATURE_KEYS[0])
    for key, found in zip(FEATURE_KEYS, (source, config.get(FEATURE_KEYS[1])), strict=True):
        if found != feature and (found is not None or (required and source is None)):
            raise SourceError(
                f"{where}: {key} {str(found)[:60]!r} is not supported, expected {feature!r}. "
                "Choose a model whose modules work on it."
            )


def _weights(folder: Path, shapes: Mapping[str, list[int]]) -> Path:
    """The file of a module's weights, checked for names and shapes. Raises `SourceError`."""
    file = folder / WEIGHTS
    if not file.is_file():
        raise SourceError(
            f"{folder}: found no {WEIGHTS}. Load the model with sentence-transformers and save it again to write it."
        )
    found = {name: entry.shape for name, entry in read_header(file)[0].items()}
    if found != shapes:
        raise SourceError(f"{file}: weights {found}, expected {dict(shapes)} by its {CONFIG}. Copy the folder again.")
    return file


def module_weights(file: Path) -> dict[str, Any]:
    """The weights of a module as float32 torch tensors, copied from its file."""
    return {name: mapped.tensor.float().clone() for name, mapped in map_tensors(file).items()}
