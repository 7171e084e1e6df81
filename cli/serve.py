"""`intaglio serve`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from intaglio.cli.options.choices import PATH, OneOf
from intaglio.cli.options.generation import drafting_options
from intaglio.cli.options.runtime import cache_bits_option, target_option, threads_option
from intaglio.cli.options.serving import limit_options, network_options, replica_options
from intaglio.cli.run.speech import beam_options
from intaglio.cli.running.command import OUTPUT, section, verb
from intaglio.errors import UsageError
from intaglio.extras import load

EPILOG = """\b
Examples:
  intaglio serve llama
  intaglio serve chat=./smollm2-int4 minilm --port 8080 --api-key-file keys.txt
  intaglio serve llama --draft small-llama --strategy speculative
  intaglio serve smolvlm --max-image-pixels 4000000
  intaglio serve chat=qwen3 --agent helper.yaml
  intaglio serve chat=qwen3 --adapter sql=./sql-lora --adapter legal=./legal-lora
  intaglio serve chat=qwen3 speech=squeezeformer --language-model words.arpa
  intaglio serve llama minilm --ray --min-replicas 2 --max-replicas 8
  intaglio serve llama --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --api-key-file keys.txt
  curl http://127.0.0.1:8000/v1/chat/completions -H "Content-Type: application/json" \\
    -d '{"model": "llama", "messages": [{"role": "user", "content": "Hi!"}]}'
"""


@verb("serve", epilog=EPILOG)
@click.argument("bundles", metavar="[NAME=]BUNDLE...", nargs=-1, required=True)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="YAML, TOML or JSON file that describes an agent, which becomes a model too. Can be repeated.",
)
@click.option(
    "--adapter",
    multiple=True,
    metavar="[NAME=]DIR",
    help="Folder of a LoRA adapter beside the decoder's weights, which becomes a model too, MODEL:NAME. Can be "
    "repeated.",
)
@network_options
@limit_options
@section("Limits")
@click.option(
    "--max-audio-seconds",
    default=10_800.0,
    help="Maximum seconds of a recording; longer ones get 400, and more than 96 kB per second gets 413.",
)
@click.option("--send-timeout", default=60.0, help="Client write timeout, in seconds.")
@drafting_options
@beam_options
@section("Replicas")
@click.option(
    "--ray",
    "on_ray",
    is_flag=True,
    help="Serve on the cluster of RAY_ADDRESS, or on one that is started here, as `deploy ray` describes.",
)
@replica_options
@section("Runtime")
@click.option(
    "--prompt-name", help="Default prompt before texts to embed, by its name in the model.  [default: the model's]"
)
@target_option()
@threads_option("CPU threads per model")
@cache_bits_option()
@section(OUTPUT)
@click.option("--trace", type=PATH, help="Write the decode steps to this file, as a Chrome trace.")
@click.option("--log-format", type=OneOf(["text", "json"]), default="text", help="Format of the log.")
def serve_command(bundles: tuple[str, ...], api_key_file: Path | None, on_ray: bool, **given: Any) -> None:
    """Serve bundles behind the OpenAI HTTP API; requests are batched continuously.

    Decoders answer /v1/chat/completions, /v1/completions and /v1/responses; encoders /v1/embeddings and /v1/classify;
    speech recognisers /v1/audio/transcriptions. A model is named after its bundle's folder, or NAME. Listens on this
    machine only, unless --host says otherwise.
    SIGTERM and Ctrl-C finish the running requests first, a second signal does not. The log goes to standard error.
    """
    for library in ("uvicorn", "httptools", "starlette", "sse_starlette", "prometheus_client", "python_multipart"):
        load(library)
    from intaglio.serve.options import ServerOptions, read_keys

    if on_ray:
        _serve_on_ray(bundles, {**given, "api_key_file": api_key_file})
        return
    for name in ("min_replicas", "max_replicas"):
        del given[name]
        if click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise UsageError(f"--{name.replace('_', '-')}: this server is one process. Add --ray.")
    from intaglio.serve.server import serve

    limits = {name: given.pop(name) for name in list(given) if name in ServerOptions.__dataclass_fields__}
    options = ServerOptions(api_keys=read_keys(api_key_file), **limits)
    serve(bundles, options=options, **given)


def _serve_on_ray(bundles: tuple[str, ...], given: dict[str, Any]) -> None:
    """Serve by Ray. Raises `UsageError` for options that Ray does not have."""
    load("ray.serve")
    from intaglio.deploy import deploy_ray
    from intaglio.deploy.ray.app_file import NOT_OURS
    from intaglio.deploy.ray.running import serve_on_ray
    from intaglio.serve.options import ServerOptions

    context = click.get_current_context()
    limits = {name for name in ServerOptions.__dataclass_fields__ if name == "grace" or name not in NOT_OURS}
    known = limits | inspect.signature(deploy_ray).parameters.keys()
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in given.keys() - known and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise UsageError(f"{parameter.opts[0]}: not with --ray. Leave it out, or serve in one process.")
    options = ServerOptions(**{name: given[name] for name in limits})
    rest = {name: value for name, value in given.items() if name in known - limits and value is not None}
    serve_on_ray(bundles, options=options, **rest)
