"""`intaglio serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from intaglio.cli.options.choices import OneOf
from intaglio.cli.options.generation import drafting_options
from intaglio.cli.options.runtime import target_option, threads_option
from intaglio.cli.run.speech import beam_options
from intaglio.cli.running.command import OUTPUT, section, verb
from intaglio.errors import UsageError
from intaglio.extras import load
from intaglio.files.input_files import read_text, text_lines

EPILOG = """\b
Examples:
  intaglio serve llama
  intaglio serve chat=./smollm2-int4 minilm --port 8080 --api-key-file keys.txt
  intaglio serve llama --draft small-llama --strategy speculative
  intaglio serve chat=qwen3 --agent helper.yaml
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
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML, TOML or JSON file that describes an agent, which becomes a model too. Can be repeated.",
)
@section("Network")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0: all networks.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free port.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File with one API key per line.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate chain, PEM. Serves HTTPS.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its private key, PEM, without a password.")
@click.option(
    "--cors-origin", "cors_origins", multiple=True, help="Web page that may call the server. Can be repeated."
)
@section("Limits")
@click.option("--rows", default=8, show_default=True, help="Maximum batch size of a decoder.")
@click.option(
    "--max-waiting", default=256, show_default=True, help="Maximum queue length per model; further requests get 429."
)
@click.option(
    "--max-waiting-tokens",
    default=1 << 18,
    show_default=True,
    help="Maximum prompt tokens in a queue; further requests get 429.",
)
@click.option(
    "--max-sequence-tokens",
    type=int,
    help="Maximum tokens of prompt and output together; of an encoder-decoder, of each.  [default: the model's limit; "
    "4096 for the prompt of an encoder-decoder]",
)
@click.option(
    "--max-body-bytes", default=8 << 20, show_default=True, help="Maximum bytes of a request; larger ones get 413."
)
@click.option(
    "--max-audio-seconds",
    default=10_800.0,
    show_default=True,
    help="Maximum seconds of a recording; longer ones get 400, and more than 96 kB per second gets 413.",
)
@click.option("--max-choices", default=32, show_default=True, help="Maximum outputs per request: prompts x n.")
@click.option(
    "--body-timeout", default=30.0, show_default=True, help="Read timeout in seconds: for headers, then for the body."
)
@click.option("--request-timeout", default=600.0, show_default=True, help="Time limit of a response, in seconds.")
@click.option("--send-timeout", default=60.0, show_default=True, help="Client write timeout, in seconds.")
@click.option("--grace", default=30.0, show_default=True, help="Seconds to finish running requests after SIGTERM.")
@drafting_options
@beam_options
@click.option(
    "--prompt-name", help="Default prompt before texts to embed, by its name in the model.  [default: the model's]"
)
@target_option()
@threads_option("CPU threads per model")
@section(OUTPUT)
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Write the decode steps to this file, as a Chrome trace."
)
@click.option(
    "--log-format", type=OneOf(["text", "json"]), default="text", show_default=True, help="Format of the log."
)
def serve_command(
    bundles: tuple[str, ...],
    agents: tuple[Path, ...],
    host: str,
    port: int,
    api_key_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    trace: Path | None,
    log_format: Literal["json", "text"],
    **given: Any,
) -> None:
    """Serve bundles behind the OpenAI HTTP API; requests are batched continuously.

    Decoders answer /v1/chat/completions, /v1/completions and /v1/responses; encoders /v1/embeddings and /v1/classify;
    speech recognisers /v1/audio/transcriptions. A model is named after its bundle's folder, or NAME. Listens on this
    machine only, unless --host says otherwise.
    SIGTERM and Ctrl-C finish the running requests first, a second signal does not. The log goes to standard error.
    """
    for library in ("uvicorn", "httptools", "starlette", "sse_starlette", "prometheus_client", "python_multipart"):
        load(library)
    from intaglio.serve.options import ServerOptions
    from intaglio.serve.server import serve

    names = ServerOptions.__dataclass_fields__
    limits = {name: given.pop(name) for name in list(given) if name in names}
    options = ServerOptions(api_keys=read_keys(api_key_file), **limits)
    serve(
        bundles,
        agents=agents,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        trace=trace,
        log_format=log_format,
        options=options,
        **given,
    )


def read_keys(path: Path | None) -> tuple[str, ...]:
    """The keys in a file. Raises `UsageError` for a file without any."""
    if path is None:
        return ()
    keys = tuple(line.strip() for line in text_lines(read_text(path, "--api-key-file")) if line.strip())
    if not keys:
        raise UsageError(f"--api-key-file {path}: has no key, expected one per line. Write at least one.")
    if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise UsageError(f"--api-key-file {path}: a key has characters other than visible ASCII. Choose another key.")
    return keys
