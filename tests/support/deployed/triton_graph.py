"""The model.py of a stand-in for Triton's backend onnxruntime: the written graph and library, on the Python backend."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import triton_python_backend_utils as server


class TritonPythonModel:
    """Runs each request of a batch alone."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the graph, with the library that the configuration names."""
        config = json.loads(args["model_config"])
        options = onnxruntime.SessionOptions()
        for library in config["model_operations"]["op_library_filename"] if "model_operations" in config else ():
            options.register_custom_ops_library(library)
        graph = Path(args["model_repository"], args["model_version"], "model.onnx")
        self._session = onnxruntime.InferenceSession(graph, options)
        self._outputs = [each["name"] for each in config["output"]]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order."""
        names = [each.name for each in self._session.get_inputs()]
        responses = []
        for request in requests:
            feeds = {name: server.get_input_tensor_by_name(request, name).as_numpy() for name in names}
            found = self._session.run(self._outputs, feeds)
            responses.append(server.InferenceResponse(list(map(server.Tensor, self._outputs, found))))
        return responses
