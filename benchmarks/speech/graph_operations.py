"""The multiplications and additions of a graph, counted in a real run.

A graph whose shapes are computed inside (windows of audio, relative positions) has no lengths to read; ONNX Runtime's
profile states those of every node that ran. Counted are the products: two operations for each multiply-add of MatMul,
Gemm, Conv and Attention. Everything else (norms, activations, softmax) is a few operations for each value.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from intaglio.processes.temporary import scratch_directory

Shape = list[int]


def operations(model: Path, feeds: Mapping[str, np.ndarray[Any, Any]]) -> Counter[str]:
    """Module -> operations of one run on `feeds`; a module is the first part of a node's name, as in front_end."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    with scratch_directory("profile") as folder:
        options.profile_file_prefix = str(folder / "profile")
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        session.run(None, dict(feeds))
        events = json.loads(Path(session.end_profiling()).read_text())
    counts: Counter[str] = Counter()
    for event in events:
        arguments = event.get("args", {})
        if "output_type_shape" in arguments and event["name"].endswith("_kernel_time"):
            inputs, outputs = (
                [next(iter(each.values())) for each in arguments[side]]
                for side in ("input_type_shape", "output_type_shape")
            )
            counts[event["name"].split("/")[0].split(".")[0]] += _node(arguments["op_name"], inputs, outputs)
    return counts


def _node(operator: str, inputs: list[Shape], outputs: list[Shape]) -> int:
    match operator:
        case "MatMul" | "Gemm":
            return 2 * math.prod(outputs[0]) * inputs[0][-1]
        case "Conv":
            return 2 * math.prod(outputs[0]) * math.prod(inputs[1][1:])
        case "Attention":  # queries [batch, heads, frames, width] times keys, and scores times values
            return 4 * math.prod(inputs[0]) * inputs[1][2]
        case _:
            return 0
