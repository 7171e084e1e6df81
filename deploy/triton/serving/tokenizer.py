"""The tokenizer before an encoder on Triton's onnxruntime or tensorrt backend: texts in, token ids and masks out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as server

from intaglio.bundle.manifest import Prompt
from intaglio.deploy.triton.serving.requests import failure, settings_of, tensor, texts_of, version_folder
from intaglio.deploy.triton.serving.settings import LENGTH_STEP, TokenizerSettings
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer


class TritonPythonModel:
    """Tokenizes the texts of each request, padded to a multiple of `LENGTH_STEP` tokens where the model allows it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the tokenizer."""
        given = settings_of(args, TokenizerSettings)
        names = given.inputs.split(",")
        self._tokenizer = Tokenizer(
            version_folder(args) / TOKENIZER, names, given.max_length, pad=(given.pad_token_id,)
        )
        self._prompt, self._least = Prompt(given.prompt, given.excluded_tokens), given.min_length

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        try:
            texts = texts_of(request)
            sequences = self._tokenizer.encode(texts, prompt=self._prompt)
            for text, sequence in zip(texts, sequences, strict=True):
                self._tokenizer.check_length(text, sequence)
            feeds = self._tokenizer.pad(sequences, LENGTH_STEP, self._least)
        except Exception as error:
            return failure(error)
        return server.InferenceResponse([tensor(name, array, np.int64) for name, array in feeds.items()])

    def finalize(self) -> None:
        """Nothing is held."""
