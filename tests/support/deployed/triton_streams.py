"""Stream texts from a decoder: python triton_streams.py HOST:PORT MODEL REQUESTS prints the pieces of each text.

REQUESTS: a JSON list of objects with text_input or messages, and sampling_parameters and stream if any. All are sent
at the same time, over one gRPC stream. Printed is, for each, a list of [text_output, finish_reason], or its error.
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton


def inputs(request: dict[str, Any]) -> list[Any]:
    """The tensors of a request."""
    made = []
    for name, value in request.items():
        given = triton.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
        text = json.dumps(value) if isinstance(value, dict | list) else value
        given.set_data_from_numpy(np.array([text]) if isinstance(value, bool) else np.array([text.encode()], object))
        made.append(given)
    return made


def main(address: str, model: str, text: str) -> None:
    """Print what arrives for each request."""
    requests = json.loads(text)
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client = triton.InferenceServerClient(address)
    client.start_stream(lambda result, error: arrived.put((result, error)))
    for number, request in enumerate(requests):
        client.async_stream_infer(model, inputs(request), request_id=str(number), enable_empty_final_response=True)
    found: list[Any] = [[] for _ in requests]
    left = len(requests)
    while left:
        result, error = arrived.get(timeout=120)
        if error is not None:
            sys.stdout.write(json.dumps({"error": str(error)}))
            return
        response = result.get_response()
        number = int(response.id)
        pieces = [result.as_numpy(name) for name in ("text_output", "finish_reason")]
        if pieces[0] is not None:
            found[number].append([each[0].decode() for each in pieces])
        left -= response.parameters["triton_final_response"].bool_param
    client.stop_stream()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
