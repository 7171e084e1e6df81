"""The verb `run`: one forward pass over inputs of the bundle's modality."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from intaglio.bundle import Bundle
from intaglio.runtime.modalities.modality import RunOptions
from intaglio.runtime.modalities.table import modality_of
from intaglio.runtime.speech.recognizer import SpeechOptions


def run(
    bundle: str | Path,
    inputs: Iterable[str],
    target: str = "ort-cpu",
    batch_size: int = 32,
    truncate: bool = False,
    top: int = 5,
    speech: SpeechOptions | None = None,
) -> Iterator[Any]:
    """Run `bundle` on `inputs` and yield one result per input, in order.

    For a bundle that takes text, inputs are texts and results are `Ran`: see `intaglio.runtime.run_texts`. For a speech
    recogniser, inputs are the paths of recordings and results are `Transcribed` (`intaglio.runtime.speech`); `speech`
    has its options. Raises `UsageError` for an input that the model does not accept, `BundleError` for another bundle.
    """
    opened = Bundle.open(bundle)
    return modality_of(opened.manifest).run(opened, inputs, RunOptions(target, batch_size, truncate, top, speech))
