"""An encoder on Triton's Python backend: texts in, embeddings or classes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as server

from intaglio.bundle.bundle import Bundle
from intaglio.deploy.triton.serving.requests import failure, settings_of, tensor, texts_of, version_folder
from intaglio.deploy.triton.serving.settings import BUNDLE, EncoderSettings
from intaglio.runtime.text.embedding_prompts import find_prompt
from intaglio.runtime.text.run_texts import TextRunner
from intaglio.runtime.text.tasks import Ran
from intaglio.runtime.text.tokenizer import TokenSequence


class TritonPythonModel:
    """Runs the texts of all requests of a batch together; a text that the model does not take fails alone."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the bundle."""
        given = settings_of(args, EncoderSettings)
        bundle = Bundle.open(version_folder(args) / BUNDLE)
        # Threads that busy-wait between batches would take the processor from the server.
        self._runner = TextRunner(bundle, given.target, given.threads, spinning=False)
        self._prompt = find_prompt(bundle.manifest, given.prompt_name)
        self._labels = bundle.manifest.labels

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order."""
        read = [self._read(request) for request in requests]
        texts = [text for each in read if not isinstance(each, Exception) for text in each[0]]
        tokens = [sequence for each in read if not isinstance(each, Exception) for sequence in each[1]]
        try:
            results = iter(self._runner.run_tokens(texts, tokens) if texts else [])
        except Exception as error:
            return [failure(each if isinstance(each, Exception) else error) for each in read]
        return [
            failure(each) if isinstance(each, Exception) else self._response([next(results) for _ in each[0]])
            for each in read
        ]

    def _read(self, request: Any) -> tuple[list[str], list[TokenSequence]] | Exception:
        """The texts of a request and their tokens, or why it cannot be run."""
        try:
            texts = texts_of(request)
            sequences = self._runner.tokenizer.encode(texts, prompt=self._prompt)
            for text, sequence in zip(texts, sequences, strict=True):
                self._runner.check(text, sequence)
        except Exception as error:
            return error
        return texts, sequences

    def _response(self, results: Sequence[Ran]) -> Any:
        if self._labels:
            scores = [[(each.scores or {})[label] for label in self._labels] for each in results]
            found = [tensor("label", [[each.label] for each in results]), tensor("scores", scores, np.float32)]
        else:
            found = [tensor("embedding", [each.embedding for each in results], np.float32)]
        return server.InferenceResponse(found)

    def finalize(self) -> None:
        """Release the engine."""
        self._runner.close()
