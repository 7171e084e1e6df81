"""Checkpoints of NVIDIA NeMo: Squeezeformer and Conformer (Fast Conformer too) with a CTC head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from intaglio.errors import SourceError
from intaglio.exporters.files.config import integer
from intaglio.networks.speech.configuration import (
    ConformerConfig,
    FrontEnd,
    SpeechConfig,
    SqueezeformerConfig,
    Subsampling,
    check_front_end,
)
from intaglio.networks.speech.spectrum import mel_filters

if TYPE_CHECKING:
    from torch import Tensor

# The last part of `_target_` -> the names of its subsampling, the default first.
SQUEEZEFORMER = "SqueezeformerEncoder"
ENCODERS = {SQUEEZEFORMER: ("dw_striding", "striding"), "ConformerEncoder": ("striding", "dw_striding")}
SUBSAMPLINGS: dict[str, Literal["convolution", "separable"]] = {"striding": "convolution", "dw_striding": "separable"}
WORD_MARK = {"characters": " ", "pieces": "▁"}
CONSTANT_PADDING = (2, 5)  # NeMo's version from which the signal is padded with zeros, and the last frame is dropped
SAME_FILTERS = 1e-5
REPORTED = 40  # characters of a value that an error shows

# Parts of NeMo's names -> ours, tried in order; a dropped tensor has None.
RULES: tuple[tuple[str, str | None], ...] = (
    (r"preprocessor\..*", None),
    (r"decoder\.decoder_layers\.0\.(.*)", r"head.\1"),
    (r"encoder\.pre_encode\.out\.(.*)", r"encoder.subsampling.linear.\1"),
    (r"encoder\.pre_ln\.(.*)", r"encoder.norm.\1"),
    (r"encoder\.time_reduce_layer\.dw_conv\.(.*)", r"encoder.time_reduction.depthwise.\1"),
    (r"encoder\.time_reduce_layer\.pw_conv\.(.*)", r"encoder.time_reduction.pointwise.\1"),
    (r"encoder\.time_recovery_layer\.(.*)", r"encoder.time_recovery.\1"),
)
ATTENTION = (
    (r"linear_([qkv])\.(.*)", r"\1_proj.\2"),
    (r"linear_out\.(.*)", r"o_proj.\1"),
    (r"linear_pos\.(.*)", r"position_proj.\1"),
    (r"pos_bias_([uv])", r"bias_\1"),
)
CONVOLUTION = (
    (r"pointwise_conv([12])\.(.*)", r"pointwise\1.\2"),
    (r"depthwise_conv\.(.*)", r"depthwise.\1"),
    (r"batch_norm\.(.*)", r"norm.\1"),
)
MODULES = {  # a module's name in a block -> ours, and the rules for its content
    "self_attn": ("attention", ATTENTION),
    "conv": ("convolution", CONVOLUTION),
    "feed_forward1": ("feed_forward1", ()),
    "feed_forward2": ("feed_forward2", ()),
}
SHORT = {"self_att": "attention", "conv": "convolution", "out": "out"}  # in the names of norms


def read_nemo(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], where: str
) -> tuple[SpeechConfig, dict[str, Tensor], dict[str, Any]]:
    """Configuration, weights under our names, and vocabulary of an archive's configuration and weights.

    `pad_to` is not read: the frames with which NeMo pads a recording to a multiple change its last output frame, and
    here padding never changes anything.

    Raises `SourceError` for a network or an option that is not supported.
    """
    encoder, preprocessor = (_section(config, name, where) for name in ("encoder", "preprocessor"))
    target = str(encoder.get("_target_", "")).rpartition(".")[2]
    if target not in ENCODERS:
        raise SourceError(f"{where}: encoder {target[:REPORTED]!r}, expected one of {', '.join(ENCODERS)}.")
    vocabulary = _vocabulary(config, where)
    front_end = _front_end(preprocessor, str(config.get("nemo_version", "0")), where)
    _check_filters(front_end, weights, where)
    shared = _shared(encoder, ENCODERS[target], front_end, len(vocabulary["tokens"]), where)
    if target == SQUEEZEFORMER:
        read: SpeechConfig = SqueezeformerConfig(
            model_type="squeezeformer",
            time_reduce_layer=_layer(encoder, "time_reduce_idx"),
            time_recover_layer=_layer(encoder, "time_recovery_idx"),
            **shared,
        )
    else:
        bias = bool(encoder.get("use_bias", True))
        read = ConformerConfig(model_type="conformer-ctc", bias=bias, **shared)
    separable = read.subsampling.kind == "separable"
    scaled = isinstance(read, SqueezeformerConfig)
    named = {_name(name, separable, scaled): tensor for name, tensor in weights.items()}
    return read, {name: _shaped(name, tensor) for name, tensor in named.items() if name is not None}, vocabulary


def _layer(encoder: Mapping[str, Any], name: str) -> int | None:
    return None if encoder.get(name) is None else integer(encoder, name, 0)


def _section(config: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    section = config.get(name)
    if not isinstance(section, dict):
        raise SourceError(f"{where}: no section {name!r}, expected the configuration of a CTC model.")
    return section


def _vocabulary(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The tokens of the decoder, with the blank after them."""
    tokens = _section(config, "decoder", where).get("vocabulary")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(each, str) for each in tokens):
        raise SourceError(f"{where}: decoder.vocabulary is not a list of tokens, expected that of a CTC model.")
    kind = "characters" if " " in tokens else "pieces"
    return {"tokens": [*tokens, "<blank>"], "blank": len(tokens), "word_mark": WORD_MARK[kind]}


