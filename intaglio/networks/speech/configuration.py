"""What config.json says of a speech recogniser: its front end, its encoder and its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from intaglio.errors import SourceError, one_line

Normalization = Literal["scaled-post", "post", "pre"]
Activation = Literal["swish", "none"]


class FrontEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Log-mel features of a waveform.

    A frame is the power spectrum of `window` samples under a Hann window, taken every `hop` samples around its centre,
    in `mels` bands, as the logarithm of the band's power.
    """

    sample_rate: int = 16000  # Hz
    window: int = 400  # samples
    hop: int = 160  # samples
    fft_size: int = 512  # the spectrum has fft_size / 2 + 1 bins
    mels: int = 80
    constants: Literal["computed", "stored"] = "computed"  # the window's waves and the bands' filters: see `LogMel`
    periodic_window: bool = False  # w(window) = w(0), rather than w(window - 1) = w(0)
    preemphasis: float = 0.97  # x(t) - preemphasis · x(t - 1); 0: none
    padding: Literal["zeros", "reflect"] = "zeros"  # what lies before the first and after the last sample
    last_frame: bool = False  # samples // hop + 1 frames, rather than samples // hop
    guard: Literal["add", "clamp"] = "add"  # how the logarithm of 0 is avoided
    floor: float = 2.0**-24  # added to a band's power, or its minimum
    normalize: bool = True  # each band to mean 0 and deviation 1 over the row's frames
    precision: Literal["float32", "float16"] = "float32"  # dtype that the features are rounded to


class Subsampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The convolutions between the front end and the first block, which reduce the frame rate by `factor`."""

    kind: Literal["convolution", "separable", "bands"] = "separable"  # "bands": 1-D, over time
    factor: int = 4  # a power of 2; 2 for "bands"
    channels: int = 0  # 0: the encoder's width


class SpeechConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What all architectures have."""

    model_type: str
    vocab_size: int  # tokens, the blank among them
    blank_token_id: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    front_end: FrontEnd = FrontEnd()
    subsampling: Subsampling = Subsampling()
    feed_forward_expansion: int = 4
    conv_kernel_size: int = 31
    scale_input: bool = True  # the encoder's input is multiplied by √hidden_size
    dropout: float = 0.1
    attention_dropout: float = 0.1

    @property
    def frame_samples(self) -> int:
        """The samples between two output frames."""
        return self.front_end.hop * self.subsampling.factor


class ConformerConfig(SpeechConfig, frozen=True, kw_only=True):
    """Conformer with a CTC head (Gulati et al., arXiv:2005.08100)."""

    relative_positions: bool = True  # False: attention without positions
    batch_norm: bool = True  # False: already folded into the depthwise convolutions
    bias: bool = True  # of the linear layers and convolutions of a block


class SqueezeformerConfig(SpeechConfig, frozen=True, kw_only=True):
    """Squeezeformer (thesis, chapter 5). The last four options are the ablations of its table 5.4."""

    time_reduce_layer: int | None = None  # the block before which the frame rate is halved
    time_recover_layer: int | None = None  # the block before which it is recovered; None: the last
    skip_connection: bool = True
    recover_time: bool = True
    normalization: Normalization = "scaled-post"
    convolution_activation: Activation = "swish"

    @property
    def time_reduced(self) -> tuple[int | None, int | None]:
        """The blocks before which the frame rate is halved and recovered; None: it is not."""
        if self.time_reduce_layer is None:
            return None, None
        last = self.num_hidden_layers - 1
        recover = last if self.time_recover_layer is None else self.time_recover_layer
        return self.time_reduce_layer, recover if self.recover_time else None

    @property
    def frame_samples(self) -> int:
        """The samples between two output frames."""
        reduced, recovered = self.time_reduced
        return super().frame_samples * (2 if reduced is not None and recovered is None else 1)


CONFIGS: dict[str, type[SpeechConfig]] = {
    "conformer-ctc": ConformerConfig,
    "squeezeformer": SqueezeformerConfig,
}
LIMITS = {  # field -> (minimum, maximum); far beyond any model, and small enough to be allocated
    "vocab_size": (2, 1 << 20),
    "hidden_size": (2, 1 << 14),
    "num_hidden_layers": (1, 1000),
    "num_attention_heads": (1, 1 << 10),
    "feed_forward_expansion": (1, 64),
    "conv_kernel_size": (1, 1 << 10),
}
MOST_WAVES = 1 << 24  # fft_size times window: the numbers of the Fourier transform
MOST_FILTERS = 1 << 22  # mels times fft_size
FRONT_END_LIMITS = {
    "sample_rate": (1000, 1_000_000),
    "window": (2, 1 << 16),
    "hop": (1, 1 << 16),
    "fft_size": (2, 1 << 16),
    "mels": (1, 1 << 12),
}


