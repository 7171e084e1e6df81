"""Parse config.pbtxt files with Triton's own message: python triton_config.py FILE... prints each as an object.

A file that protobuf does not accept is {"error": the reason} instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig


def parsed(path: str) -> object:
    """The message in a file."""
    try:
        message = text_format.Parse(Path(path).read_text(encoding="utf-8"), ModelConfig())
    except text_format.ParseError as error:
        return {"error": str(error)}
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


sys.stdout.write(json.dumps(list(map(parsed, sys.argv[1:]))))
