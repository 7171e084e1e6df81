"""`intaglio build`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from intaglio.bundle.plan_record import HARDWARE
from intaglio.cli.options.choices import BUNDLE_TO_WRITE, TARGET, OneOf
from intaglio.cli.options.lengths import length_options, lengths_by_name
from intaglio.cli.options.runtime import cache_bits
from intaglio.cli.printing.engines import print_engines
from intaglio.cli.printing.results import json_option, number_of, print_json, say, size
from intaglio.cli.running.command import OUTPUT, section, verb
from intaglio.runtime.engines.gpus import SM
from intaglio.targets import summary

EPILOG = """\b
Examples:
  intaglio build minilm-fp16 --target tensorrt-rtx --gpu t4 --gpu a100
  intaglio build minilm-fp16 --target tensorrt --batch 1:16:64 --sequence 1:128:256
  intaglio build minilm-fp16 --target tensorrt --workspace 1024  # on a GPU that is shared
  intaglio build minilm-fp16 --target tensorrt --hardware-compatibility ampere+ --strip-weights
  intaglio build lm-fp16 --target tensorrt-rtx --gpu t4 --cache-bits 8
  intaglio build minilm --target ort-cpu
"""


@verb("build", epilog=EPILOG)
@click.argument("bundle", type=BUNDLE_TO_WRITE)
@click.option("--target", required=True, type=TARGET, help=f"Runtime to build the engine for: {summary()}.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    type=OneOf(SM, "NAME"),
    help="GPU to compile for, e.g. t4 or a100. Can be repeated.",
)
@length_options()
@section("Operators")
@click.option(
    "--plugins/--no-plugins",
    default=True,
    help="Our operators as TensorRT's plugins, or as standard operators in floating point.",
)
@section("Memory")
@click.option(
    "--workspace",
    type=int,
    metavar="MIB",
    help="Maximum memory of a TensorRT kernel for intermediate results.  [default: the GPU's]",
)
@cache_bits("Bits of a decoder's cached keys and values in an engine of TensorRT; with 4, keys keep 8.")
@section("Plans of TensorRT")
@click.option(
    "--version-compatible",
    is_flag=True,
    help="Engine that later versions of TensorRT open. It holds host code: INTAGLIO_ENGINE_HOST_CODE=1 opens it.",
)
@click.option(
    "--hardware-compatibility",
    type=OneOf(HARDWARE),
    default=HARDWARE[0],
    show_default=True,
    help="Other GPUs that the engine runs on: A100 and later, or all of this compute capability.",
)
@click.option(
    "--strip-weights", is_flag=True, help="Engine without weights; opening it takes them from the bundle's graph."
)
@click.option("--refit", is_flag=True, help="Engine whose weights other programs can replace.")
@click.option(
    "--optimization-level",
    type=int,
    metavar="0-5",
    help="0 builds fast, 5 searches longest for fast kernels.  [default: TensorRT's, 3]",
)
@section(OUTPUT)
@click.option("--force", is_flag=True, help="Replace existing engines.")
@json_option
def build_command(bundle: Path | str, axes: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Compile engines for BUNDLE and store them in it.

    tensorrt-rtx compiles for GPUs that need not be present; tensorrt compiles for this machine's GPU; ort-cpu stores
    the graph that this version of ONNX Runtime optimised. Exit code 1 when the build fails for one of several GPUs:
    the engines for the other GPUs are stored.
    """
    from intaglio.runtime import build

    result = build(bundle, axes=lengths_by_name(axes), **options)
    if as_json:
        print_json(result)
    else:
        print_engines(result.engines)
        for refused in result.refused:
            click.echo(f"{refused.gpu}: not built. {refused.reason}", err=True)
        total = size(sum(engine.bytes for engine in result.engines))
        say(f"{bundle}: {number_of(len(result.engines), 'engines')} built, {total}")
    return 1 if result.refused else 0
