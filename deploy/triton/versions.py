"""A further version of a repository's models, beside the others, under the one configuration that a model has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from intaglio.deploy.triton.config import Message, ReadMessage, read_text_format, text_format
from intaglio.deploy.triton.manifest import Manifest, read_manifest
from intaglio.deploy.triton.model import TritonModel, write_files
from intaglio.errors import UsageError, one_line
from intaglio.files.atomic import REPOSITORY, atomic_update

CONFIG = "config.pbtxt"
POLICY = re.compile(r"(all)|latest:([1-9]\d*)|specific:([1-9]\d*(?:,[1-9]\d*)*)")
POLICY_FIELD = re.compile(r"^version_policy\s*:?\s*\{(?:[^{}]|\{[^{}]*\})*\}\n?", re.MULTILINE)
VERSION = re.compile(r"[1-9]\d*")  # other folders are no versions for Triton
# Fields that say what a bundle takes and returns: they may have no more than the new bundle has. Others may, as users
# add settings of the server there, and parameters in capitals are Triton's own.
OF_A_BUNDLE = ("input", "output", "parameters")
FIX = "One configuration holds for all versions: give the options of the others, or deploy it under another name."


def policy_message(text: str) -> Message:
    """The field `version_policy`: all, latest:N or specific:N,N. Raises `UsageError`."""
    found = POLICY.fullmatch(text)
    if found is None:
        raise UsageError(f"--version-policy {text}: expected all, latest:N or specific:N,N.")
    every, latest, specific = found.groups()
    if every:
        return {"all": {}}
    if latest:
        return {"latest": {"num_versions": int(latest)}}
    return {"specific": {"versions": [int(number) for number in specific.split(",")]}}


def loaded_versions(config: ReadMessage, versions: Sequence[int]) -> list[int]:
    """Those of a model's `versions` that a server loads. Raises `UsageError` if the policy names one beside them."""
    (policy,) = config.get("version_policy", [{}])
    if "all" in policy:
        return sorted(versions)
    if "specific" in policy:
        named = sorted(int(number) for each in policy["specific"] for number in each.get("versions", []))
        if absent := [number for number in named if number not in versions]:
            raise UsageError(
                f"--version-policy: version {absent[0]} does not exist, expected some of "
                f"{', '.join(map(str, sorted(versions)))}. Leave it out."
            )
        return named
    (latest,) = policy.get("latest", [{}])
    return sorted(versions)[-int(latest.get("num_versions", ["1"])[0]) :]  # Triton's default is the latest one


def add_version(repository: Path, models: Sequence[TritonModel], version: int, policy: str | None) -> Manifest:
    """Write `version` of `models` into a repository that has others of them, whole or not at all.

    Files of the other versions do not change, and of config.pbtxt only the policy, if `policy` is given.
    Returns the repository's manifest. Raises `UsageError` for a version that exists, for models that are not there, and
    where their configuration does not hold for the new version.
    """
    manifest = read_manifest(repository)
    known = {model.name: model for model in manifest.models}
    configs = {}
    for model in models:
        if model.name not in known:
            raise UsageError(f"{repository}: has no model {model.name!r}, expected one of {', '.join(known)}.")
        folder = repository / model.name
        if (folder / str(version)).exists():
            raise UsageError(f"{folder / str(version)} exists. Choose another --model-version, or remove the folder.")
        configs[model.name] = text = _checked_config(folder, model, policy)
        found = [int(each.name) for each in folder.iterdir() if each.is_dir() and VERSION.fullmatch(each.name)]
        known[model.name].versions = sorted([*found, version])
        known[model.name].loaded = loaded_versions(read_text_format(text), known[model.name].versions)
    with atomic_update(repository) as folder:
        for model in models:
            manifest.files |= write_files(model.version_files, folder, f"{model.name}/{version}")
            if configs[model.name] != (repository / model.name / CONFIG).read_text(encoding="utf-8"):
                written = {CONFIG: configs[model.name].encode()}
                manifest.files |= write_files(written, folder, model.name)
        # Without those of versions that were removed.
        manifest.files = {
            name: record
            for name, record in manifest.files.items()
            if (folder / name).exists() or (repository / name).exists()
        }
        (folder / REPOSITORY).write_bytes(manifest.encoded())
    return manifest


def _checked_config(folder: Path, model: TritonModel, policy: str | None) -> str:
    """The text of a model's config.pbtxt with the policy. Raises `UsageError` if the new version needs another one."""
    path = folder / CONFIG
    try:
        text = path.read_text(encoding="utf-8")
        old = read_text_format(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {one_line(error)}. Expected a configuration of Triton.") from error
    if found := _difference(read_text_format(text_format(model.whole_config)), old):
        raise UsageError(f"{path}: {found}. {FIX}")
    for name, content in model.files.items():
        expected = content.read_bytes() if isinstance(content, Path) else content
        if not (folder / name).is_file() or (folder / name).read_bytes() != expected:
            raise UsageError(f"{folder / name}: is not the file that the new version needs. {FIX}")
    if policy is None:
        return text
    field = text_format({"version_policy": policy_message(policy)})
    changed = "".join((POLICY_FIELD.sub("", text).rstrip("\n"), "\n", field))
    if read_text_format(changed) != old | read_text_format(field):
        written = " ".join(field.split())
        raise UsageError(f"{path}: version_policy cannot be replaced there. Write it by hand: {written}")
    return changed


def _difference(new: ReadMessage, old: ReadMessage, exact: bool = False, place: str = "") -> str:
    """The first field of `new` that is another one in `old`, in words; "" without one.

    `exact`: fields that only `old` has are different, too.
    """
    for name in [*new, *(name for name in old if exact and name not in new)]:
        ours, theirs = _by_key(new.get(name, [])), _by_key(old.get(name, []))
        inside = exact or name in OF_A_BUNDLE
        more = [key for key in theirs if inside and key not in ours and not str(key).isupper()]
        for key in [*ours, *more]:
            field = f"{place}{name}" if len(ours | theirs) == 1 else f"{place}{name}[{key}]"
            one, other = ours.get(key), theirs.get(key)
            if isinstance(one, dict) and isinstance(other, dict):
                if found := _difference(one, other, inside, f"{field}."):
                    return found
            elif one != other:
                return f"{field} is {_shown(other)}, and {_shown(one)} for the new version"
    return ""


def _by_key(values: Sequence[Any]) -> dict[Any, Any]:
    """A field's values by their number, those of a map by their key."""
    return {
        value["key"][0] if isinstance(value, dict) and "key" in value else number: value
        for number, value in enumerate(values)
    }


def _shown(value: Any) -> str:
    return " ".join(_leaves(value)) or "missing"


def _leaves(value: Any) -> Iterator[str]:
    """The texts and numbers in a value, without its names and keys."""
    if isinstance(value, dict):
        for name, values in value.items():
            for each in values if name != "key" else []:
                yield from _leaves(each)
    elif value is not None:
        yield value