def _only(section: Mapping[str, Any], name: str, supported: tuple[Any, ...], where: str) -> Any:
    """The option `name`, by default the first of `supported`. Raises `SourceError` for another value."""
    value = section.get(name, supported[0])
    value = tuple(value) if isinstance(value, list) else value
    if value not in supported:
        shown = ", ".join(map(repr, supported))
        raise SourceError(f"{where}: {name} is {str(value)[:REPORTED]!r}, supported are {shown}.")
    return value


def _shared(
    encoder: Mapping[str, Any], subsamplings: tuple[str, ...], front_end: FrontEnd, tokens: int, where: str
) -> dict[str, Any]:
    """The options that both architectures have."""
    _only(encoder, "self_attention_model", ("rel_pos",), where)
    _only(encoder, "conv_norm_type", ("batch_norm",), where)
    _only(encoder, "att_context_size", ((-1, -1), None, ((-1, -1),)), where)
    _only(encoder, "conv_context_size", (None,), where)
    _only(encoder, "causal_downsampling", (False,), where)
    width = integer(encoder, "d_model", 2)
    _only(encoder, "feat_out", (-1, width), where)
    _only(encoder, "feat_in", (front_end.mels,), where)
    channels = encoder.get("subsampling_conv_channels", -1)
    subsampling = Subsampling(
        kind=SUBSAMPLINGS[_only(encoder, "subsampling", subsamplings, where)],
        factor=integer(encoder, "subsampling_factor", 2, default=4),
        channels=0 if channels in (-1, None) else integer(encoder, "subsampling_conv_channels", 1),
    )
    return {
        "vocab_size": tokens,
        "blank_token_id": tokens - 1,
        "hidden_size": width,
        "num_hidden_layers": integer(encoder, "n_layers", 1),
        "num_attention_heads": integer(encoder, "n_heads", 1, default=4),
        "front_end": front_end,
        "subsampling": subsampling,
        "feed_forward_expansion": integer(encoder, "ff_expansion_factor", 1, default=4),
        "conv_kernel_size": integer(encoder, "conv_kernel_size", 1, default=31),
        "scale_input": bool(encoder.get("xscaling", True)),
    }


