"""Cancel streams: python triton_cancel.py HOST:PORT MODEL REQUEST prints what a request after them gets.

REQUEST, as for triton_streams.py, has a long text. It is asked for once, to its end; then by two streams that are
cancelled after their first piece, and at once another request for one token follows. Printed are the seconds of the
first and of the last request, its text, and the number of pieces before.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from typing import Any

import tritonclient.grpc as triton
from triton_streams import inputs

WAIT = 300  # seconds


def stream(address: str, model: str, request: dict[str, Any]) -> tuple[Any, queue.Queue[Any]]:
    """Start a stream; its client, and the queue that gets each piece, or the error."""
    arrived: queue.Queue[Any] = queue.Queue()

    def put(result: Any, error: Any) -> None:
        arrived.put(str(error) if error else result.as_numpy("text_output"))

    client = triton.InferenceServerClient(address)
    client.start_stream(put)
    client.async_stream_infer(model, inputs(request), enable_empty_final_response=True)
    return client, arrived


def whole(address: str, model: str, request: dict[str, Any]) -> tuple[str, float]:
    """The text, and the seconds that it took."""
    began = time.monotonic()
    client, arrived = stream(address, model, request | {"stream": False})
    text = arrived.get(timeout=WAIT)
    client.stop_stream()
    return str(text[0].decode()), time.monotonic() - began


def main(address: str, model: str, text: str) -> None:
    """Print the results."""
    request = json.loads(text)
    _, whole_seconds = whole(address, model, request)
    streams = [stream(address, model, request) for _ in range(2)]
    pieces = [arrived.get(timeout=WAIT) for _, arrived in streams]
    for client, _ in streams:
        client.stop_stream(cancel_requests=True)
    short = {"text_input": "The function", "sampling_parameters": {"max_tokens": 1}}
    written, seconds = whole(address, model, short)
    sys.stdout.write(
        json.dumps({"pieces": len(pieces), "text": written, "seconds": seconds, "whole_seconds": whole_seconds})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
