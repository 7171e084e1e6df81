"""`intaglio deploy ray`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from intaglio.cli.options.choices import BUNDLE, PATH, OneOf
from intaglio.cli.options.runtime import cache_bits_option, target_option
from intaglio.cli.options.serving import limit_options, network_options, replica_options
from intaglio.cli.printing.results import force_option, json_option, number_of, print_json, print_table, say
from intaglio.cli.running.command import OUTPUT, section, verb
from intaglio.extras import load
from intaglio.processes.threads import MAX_THREADS
from intaglio.runtime.generation.requests.strategy_choice import with_draft
from intaglio.runtime.strategies import STRATEGIES

EPILOG = """\b
Examples:
  intaglio deploy ray chat=./smollm2-int8 minilm -o app.yaml
  intaglio deploy ray llama -o app.yaml --min-replicas 2 --max-replicas 8 --threads 4
  intaglio deploy ray llama --draft small-llama -o app.yaml
  intaglio deploy ray chat=qwen3 --adapter sql=./sql-lora -o app.yaml
  serve run app.yaml
"""


@verb("ray", epilog=EPILOG)
@click.argument("bundles", metavar="[NAME=]BUNDLE...", nargs=-1, required=True)
@replica_options
@click.option(
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    default=1,
    help="CPU threads of each replica, and the processors that it reserves.",
)
@click.option("--strategy", type=OneOf(STRATEGIES, "NAME"), help="As for generate.")
@click.option("--draft", type=BUNDLE, help=f"Bundle of the draft model, for {', '.join(with_draft())}.")
@click.option(
    "--adapter",
    multiple=True,
    metavar="[NAME=]DIR",
    help="Folder of a LoRA adapter of the decoder, which becomes a model too, MODEL:NAME. Can be repeated.",
)
@click.option("--prompt-name", help="Prompt before texts to embed, by its name in the model.  [default: the model's]")
@network_options
@limit_options
@target_option()
@cache_bits_option()
@section(OUTPUT)
@click.option("-o", "--output", required=True, type=PATH, help="YAML file to write.")
@click.option(
    "--mounted-at", help="Folder in which all nodes find the bundles' folders.  [default: the paths given here]"
)
@force_option
@json_option
def ray_command(bundles: tuple[str, ...], output: Path, as_json: bool, **given: Any) -> None:
    """Write the file of a Ray Serve application that serves bundles with the API of `intaglio serve`.

    Each model is a deployment of its own, with one or more replicas; behind one address. All nodes find the bundles at
    the same paths. The file is for `serve run` and `serve deploy`, and for KubeRay.
    """
    load("ray.serve")
    for library in ("starlette", "prometheus_client"):  # of `serve`, whose options are checked here
        load(library)
    from intaglio.deploy import deploy_ray
    from intaglio.serve.options import ServerOptions

    limits = {name: given.pop(name) for name in list(given) if name in ServerOptions.__dataclass_fields__}
    result = deploy_ray(bundles, output, options=ServerOptions(**limits), **given)
    if as_json:
        print_json(result)
        return
    rows = [(model.name, f"{model.min_replicas} to {model.max_replicas}", model.bundle) for model in result.models]
    print_table("Models", ["name", "replicas", "bundle"], rows)
    say(f"{output}: {number_of(len(result.models), 'models')}. Start it with: serve run {output}")
