"""Serve bundles on Ray until a signal, with Ray's own command."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intaglio import interrupts
from intaglio.deploy.ray.app_file import deploy_ray
from intaglio.errors import EngineError
from intaglio.extras import load
from intaglio.processes.children import child_command
from intaglio.processes.temporary import scratch_directory

COMMAND = "ray.serve.scripts"  # the module of `serve`


def serve_on_ray(bundles: Sequence[str | Path], **options: Any) -> None:
    """Run the application that `deploy_ray` writes, on the cluster of RAY_ADDRESS or a new one of this machine.

    `options`: those of `deploy_ray`. Ray's messages go to standard error. On SIGINT and SIGTERM Ray ends the
    application. Raises the exceptions of `deploy_ray`, and `EngineError` if Ray ends with one.
    """
    load("ray.serve")
    with scratch_directory("ray") as folder:
        file = folder / "app.yaml"
        deploy_ray(bundles, file, **options)
        # a group of its own, as Ctrl-C would reach it twice
        process = subprocess.Popen(child_command(COMMAND, "run", str(file)), process_group=0)
        with interrupts.handled(lambda number: process.send_signal(signal.SIGINT)):
            code = process.wait()
    if code:
        raise EngineError(f"Ray's command `serve run` ended with exit code {code}; its messages are above.")
