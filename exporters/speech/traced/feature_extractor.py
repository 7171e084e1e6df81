"""The feature extractor of a checkpoint: what `transformers` does with a recording before the model reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.processor_settings import processor_settings
from intaglio.exporters.files.config import integer

WAVEFORMS = "Wav2Vec2FeatureExtractor"
RATES = (1_000, 192_000)  # samples a second
# What a file may say without any effect on a recording of one channel.
WITHOUT_EFFECT = {
    "_processor_class", "auto_map", "feature_extractor_type", "processor_class", "return_attention_mask",
    "return_tensors",
}  # fmt: skip


@dataclass(frozen=True)
class Waveforms:
    """How samples become the input of a model that reads the waveform."""

    sample_rate: int  # Hz
    normalizes: bool  # to mean 0 and variance 1


def read_waveforms(folder: Path) -> Waveforms:
    """The feature extractor of the checkpoint in `folder`. Raises `SourceError` if it is missing, or another one."""
    file, given = extractor_settings(folder, WAVEFORMS)
    settings = {"do_normalize": True, **given}
    if not isinstance(normalizes := settings["do_normalize"], bool):
        raise SourceError(f"{file}: do_normalize is {str(normalizes)[:80]!r}, expected true or false. Fix it.")
    check_settings(file, settings, {"do_normalize", "sampling_rate"}, {"feature_size": 1})
    return Waveforms(sample_rate(settings, file), normalizes)


def extractor_settings(folder: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """The file with the settings of a feature extractor of the class `name`, and the settings."""
    file, given = processor_settings(folder, "feature_extractor", "recordings")
    if (found := str(given.get("feature_extractor_type") or name)) != name:
        raise SourceError(f"{file}: feature extractor {found[:80]} is not supported for this model, only {name}.")
    return file, given


def check_settings(file: Path, given: Mapping[str, Any], read: set[str], fixed: Mapping[str, Any]) -> None:
    """Raise `SourceError` for settings other than those `read`, unless they have the `fixed` value, or no effect."""
    fixed = {"padding_value": 0, "padding_side": "right", **fixed}
    for key in sorted(given.keys() - read - WITHOUT_EFFECT):
        if given[key] not in (None, False, fixed.get(key)):
            wanted = f", only {fixed[key]!r}" if key in fixed else ""
            raise SourceError(f"{file}: {key} {str(given[key])[:80]!r} is not supported{wanted}. Export another model.")


def sample_rate(given: Mapping[str, Any], file: Path) -> int:
    """The samples of a second."""
    rate = integer(given, "sampling_rate", RATES[0], 16_000, str(file))
    if rate > RATES[1]:
        raise SourceError(f"{file}: sampling_rate is {rate}, expected {RATES[0]} to {RATES[1]}. Fix it.")
    return rate
