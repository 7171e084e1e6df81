"""What follows a classifier on Triton's onnxruntime or tensorrt backend: logits in, label and scores out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as server

from intaglio.deploy.triton.serving.requests import array_of, settings_of, tensor, version_folder
from intaglio.deploy.triton.serving.settings import LABELS, ScoresSettings
from intaglio.runtime.text.tasks import SCORES


class TritonPythonModel:
    """Applies the activation to the logits, and names the most probable class."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the labels."""
        self._activation = SCORES[settings_of(args, ScoresSettings).activation]
        self._labels = (version_folder(args).parent / LABELS).read_text(encoding="utf-8").removesuffix("\n").split("\n")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order."""
        return [self._response(array_of(request, "logits")) for request in requests]

    def _response(self, logits: Any) -> Any:
        labels = [[self._labels[place]] for place in logits.argmax(axis=-1)]
        return server.InferenceResponse(
            [tensor("label", labels), tensor("scores", self._activation(logits), np.float32)]
        )

    def finalize(self) -> None:
        """Nothing is held."""
