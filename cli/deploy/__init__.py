"""`intaglio deploy`: one sub-command per system that serves models, in a file of its own."""

from __future__ import annotations

import click

from intaglio.cli.deploy.ray import ray_command
from intaglio.cli.deploy.tensorrt import tensorrt_command
from intaglio.cli.deploy.triton import triton_command
from intaglio.cli.running.command import VerbGroup

EPILOG = """\b
Examples:
  intaglio deploy triton minilm chat=./smollm2-int8 -o models
  intaglio deploy ray minilm chat=./smollm2-int8 -o app.yaml
  intaglio deploy tensorrt minilm-int8 -o minilm-t4 --gpu t4
"""


@click.group("deploy", cls=VerbGroup, epilog=EPILOG, commands=[triton_command, ray_command, tensorrt_command])
def deploy_command() -> None:
    """Write what other systems serve or build from.

    A model repository of the Triton Inference Server, an application of Ray Serve, a folder for TensorRT's own tools.
    """
