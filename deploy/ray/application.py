"""The function that Ray Serve calls to build the application of a file that `intaglio deploy ray` wrote."""

from __future__ import annotations

from typing import Any

from ray import serve

from intaglio.deploy.ray.front_door import FrontDoor
from intaglio.deploy.ray.replica import Replica
from intaglio.deploy.ray.settings import FRONT_DOOR, read_settings


def build(args: dict[str, Any]) -> Any:
    """A deployment for each model, and the front door before them. The file has their options.

    Raises `UsageError` for arguments that are not `RaySettings`.
    """
    settings = read_settings(args)
    models = [serve.deployment(Replica, name=name).bind(name, settings) for name in settings.models]
    return serve.deployment(serve.ingress()(FrontDoor), name=FRONT_DOOR).bind(settings, *models)
