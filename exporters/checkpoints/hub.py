"""Download a checkpoint from the hub, and say in one sentence why that failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from intaglio.errors import SourceError, one_line
from intaglio.extras import load

ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
CONFIGURATIONS = ("*.json", "*.txt", "*.jinja", "*.model", "*.spm")  # everything but weights
OTHER_FORMATS = ("consolidated*.safetensors", "original/*", "onnx/*", "openvino/*", "*.fp16.safetensors")


def fetch(location: str, revision: str | None, download: bool, weights: Sequence[str] = ()) -> Path:
    """The folder of the hub id `location`, with its configuration and the files that match `weights`.

    `download`: False uses the files of an earlier download, without network access. Raises `SourceError`.
    """
    hub = load("huggingface_hub")
    options = {
        "allow_patterns": [*CONFIGURATIONS, *weights],
        "ignore_patterns": list(OTHER_FORMATS),
        "local_files_only": not download,
    }
    try:
        return Path(hub.snapshot_download(location, revision=revision, **options))
    except (hub.errors.HfHubHTTPError, OSError, ValueError) as error:
        if not download:
            raise SourceError(
                f"source {location}: a checkpoint of the hub, not on this machine. Give --against pytorch to "
                "download it, or compare with --against reference."
            ) from error
        raise SourceError(f"source {location}: no such directory, and {_reason(error, revision)}") from error


def list_files(location: str, revision: str | None) -> list[str] | None:
    """The names of all files of the hub id, or None if the hub cannot be asked."""
    hub = load("huggingface_hub")
    try:
        return list(hub.HfApi().list_repo_files(location, revision=revision))
    except (hub.errors.HfHubHTTPError, OSError, ValueError):
        return None


def _reason(error: Exception, revision: str | None) -> str:
    errors = load("huggingface_hub").errors
    cause = error.__cause__ or error.__context__
    for each in (error, cause):
        if isinstance(each, errors.GatedRepoError):
            return "it is gated at the hub: ask for access on its page, then log in with: hf auth login"
        if isinstance(each, errors.RepositoryNotFoundError):
            return "the hub has no model of that name. Check it; for a private one log in with: hf auth login"
        if isinstance(each, errors.RevisionNotFoundError):
            return f"the hub has no revision {revision!r} of it. Check --revision."
        if isinstance(each, errors.OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE forbids to ask the hub. Unset it, or give a folder."
        if isinstance(each, errors.HFValidationError):
            return "it is not a valid id of the hub. Give a folder, or a hub id ORG/NAME."
    failed = next((each for each in (error, cause) if isinstance(each, errors.HfHubHTTPError)), None)
    if failed is None:
        return "the hub cannot be reached. Check the connection, or give a folder."
    if failed.response.status_code in (401, 403):
        return "the hub does not let you read it. Log in with: hf auth login"
    return f"the hub failed ({one_line(failed, 100)}). Try again later, or give a folder."
