"""`intaglio deploy triton`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from intaglio.cli.options.choices import BUNDLE, PATH, OneOf
from intaglio.cli.options.runtime import cache_bits_option, target_option, threads_option
from intaglio.cli.printing.results import force_option, json_option, number_of, print_json, print_table, say, size
from intaglio.cli.running.command import OUTPUT, section, verb
from intaglio.runtime.engines.gpus import SM
from intaglio.runtime.generation.requests.strategy_choice import with_draft
from intaglio.runtime.strategies import STRATEGIES

EPILOG = """\b
Examples:
  intaglio deploy triton minilm -o models
  intaglio deploy triton minilm-int8 -o models --backend onnxruntime
  intaglio deploy triton minilm-fp16 -o models --gpu t4 --gpu a100
  intaglio deploy triton chat=./smollm2-int8 -o models --rows 16
  intaglio deploy triton minilm=./minilm-new -o models --model-version 2 --version-policy latest:2
"""
BACKENDS = {
    "python": "Intaglio's own runtime, in Triton's Python backend",
    "onnxruntime": "the graph in Triton's ONNX Runtime",
    "tensorrt": "the plans of build --target tensorrt",
}


@verb("triton", epilog=EPILOG)
@click.argument("bundles", metavar="[NAME=]BUNDLE...", nargs=-1, required=True)
@section("Encoders")
@click.option(
    "--backend",
    type=OneOf(BACKENDS, "NAME"),
    help=f"{', '.join(f'{name} ({meaning})' for name, meaning in BACKENDS.items())}.  "
    "[default: tensorrt with --gpu, else python]",
)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    type=OneOf(SM, "NAME"),
    help="GPU whose TensorRT plan to take, e.g. t4 or a100. Can be repeated.  [default: all plans, with tensorrt]",
)
@click.option("--batch-size", default=32, help="Maximum texts of a batch.")
@click.option("--queue-delay", default=2000, help="Microseconds that a text waits for others of its batch.")
@click.option("--instances", default=1, help="Instances of each model, with weights of their own.")
@click.option("--prompt-name", help="Prompt before texts to embed, by its name in the model.  [default: the model's]")
@section("Decoders")
@click.option("--rows", default=8, help="Maximum texts that are generated at a time.")
@click.option("--strategy", type=OneOf(STRATEGIES, "NAME"), help="As for generate.")
@click.option("--draft", type=BUNDLE, help=f"Bundle of the draft model, for {', '.join(with_draft())}.")
@target_option()
@threads_option("CPU threads of each instance")
@cache_bits_option()
@section(OUTPUT)
@click.option("-o", "--output", required=True, type=PATH, help="Directory of the repository to create.")
@click.option(
    "--mounted-at",
    default="/models",
    help="Path at which the server finds the repository, for the library of custom operators.",
)
@click.option(
    "--model-version",
    type=int,
    metavar="N",
    help="Number of the models' version. A repository that exists keeps its others.  [default: 1]",
)
@click.option(
    "--version-policy",
    metavar="POLICY",
    help="Versions that the server loads: all, latest:N or specific:N,N.  [default: the models', or latest:1]",
)
@force_option
@json_option
def triton_command(output: Path, as_json: bool, **options: Any) -> None:
    """Write a model repository of NVIDIA's Triton Inference Server that serves bundles.

    Encoders embed and classify texts, batched by Triton; decoders stream texts, batched continuously by Intaglio. A
    model is named after its bundle's folder, or NAME. On the Python backend, the server's Python needs intaglio.
    """
    from intaglio.deploy import deploy_triton

    result = deploy_triton(output=output, **options)
    if as_json:
        print_json(result)
        return
    rows = [
        (model.name, model.backend, model.bundle, _numbers(model.versions), _numbers(model.loaded))
        for model in result.models
    ]
    print_table("Models", ["folder", "backend", "serves", "versions", "loaded"], rows)
    say(f"{output}: {number_of(len(result.models), 'models')}, {size(result.bytes)}")


def _numbers(versions: list[int]) -> str:
    return ", ".join(map(str, versions))