def read_config(config: Mapping[str, Any], where: str) -> SpeechConfig:
    """The configuration in the JSON object `config` of the file `where`.

    Raises `SourceError` for an unknown architecture, an unknown or missing option, or an invalid value.
    """
    kind = CONFIGS.get(str(config.get("model_type")))
    if kind is None:
        raise SourceError(
            f"{where}: model_type is {config.get('model_type')!r}, expected one of {', '.join(CONFIGS)}. Fix it."
        )
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    ignored = {"architectures"}
    if unknown := sorted(set(config) - known - ignored):
        raise SourceError(
            f"{where}: unknown option {str(unknown[0])[:40]!r}, expected some of {', '.join(sorted(known))}. Fix it."
        )
    try:
        read = msgspec.convert({name: value for name, value in config.items() if name in known}, kind)
    except msgspec.ValidationError as error:
        raise SourceError(f"{where}: {one_line(error, 200)}. Fix it.") from error
    check_config(read, where)
    return read


def check_config(config: SpeechConfig, where: str) -> None:
    """Raise `SourceError` for values that no model can have."""
    front_end, subsampling = config.front_end, config.subsampling
    for name, (low, high) in LIMITS.items():
        if not low <= (value := getattr(config, name)) <= high:
            raise SourceError(f"{where}: {name} is {value}, expected {low} to {high}. Fix it.")
    check_front_end(front_end, where)
    factor = subsampling.factor
    wanted: list[tuple[bool, str]] = [
        (config.hidden_size % config.num_attention_heads == 0, "hidden_size is not a multiple of num_attention_heads"),
        (config.hidden_size % 2 == 0, "hidden_size is odd, but each sine of the positions needs its cosine"),
        (config.conv_kernel_size % 2 == 1, "conv_kernel_size is even, so a frame is not in its middle"),
        (0 <= config.blank_token_id < config.vocab_size, "blank_token_id is not below vocab_size"),
        (2 <= factor <= 64 and factor & (factor - 1) == 0, "subsampling.factor is not a power of 2 from 2 to 64"),
        (subsampling.kind != "bands" or factor == 2, "subsampling.factor is not 2, the only one of kind 'bands'"),
        (0 <= subsampling.channels <= 1 << 14, "subsampling.channels is not in 0 to 16384"),
        (0 <= config.dropout < 1 and 0 <= config.attention_dropout < 1, "a dropout is not in [0, 1)"),
    ]
    if isinstance(config, SqueezeformerConfig):
        reduce, last = config.time_reduce_layer, config.num_hidden_layers - 1
        recover = last if config.time_recover_layer is None else config.time_recover_layer
        ordered = reduce is None or 0 <= reduce < recover <= last
        wanted.append((ordered, f"time is reduced before block {reduce} and recovered before {recover} of 0 to {last}"))
    _require(wanted, where)


def check_front_end(front_end: FrontEnd, where: str) -> None:
    """Raise `SourceError` for values that no front end can have, before anything is computed from them."""
    for name, (low, high) in FRONT_END_LIMITS.items():
        if not low <= (value := getattr(front_end, name)) <= high:
            raise SourceError(f"{where}: front_end.{name} is {value}, expected {low} to {high}. Fix it.")
    size, window, mels = front_end.fft_size, front_end.window, front_end.mels
    wanted = [
        (window <= size, "front_end.window is longer than front_end.fft_size"),
        (front_end.hop <= window, "front_end.hop is longer than front_end.window, so samples are never read"),
        (size * window <= MOST_WAVES, f"front_end.fft_size times front_end.window is above {MOST_WAVES}"),
        (size * mels <= MOST_FILTERS, f"front_end.fft_size times front_end.mels is above {MOST_FILTERS}"),
        (0 <= front_end.preemphasis < 1, "front_end.preemphasis is not in [0, 1)"),
        (0 < front_end.floor < 1, "front_end.floor is not in (0, 1)"),
    ]
    _require(wanted, where)


def _require(wanted: Sequence[tuple[bool, str]], where: str) -> None:
    for holds, problem in wanted:
        if not holds:
            raise SourceError(f"{where}: {problem}. Fix it.")