def _front_end(section: Mapping[str, Any], version: str, where: str) -> FrontEnd:
    _only(section, "window", ("hann",), where)
    _only(section, "log", (True,), where)
    _only(section, "frame_splicing", (1,), where)
    _only(section, "mag_power", (2.0,), where)
    _only(section, "mel_norm", ("slaney",), where)
    _only(section, "exact_pad", (False,), where)
    _only(section, "lowfreq", (0,), where)
    rate = integer(section, "sample_rate", 1, default=16000)
    _only(section, "highfreq", (None, rate // 2, rate / 2), where)
    window, hop = (_samples(section, name, rate, default) for name, default in (("size", 0.02), ("stride", 0.01)))
    preemphasis = section.get("preemph", 0.97)
    zeros = _version(version) >= CONSTANT_PADDING
    return FrontEnd(
        sample_rate=rate,
        window=window,
        hop=hop,
        fft_size=integer(section, "n_fft", 2, default=1 << (window - 1).bit_length()),
        mels=integer(section, "features", 1, default=64),
        preemphasis=float(preemphasis or 0.0),
        padding="zeros" if zeros else "reflect",
        last_frame=not zeros,
        guard=_only(section, "log_zero_guard_type", ("add", "clamp"), where),
        floor=_only(section, "log_zero_guard_value", (2.0**-24,), where),
        normalize=_only(section, "normalize", ("per_feature", None, "NA"), where) == "per_feature",
    )


def _samples(section: Mapping[str, Any], name: str, rate: int, default: float) -> int:
    """A length that NeMo has in seconds, or in samples under the name with n_."""
    if section.get(f"n_window_{name}"):
        return integer(section, f"n_window_{name}", 1)
    seconds = section.get(f"window_{name}", default)
    return int((default if seconds is None else float(seconds)) * rate)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _check_filters(front_end: FrontEnd, weights: Mapping[str, Tensor], where: str) -> None:
    """Raise `SourceError` if the archive's mel filters are not those that we compute."""
    found = weights.get("preprocessor.featurizer.fb")
    if found is None:
        return
    check_front_end(front_end, where)
    ours, theirs = mel_filters(front_end.sample_rate, front_end.fft_size, front_end.mels), found.float().numpy()
    if theirs.size != ours.size or not np.abs(theirs.reshape(ours.shape) - ours).max() <= SAME_FILTERS:
        raise SourceError(f"{where}: its mel filters differ from those that its options describe. It is damaged.")


def _name(name: str, separable: bool, scaled: bool) -> str | None:
    """Our name of NeMo's tensor `name`; None for one that is not needed. `scaled`: of a Squeezeformer."""
    if name.endswith(".num_batches_tracked"):
        return None
    if found := re.fullmatch(r"encoder\.layers\.(\d+)\.(.*)", name):
        return f"encoder.layers.{found[1]}.{_inside_block(found[2], scaled)}"
    if found := re.fullmatch(r"encoder\.pre_encode\.conv\.(\d+)\.(.*)", name):
        return f"encoder.subsampling.stages.{_stage(int(found[1]), separable)}.{found[2]}"
    for pattern, replacement in RULES:
        if re.fullmatch(pattern, name):
            return replacement and re.sub(pattern, replacement, name)
    return name  # which no module of ours has, so that the check of all names reports it


def _stage(index: int, separable: bool) -> str:
    """The place of a convolution among stages that are followed by ReLU: "stage.convolution"."""
    if not separable or index < 2:
        return f"{index // 2}.0"
    stage, inside = divmod(index - 2, 3)
    return f"{stage + 1}.{inside}"


def _inside_block(name: str, scaled: bool) -> str:
    module, _, rest = name.partition(".")
    if module.startswith("norm_"):
        normed = SHORT.get(module.removeprefix("norm_"), module.removeprefix("norm_"))
        return f"{normed}.norm.{rest}" if scaled else f"norm_{normed}.{rest}"
    if module.endswith("_scale"):
        ours = MODULES.get(module.removesuffix("_scale"), (module, ()))[0]
        return f"{ours}.scaling.{rest.replace('scale', 'weight')}"
    ours, rules = MODULES.get(module, (module, ()))
    for pattern, replacement in rules:
        if re.fullmatch(pattern, rest):
            rest = re.sub(pattern, replacement, rest)
            break
    return f"{ours}.module.{rest}" if scaled else f"{ours}.{rest}"


def _shaped(name: str, tensor: Tensor) -> Tensor:
    """Pointwise convolutions as the linear layers that they are, and the biases of positions with an axis of frames."""
    if name.rpartition(".")[2] in ("bias_u", "bias_v"):
        return tensor[:, None]
    linear = ("pointwise1.weight", "pointwise2.weight", "time_reduction.pointwise.weight", "head.weight")
    return tensor[..., 0] if name.endswith(linear) and tensor.ndim == 3 else tensor
