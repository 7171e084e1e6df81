"""`intaglio export`."""

from __future__ import annotations

from typing import Any

import click

from intaglio.cli.options.bounds import bound_options
from intaglio.cli.options.choices import BUNDLE_OR_NAME, BUNDLE_TO_WRITE, DTYPE, PATH, OneOf
from intaglio.cli.printing.results import force_option, json_option, print_json, print_table, say
from intaglio.cli.printing.rows import summed_up
from intaglio.cli.running.command import section, verb
from intaglio.display.verbosity import is_quiet

EPILOG = """\b
Examples:
  intaglio export ./all-MiniLM-L6-v2 -o minilm
  intaglio export sentence-transformers/all-MiniLM-L6-v2 -o minilm-fp16 --dtype float16
  intaglio export model.onnx -o bundle          (a graph from another tool)
  intaglio export ./gpt2 -o gpt2 --max-abs 1e-3
  intaglio export ./llama -o tuned --adapter ./llama-lora
  intaglio export ./search -o search-documents --route document    (a Router of sentence-transformers)
  intaglio export HuggingFaceTB/SmolVLM-256M-Instruct -o smolvlm          (writes about images)
\b
And out again: the weights of a decoder's bundle, as other tools read them
  intaglio export llama-gptq --format compressed-tensors -o llama-w4a16    (vLLM)
  intaglio export llama-q4 --format gguf -o llama-q4.gguf                 (llama.cpp)
"""


@verb("export", epilog=EPILOG)
@click.argument("source", type=BUNDLE_OR_NAME)
@click.option(
    "-o", "--output", required=True, type=BUNDLE_TO_WRITE, help="The bundle to make; with --format, the checkpoint."
)
@click.option("--dtype", type=DTYPE, default="float32", help="Dtype of the arithmetic; float16 is for GPUs.")
@click.option("--revision", help="Branch, tag or commit, for a hub id.")
@click.option("--check/--no-check", default=True, help="Compare the outputs with the source model's.")
@section("Some models")
@click.option(
    "--features",
    is_flag=True,
    help="Leave out the front end: the graph takes log-mel features, or images processed elsewhere.",
)
@click.option(
    "--context",
    type=OneOf(("short", "long")),
    help="Texts that a rotary embedding of type longrope or dynamic is exported for.",
)
@click.option("--adapter", type=PATH, help="Folder of a LoRA adapter that is merged into the weights.")
@click.option("--route", help="Which route of a Router of sentence-transformers, such as query or document.")
@click.option(
    "--activation-bits",
    type=OneOf(("8", "16", "32")),
    callback=lambda _context, _parameter, value: value and int(value),
    help="Precision of the activations that quantised weights are multiplied with on a CPU: 32 is as exact as float32 "
    "and slower, 8 reads prompts faster.  [default: 16]",
)
@section("Other tools")
@click.option(
    "--format",
    type=OneOf(("gguf", "gptq", "gptq_v2", "awq", "compressed-tensors")),
    help="Write SOURCE, a decoder's bundle, as a checkpoint of other tools in this format.",
)
@bound_options
@force_option
@json_option
def export_command(as_json: bool, **options: Any) -> int:
    """Trace SOURCE to an ONNX bundle and check it against the source model.

    SOURCE is a directory saved by transformers or sentence-transformers, a hub id, an .onnx file, or a speech
    recogniser that `intaglio convert` or `intaglio train` wrote. Weights are read from safetensors only. Exit code 1
    when the graph differs from the source by more than the bound: the bundle is still written, so that `intaglio
    validate --bisect` can find the layer.

    With --format, SOURCE is a decoder's bundle, and --output a checkpoint with the same weights: a folder, or a file of
    GGUF. Layers that the format does not hold exactly are refused.
    """
    from intaglio.exporters import export

    result = export(**options)
    if as_json:
        print_json(result)
    else:
        rows = [
            (name, error.max_abs, error.limit, error.cosine, error.passed) for name, error in summed_up(result.outputs)
        ]
        if rows and not is_quiet():
            print_table(
                "Against the source model", ["output", "max |error|", "bound", "cosine", "passed"], rows, ["bound"]
            )
        for note in result.notes:
            say(note)
        checked = "" if rows else ", not compared with a source model"
        say(f"{result.bundle}: exported in {result.seconds:.1f} s{checked}")
    return 1 if result.passed is False else 0
