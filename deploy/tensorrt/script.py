"""The script that builds engines with trtexec."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from intaglio.runtime.engines.gpus import Gpu

SCRIPT = "build.sh"
Shapes = Mapping[str, Mapping[str, Sequence[int]]]  # input -> "min", "opt", "max" -> shape

HEAD = """\
#!/bin/sh
# Builds the engines for {gpu} (SM{sm}), on a machine with that GPU: sh build.sh [options of trtexec]
# TRTEXEC is the program: trtexec of TensorRT 10.3 or later.
set -eu
TRTEXEC=${{TRTEXEC:-trtexec}}
found=$(command -v "$TRTEXEC") || {{ echo "$TRTEXEC: not found. Set TRTEXEC to its path." >&2; exit 2; }}
case $found in /*) TRTEXEC=$found ;; *) TRTEXEC=$PWD/$found ;; esac
cd "$(dirname "$0")"  # paths in options are from here
"""


def script(gpu: Gpu, graphs: Mapping[str, Shapes], library: str | None) -> str:
    """A script that builds an engine of each graph, with the shapes of its inputs that have several.

    `library`: of plugins, None where none is needed.
    """
    commands = [" \\\n  ".join(_command(graph, shapes, library)) for graph, shapes in graphs.items()]
    return HEAD.format(gpu=gpu.name, sm=gpu.sm) + "\n" + "\n\n".join(commands) + "\n"


def _command(graph: str, shapes: Shapes, library: str | None) -> Iterator[str]:
    # Strong typing is the only one from TensorRT 11 on, which takes the option and ignores it.
    yield '"$TRTEXEC" --stronglyTyped --skipInference'
    yield shlex.join([f"--onnx={graph}", f"--saveEngine={Path(graph).stem}.plan"])
    if library is not None:
        yield f"--dynamicPlugins=./{library}"
    for bound in ("min", "opt", "max") if shapes else ():
        given = ",".join(f"{name}:{'x'.join(map(str, shape[bound]))}" for name, shape in shapes.items())
        yield shlex.quote(f"--{bound}Shapes={given}")
    yield '"$@"'
