"""Optimisation profiles: the lengths of every symbolic axis that an engine is built for.

By default, the axis `batch` accepts 1 to 32 and is tuned for 8. Any other axis, such as `sequence`, accepts the minimum
to the maximum stated in the bundle (512 if it states none) and is tuned for 128. The axes of a decoder and of a
speech recogniser have their own defaults, see `decoding` and `listening`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from intaglio.bundle.bundle import Audio, Axis, Decoder, TensorSpec
from intaglio.errors import UsageError
from intaglio.networks.drafts import HIDDEN_TRANSFER

BATCH_OPTIMUM, BATCH_MAXIMUM = 8, 32  # the engine's memory grows with the maximum, its speed depends on the optimum
OPTIMUM, MAXIMUM = 128, 512  # for any other axis
# Maxima for a decoder: sequences and tokens per step, tokens whose logits are needed, and slots of the cache.
DECODED_TEXTS, PREFILL_TOKENS, POSITIONS_WANTED, CAPACITY = 8, 512, 64, 2048
# Of audio: recordings in a batch, the seconds that an engine is tuned for, and those of a window of a long recording.
RECORDINGS, TUNED_SECONDS, LONGEST_SECONDS = 8, 10.0, 30.0
FEATURES_A_SECOND = 100  # frames, with the usual hop of 10 ms
LARGEST = (1 << 31) - 1  # TensorRT's dimensions are int32 in its kernels


class Range(NamedTuple):
    """The allowed lengths of an axis of an engine, and the one that the engine is tuned for."""

    minimum: int
    optimum: int
    maximum: int


def parse(text: str, option: str) -> Range:
    """Parse "MIN:OPT:MAX", or one number for all three. `option` names it in the `UsageError`."""
    parts = text.split(":")
    if len(parts) not in (1, 3) or not all(part.isascii() and part.isdecimal() for part in parts):
        raise UsageError(f"{option} {text!r}: expected MIN:OPT:MAX or one number, such as 1:8:32 or 8.")
    if any(len(part) > len(str(LARGEST)) for part in parts):
        raise UsageError(f"{option} {text}: expected lengths up to {LARGEST}.")
    lengths = [int(part) for part in parts] * (3 if len(parts) == 1 else 1)
    return checked(Range(*lengths), option)


def asked(batch: str | None, sequence: str | None, axes: Mapping[str, str] | None) -> dict[str, Range]:
    """The lengths of axes that somebody gave as texts, those of other names in `axes`. Raises `UsageError`."""
    given = {"batch": batch, "sequence": sequence}
    found = {name: parse(text, f"--{name}") for name, text in given.items() if text is not None}
    if twice := [name for name in axes or {} if given.get(name) is not None]:
        raise UsageError(f"axis {twice[0]}: lengths given twice. Give them once.")
    return found | {name: parse(text, f"axis {name}") for name, text in (axes or {}).items()}


def checked(asked: Range, option: str) -> Range:
    """Return `asked`, or raise `UsageError` unless 0 < minimum <= optimum <= maximum."""
    if not 0 < asked.minimum <= asked.optimum <= asked.maximum <= LARGEST:
        raise UsageError(f"{option} {_shown(asked)}: expected 0 < MIN <= OPT <= MAX <= {LARGEST}.")
    return asked


def ranges(inputs: Iterable[TensorSpec], axes: Mapping[str, Axis], asked: Mapping[str, Range]) -> dict[str, Range]:
    """The range of every symbolic axis of `inputs`: as requested, or the default.

    Raises `UsageError` if a requested axis does not exist, or cannot have these lengths.
    """
    names = dict.fromkeys(length for spec in inputs for length in spec.shape if isinstance(length, str))
    for name, wanted in asked.items():
        if name not in names:
            raise UsageError(f"axis {name}: the bundle's inputs have {', '.join(names) or 'no symbolic axes'}.")
        axis = axes.get(name, Axis())
        if wanted.minimum < axis.minimum or (axis.maximum is not None and wanted.maximum > axis.maximum):
            bounds = f"at least {axis.minimum}" if axis.maximum is None else f"{axis.minimum} to {axis.maximum}"
            raise UsageError(f"axis {name}: got {_shown(wanted)}, but the model accepts {bounds}.")
    return {name: asked.get(name) or default(name, axes.get(name, Axis())) for name in names}


def default(name: str, axis: Axis) -> Range:
    """The default range of an axis."""
    if name == "batch":
        optimum = BATCH_OPTIMUM
        maximum = BATCH_MAXIMUM if axis.maximum is None else min(BATCH_MAXIMUM, axis.maximum)
    else:
        optimum = OPTIMUM
        maximum = MAXIMUM if axis.maximum is None else axis.maximum
    minimum = max(axis.minimum, 1)
    maximum = max(minimum, maximum)
    return Range(minimum, min(max(optimum, minimum), maximum), maximum)


def decoding(decoder: Decoder, asked: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges of a decoder's axes: as requested, or tuned for decoding one sequence, one token per step.

    The cache has a single length, since TensorRT requires it for writing. The number of drafted tokens follows from
    the number of tokens to draft after.
    """
    capacity = asked["capacity"].maximum if "capacity" in asked else min(decoder.max_positions, CAPACITY)
    most = min(capacity, POSITIONS_WANTED)
    lengths = {
        "batch": Range(1, 1, DECODED_TEXTS),
        "tokens": Range(1, 1, min(capacity, PREFILL_TOKENS)),
        "positions_wanted": Range(1, 1, most),
        "capacity": Range(capacity, capacity, capacity),
        **({"drafting": Range(1, 1, most)} if decoder.drafts else {}),
        **asked,
    }
    if decoder.draft_kind == HIDDEN_TRANSFER:
        lengths.setdefault("drafted", Range(*(decoder.drafts * drafting for drafting in lengths["drafting"])))
    if decoder.image_width:  # all tokens of a prefill may be of images
        lengths.setdefault("image_tokens", Range(1, 1, lengths["batch"].maximum * lengths["tokens"].maximum))
    return lengths


def listening(audio: Audio, axes: Mapping[str, Axis], asked: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges of a speech recogniser's axes: as requested, or recordings up to a window of a long one."""
    axis, per_second = ("samples", audio.sample_rate) if not audio.features else ("feature_frames", FEATURES_A_SECOND)
    shortest = max(axes.get(axis, Axis()).minimum, 1)
    tuned, longest = (max(shortest, int(seconds * per_second)) for seconds in (TUNED_SECONDS, LONGEST_SECONDS))
    return {"batch": Range(1, 1, RECORDINGS), axis: Range(shortest, tuned, longest), **asked}


def shapes(inputs: Iterable[TensorSpec], lengths: Mapping[str, Range]) -> dict[str, dict[str, list[int]]]:
    """Input name -> {"min", "opt", "max"} -> shape: an optimisation profile as the bundle records it."""
    return {
        spec.name: {
            kind: [lengths[length][place] if isinstance(length, str) else length for length in spec.shape]
            for place, kind in enumerate(("min", "opt", "max"))
        }
        for spec in inputs
    }


def limits(inputs: Iterable[TensorSpec], profile: Mapping[str, Mapping[str, list[int]]]) -> dict[str, Axis]:
    """The lengths that an engine with `profile` accepts for every symbolic axis of `inputs`."""
    return {
        length: Axis(profile[spec.name]["min"][place], profile[spec.name]["max"][place])
        for spec in inputs
        for place, length in enumerate(spec.shape)
        if isinstance(length, str)
    }


def _shown(asked: Range) -> str:
    return ":".join(map(str, asked))
