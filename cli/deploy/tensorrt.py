"""`intaglio deploy tensorrt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from intaglio.cli.options.choices import BUNDLE, PATH, OneOf
from intaglio.cli.options.lengths import length_options, lengths_by_name
from intaglio.cli.options.runtime import cache_bits
from intaglio.cli.printing.results import force_option, json_option, print_json, print_table, say, size
from intaglio.cli.running.command import OUTPUT, section, verb
from intaglio.runtime.engines.gpus import SM

EPILOG = """\b
Examples:
  intaglio deploy tensorrt minilm-int8 -o minilm-t4 --gpu t4
  intaglio deploy tensorrt chat -o chat-a100 --gpu a100 --batch 1:4:8 --axis capacity=4096
  intaglio deploy tensorrt chat -o chat-t4 --gpu t4 --cache-bits 8
  sh minilm-t4/build.sh
"""


@verb("tensorrt", epilog=EPILOG)
@click.argument("bundle", type=BUNDLE)
@click.option("--gpu", required=True, type=OneOf(SM, "NAME"), help="GPU that runs the engines, e.g. t4 or a100.")
@length_options()
@section("Memory")
@cache_bits("Bits of a decoder's cached keys and values; with 4, keys keep 8.")
@section(OUTPUT)
@click.option("-o", "--output", required=True, type=PATH, help="Folder to create.")
@force_option
@json_option
def tensorrt_command(bundle: Path | str, axes: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Write a folder from which TensorRT's own tools build BUNDLE's engines, without Python.

    It holds the graphs with the kernels for that GPU, the plugins as a library for trtexec, Triton and programs in C++,
    and build.sh, which calls trtexec on a machine with it. No GPU is needed here.
    """
    from intaglio.deploy import deploy_tensorrt

    result = deploy_tensorrt(bundle, axes=lengths_by_name(axes), **options)
    if as_json:
        print_json(result)
        return
    print_table("Files", ["file", "size"], [(name, size(record.bytes)) for name, record in result.files.items()])
    say(f"{result.folder}: {size(result.bytes)}. Next, on a machine with {result.gpu}: sh {result.folder}/build.sh")
