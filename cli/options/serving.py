"""The options of `serve` and of what is deployed with its API: the network, the limits of a server, replicas."""

from __future__ import annotations

import click

from intaglio.cli.options.choices import PATH
from intaglio.cli.running.command import group

network_options = group(
    "Network",
    click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0: all networks."),
    click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0: any free port."),
    click.option("--api-key-file", type=PATH, help="File with one API key per line."),
    click.option("--tls-cert", type=PATH, help="Certificate chain, PEM. Serves HTTPS."),
    click.option("--tls-key", type=PATH, help="Its private key, PEM, without a password."),
    click.option(
        "--cors-origin", "cors_origins", multiple=True, help="Web page that may call the server. Can be repeated."
    ),
)
limit_options = group(
    "Limits",
    click.option("--rows", default=8, help="Maximum batch size of a decoder."),
    click.option("--max-waiting", default=256, help="Maximum queue length per model; further requests get 429."),
    click.option(
        "--max-waiting-tokens", default=1 << 18, help="Maximum prompt tokens in a queue; further requests get 429."
    ),
    click.option(
        "--max-sequence-tokens",
        type=int,
        help="Maximum tokens of prompt and output together; of an encoder-decoder, of each.  [default: the model's "
        "limit; 4096 for the prompt of an encoder-decoder]",
    ),
    click.option("--max-body-bytes", default=8 << 20, help="Maximum bytes of a request; larger ones get 413."),
    click.option(
        "--max-image-pixels", default=1 << 25, help="Maximum pixels of an image in a conversation; larger ones get 400."
    ),
    click.option("--max-choices", default=32, help="Maximum outputs per request: prompts x n."),
    click.option("--body-timeout", default=30.0, help="Read timeout in seconds: for headers, then for the body."),
    click.option("--request-timeout", default=600.0, help="Time limit of a response, in seconds."),
    click.option("--grace", default=30.0, help="Seconds to finish running requests after SIGTERM."),
)
replica_options = group(
    "Replicas",
    click.option("--min-replicas", default=1, help="Minimum replicas of each model."),
    click.option(
        "--max-replicas",
        type=int,
        help="Maximum replicas of each model: more requests than --rows for each start another.  [default: "
        "--min-replicas]",
    ),
)
