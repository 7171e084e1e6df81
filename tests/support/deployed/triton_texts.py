"""Send texts to an encoder: python triton_texts.py http|grpc HOST:PORT MODEL OUTPUT TEXT... prints a list per text.

Each text is a request of its own, and all are sent at the same time; an error is printed in the place of its outputs.
"""

from __future__ import annotations

import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def main(protocol: str, address: str, model: str, output: str, *texts: str) -> None:
    """Print the rows of `output`."""
    library = importlib.import_module(f"tritonclient.{protocol}")
    options = {"concurrency": len(texts)} if protocol == "http" else {}
    client = library.InferenceServerClient(address, **options)

    def ask(text: str) -> object:
        given = library.InferInput("text_input", [1, 1], "BYTES")
        given.set_data_from_numpy(np.array([[text.encode("utf-8", "surrogateescape")]], object))
        try:
            found = client.infer(model, [given]).as_numpy(output)
        except Exception as error:
            return {"error": str(error)}
        return [each.decode() if isinstance(each, bytes) else float(each) for each in found[0]]

    with ThreadPoolExecutor(len(texts)) as threads:
        # HTTP's client has a pool of greenlets that belongs to one thread; gRPC's may be used by several.
        sys.stdout.write(json.dumps(list((threads.map if protocol == "grpc" else map)(ask, texts))))


main(*sys.argv[1:])
