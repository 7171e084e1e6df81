"""Calibration data: real text or arrays to observe activations on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from intaglio.bundle.bundle import MODEL, Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.modalities.table import modality_of
from intaglio.runtime.text.inputs import MASK, InputsUsed

OPTION = "--calibration"
IDS = "input_ids"


@dataclass(frozen=True)
class CalibrationData:
    """A file of inputs for a bundle's model, checked when opened, and read when a pass requests batches."""

    path: Path
    bundle: Bundle

    @classmethod
    def open(cls, path: str | Path, bundle: Bundle, graph: str = MODEL) -> Self:
        """Open `path`: UTF-8 with one text per line (blank lines are skipped), or .npz arrays.

        Texts are tokenized with the bundle's tokenizer, and truncated to the model's maximum. The arrays of an .npz
        file have the names of the model's inputs; their first axis is the samples. A speech recogniser takes a folder
        or a list of recordings instead (`intaglio.runtime.speech.recording_list`). `graph`: that they are inputs of;
        of an encoder-decoder only an encoder for recordings has calibration data. Raises `UsageError` for a missing,
        empty or non-UTF-8 file, or a bundle without tokenizer; `EngineError` for arrays that do not fit.
        """
        if bundle.manifest.encoder is not None and (graph == MODEL or bundle.manifest.transcriber is None):
            part = "decoder" if graph == MODEL else "encoder"
            more = "" if bundle.manifest.transcriber is None else ", or calibrate its encoder: --graph encoder.onnx"
            raise UsageError(
                f"bundle {bundle.path}: is an encoder-decoder, whose {part} cannot be calibrated. "
                f"Use a recipe that needs no text, such as rtn{more}."
            )
        data = cls(Path(path), bundle)
        data.load(1, 1)
        return data

    def load(self, samples: int, batch_size: int) -> tuple[list[dict[str, Array]], InputsUsed]:
        """Return the first `samples` texts, rows, or (for a decoder) chunks of text as feeds, and their source."""
        return modality_of(self.bundle.manifest).calibration(self.bundle, self.path, samples, batch_size, OPTION)


def count_tokens(batches: Sequence[dict[str, Array]]) -> int:
    """Count the tokens in `batches`: those that a mask [batch, sequence] keeps, else all token ids; 0 without any.

    A decoder's mask [batch, tokens, capacity] is not used: it marks the visible cache slots, not the real tokens.
    """
    total = 0
    for batch in batches:
        if MASK in batch and batch[MASK].ndim == 2:
            total += int(np.count_nonzero(batch[MASK]))
        elif IDS in batch:
            total += batch[IDS].size
    return total
