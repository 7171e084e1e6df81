"""What a written application was deployed with: the field `args` of its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, SourceError, UsageError, one_line
from intaglio.files.hashes import sha256
from intaglio.runtime.adapters.folder import WEIGHTS, adapter_folder
from intaglio.runtime.adapters.settings import CONFIG
from intaglio.serve.options import ServerOptions
from intaglio.targets import DEFAULT

FRONT_DOOR = "front-door"  # the deployment that clients reach; the others are named after their models
PACKAGE = "intaglio.deploy.ray"
MANIFEST = "bundle.json"


class RayBundle(msgspec.Struct, forbid_unknown_fields=True):
    """A bundle, at the same path on all nodes."""

    path: str
    sha256: str  # of its manifest, which has the hashes of its other files

    def open(self) -> Bundle:
        """Open it. Raises `BundleError` for another bundle than was deployed."""
        manifest = Path(self.path, MANIFEST)
        if manifest.is_file() and (found := sha256(manifest)) != self.sha256:
            raise BundleError(
                f"bundle {self.path}: the SHA-256 of its manifest is {found}, expected {self.sha256}. "
                "Use the bundle that was deployed, or deploy this one: intaglio deploy ray"
            )
        return Bundle.open(self.path)


class RayAdapter(msgspec.Struct, forbid_unknown_fields=True):
    """A LoRA adapter, at the same path on all nodes."""

    path: str
    sha256: dict[str, str]  # of its files, by their names

    def check(self) -> str:
        """Return its path. Raises `SourceError` for another adapter than was deployed."""
        folder = adapter_folder(self.path)
        if (found := adapter_hashes(folder)) != self.sha256:
            raise SourceError(
                f"adapter {folder}: the SHA-256 of its files are {found}, expected {self.sha256}. "
                "Use the adapter that was deployed, or deploy this one: intaglio deploy ray"
            )
        return self.path


def adapter_hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of an adapter's settings and weights."""
    return {name: sha256(folder / name) for name in (CONFIG, WEIGHTS)}


class RayModel(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a replica of a model opens."""

    bundle: RayBundle
    draft: RayBundle | None = None  # the draft model, in the same replica
    adapters: dict[str, RayAdapter] = {}  # of a decoder, by name: each is one more model, "chat:sql"
    strategy: str | None = None  # of a decoder
    cache_bits: int | None = None  # of a decoder's cached keys and values
    prompt_name: str | None = None  # of an encoder


class RaySettings(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The application."""

    models: dict[str, RayModel]
    target: str = DEFAULT
    threads: int = 1  # of a replica
    api_key_file: str | None = None  # on the node of the front door
    limits: dict[str, Any] = msgspec.field(default_factory=dict)  # fields of `ServerOptions`

    @property
    def adapted(self) -> dict[str, str]:
        """Name of a model with an adapter -> that of the model in whose replicas it is."""
        return {f"{name}:{adapter}": name for name, model in self.models.items() for adapter in model.adapters}

    def options(self, api_keys: tuple[str, ...] = ()) -> ServerOptions:
        """The options of a server with these limits. Raises `UsageError`."""
        unknown = self.limits.keys() - ServerOptions.__dataclass_fields__.keys()
        if unknown:
            raise UsageError(f"limits of the application: {sorted(unknown)[0]!r} is not one. Leave it out.")
        cors_origins = tuple(self.limits.get("cors_origins", ()))
        return ServerOptions(**{**self.limits, "cors_origins": cors_origins, "api_keys": api_keys})


def read_settings(args: dict[str, Any]) -> RaySettings:
    """The field `args` of an application. Raises `UsageError` for other fields and types."""
    try:
        return msgspec.convert(args, RaySettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"args of the application: {one_line(error)}. Write the file again.") from error
