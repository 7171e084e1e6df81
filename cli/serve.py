"""`intaglio serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from intaglio.cli.options.choices import PATH, OneOf
from intaglio.cli.options.generation import drafting_options
from intaglio.cli.options.runtime import cache_bits_option, target_option, threads_option
from intaglio.cli.options.serving import limit_options, network_options
from intaglio.cli.run.speech import beam_options
from intaglio.cli.running.command import OUTPUT, section, verb
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
@click.option(
    "--prompt-name", help="Default prompt before texts to embed, by its name in the model.  [default: the model's]"
)
@target_option()
@threads_option("CPU threads per model")
@cache_bits_option()
@section(OUTPUT)
@click.option("--trace", type=PATH, help="Write the decode steps to this file, as a Chrome trace.")
@click.option("--log-format", type=OneOf(["text", "json"]), default="text", help="Format of the log.")
def serve_command(bundles: tuple[str, ...], api_key_file: Path | None, **given: Any) -> None:
    """Serve bundles behind the OpenAI HTTP API; requests are batched continuously.

    Decoders answer /v1/chat/completions, /v1/completions and /v1/responses; encoders /v1/embeddings and /v1/classify;
    speech recognisers /v1/audio/transcriptions. A model is named after its bundle's folder, or NAME. Listens on this
    machine only, unless --host says otherwise.
    SIGTERM and Ctrl-C finish the running requests first, a second signal does not. The log goes to standard error.
    """
    for library in ("uvicorn", "httptools", "starlette", "sse_starlette", "prometheus_client", "python_multipart"):
        load(library)
    from intaglio.serve.options import ServerOptions, read_keys
    from intaglio.serve.server import serve

    names = ServerOptions.__dataclass_fields__
    limits = {name: given.pop(name) for name in list(given) if name in names}
    options = ServerOptions(api_keys=read_keys(api_key_file), **limits)
    serve(bundles, options=options, **given)
