"""The description of an agent that a server offers as a model, in a YAML, TOML or JSON file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from intaglio.errors import UsageError, one_line
from intaglio.files.input_files import read_text
from intaglio.files.safe_yaml import load_yaml
from intaglio.runtime.agents.loops.agent import AgentLimits
from intaglio.runtime.agents.loops.planners import PLANNERS, Planner

MAX_BYTES = 1 << 20
EXAMPLE = "Write `name: helper`, `model: chat` and `tools: [calculate]`."


class AgentDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An agent. Paths are relative to the folder that the server is started in."""

    name: str  # of the model that the server offers
    model: str  # one of the server's own, or the URL of another server
    tools: list[str]  # sources, as of `open_tools`
    model_name: str | None = None  # of the model, at a URL
    planner: Planner = "llmcompiler"
    limits: AgentLimits = AgentLimits()
    examples: str | None = None  # a file, as of `read_examples`
    grammar: bool | None = None  # constrain plans; None: if the model is one of the server's own
    streaming: bool = True  # start calls while the plan streams
    runs: int = 16  # maximum concurrency; further requests get 429


def read_description(path: Path) -> AgentDescription:
    """Read a file: TOML if its name ends with .toml, else YAML, of which JSON is a part. Raises `UsageError`."""
    where = f"--agent {path}"
    text = read_text(path, "--agent", MAX_BYTES)
    try:
        fields = tomllib.loads(text) if path.suffix == ".toml" else load_yaml(text)
    except Exception as error:  # the YAML library raises various exceptions
        kind = "TOML" if path.suffix == ".toml" else "YAML or JSON"
        raise UsageError(f"{where}: not {kind} ({one_line(error, 200)}). {EXAMPLE}") from error
    if not isinstance(fields, dict):
        raise UsageError(f"{where}: expected an object with fields. {EXAMPLE}")
    try:
        described = msgspec.convert(_with_limits(fields), AgentDescription)
    except (msgspec.ValidationError, UsageError) as error:
        raise UsageError(f"{where}: {_shown(error)}") from error
    if not described.name or not described.name.isprintable():
        raise UsageError(f"{where}: name {described.name!r:.80}: expected visible characters. {EXAMPLE}")
    if not described.tools:
        raise UsageError(f"{where}: tools: the list is empty, expected at least one. {EXAMPLE}")
    if described.runs < 1:
        raise UsageError(f"{where}: runs {described.runs}: expected at least 1.")
    return described


def _with_limits(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with `limits` as `AgentLimits`. Raises `UsageError` for an unknown one, or one out of range."""
    limits = fields.get("limits", {})
    known = AgentLimits.__struct_encode_fields__
    if not isinstance(limits, dict):
        raise UsageError(
            f"limits: expected an object, such as limits: {{seconds: 60}}. Its fields: {', '.join(known)}."
        )
    if unknown := [name for name in limits if name not in known]:
        raise UsageError(f"limits: got {unknown[0]!r:.80}, expected one of {', '.join(known)}.")
    return {**fields, "limits": msgspec.convert(limits, AgentLimits)}


def _shown(error: Exception) -> str:
    message = one_line(error, 300).rstrip(".")
    if isinstance(error, msgspec.ValidationError):
        plain, _, place = message.replace("`", "").partition(" - at $.")
        message = f"{place}: {plain[:1].lower()}{plain[1:]}" if place else f"{plain[:1].lower()}{plain[1:]}"
        message += f", expected one of {', '.join(PLANNERS)}" if place == "planner" else ""
    return f"{message}. See docs/agents/agents.md."
