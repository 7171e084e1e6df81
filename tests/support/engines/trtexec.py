"""`trtexec` over TensorRT-RTX, with the options that build.sh gives it; knows nothing of Intaglio."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tensorrt_rtx as trt


def shapes(text: str) -> dict[str, list[int]]:
    named = (each.rpartition(":") for each in text.split(","))
    return {name: [int(length) for length in lengths.split("x")] for name, _, lengths in named}


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--stronglyTyped", action="store_true", required=True)
    parser.add_argument("--skipInference", action="store_true", required=True)
    for option in ("onnx", "saveEngine"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--dynamicPlugins", action="append", default=[])
    for bound in ("min", "opt", "max"):
        parser.add_argument(f"--{bound}Shapes", type=shapes, default={})
    parser.add_argument("--sm", default="75", help="this is not trtexec's: it compiles for the GPU of the machine")
    given = parser.parse_args()
    log = trt.Logger(trt.Logger.ERROR)
    for library in given.dynamicPlugins:
        if trt.get_plugin_registry().load_library(library) is None:
            sys.exit(f"{library}: not loaded")
    builder = trt.Builder(log)
    network = builder.create_network(0)
    onnx = trt.OnnxParser(network, log)
    if not onnx.parse_from_file(given.onnx):
        sys.exit("\n".join(onnx.get_error(index).desc() for index in range(onnx.num_errors)))
    symbolic = {
        network.get_input(index).name
        for index in range(network.num_inputs)
        if any(length < 0 for length in network.get_input(index).shape)
    }
    if symbolic != set(given.minShapes):  # trtexec refuses shapes of others, and takes 1 for those that are missing
        sys.exit(f"shapes of {sorted(given.minShapes)}, symbolic are {sorted(symbolic)}")
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.__members__[f"SM{given.sm}"], 0)
    profile = builder.create_optimization_profile()
    for name in symbolic:
        profile.set_shape(name, given.minShapes[name], given.optShapes[name], given.maxShapes[name])
    config.add_optimization_profile(profile)
    built = builder.build_serialized_network(network, config)
    if built is None:
        return 1
    Path(given.saveEngine).write_bytes(built)
    return 0


if __name__ == "__main__":
    sys.exit(main())
