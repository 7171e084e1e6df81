"""A folder of the sentence-transformers library: the modules after the Transformer, its prompts, its similarity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.bundle.manifest import SIMILARITIES
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.sentence_folder import MODULES, Module, module_folder, read_modules
from intaglio.exporters.encoders.sentence_modules import PoolingSettings, SentenceModule, SpladeSettings, read_module
from intaglio.exporters.files.config import integer, read_json

SETTINGS = "config_sentence_transformers.json"
MODEL_TYPE, SPARSE = "SentenceTransformer", "SparseEncoder"
TASKS = {MODEL_TYPE: "embed", SPARSE: "embed-sparse"}
STANDARD_PROMPTS = ("query", "document")  # every model has them in the library; empty unless set


@dataclass(frozen=True)
class SentenceHead:
    """What follows the Transformer: modules in order, Pooling first, and the settings of the whole model."""

    modules: tuple[SentenceModule, ...]
    width: int | None  # the first numbers of an embedding that are kept; None: all
    prompts: Mapping[str, str]
    default_prompt: str | None
    similarity: str
    task: str = TASKS[MODEL_TYPE]

    @property
    def excludes_prompt(self) -> bool:
        """Whether the tokens of a prompt are left out of pooling."""
        pooling = self.modules[0]
        return isinstance(pooling, PoolingSettings) and not pooling.include_prompt and any(self.prompts.values())


def read_head(root: Path) -> SentenceHead | None:
    """What follows the Transformer, or None if `root` is not from sentence-transformers. Raises `SourceError`."""
    listed = read_modules(root)
    if not listed:
        return None
    file = root / SETTINGS
    settings = read_json(file) if file.is_file() else {}
    if (kind := settings.get("model_type", MODEL_TYPE)) not in TASKS:
        raise SourceError(
            f"{file}: model_type {str(kind)[:60]} is not supported, expected {' or '.join(TASKS)}. Remove {MODULES} "
            "from a copy of the folder to export its Transformer alone."
        )
    if settings.get("max_active_dims") is not None:
        raise SourceError(f"{file}: max_active_dims is not supported. Remove it; the results list the largest first.")
    prompts = _prompts(settings, file)
    default = settings.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise SourceError(
            f"{file}: default_prompt_name {str(default)[:60]!r} is not among its prompts: {', '.join(prompts)}. "
            "Add it to them, or remove it."
        )
    width = None if settings.get("truncate_dim") is None else integer(settings, "truncate_dim", 1, where=str(file))
    similarity = settings.get("similarity_fn_name")
    named = similarity if similarity in SIMILARITIES else SIMILARITIES[kind == SPARSE]  # so does the library
    modules = _modules(root, listed, SpladeSettings if kind == SPARSE else PoolingSettings)
    return SentenceHead(modules, width, prompts, default, str(named), TASKS[kind])


def _prompts(settings: Mapping[str, Any], file: Path) -> dict[str, str]:
    """Prompts by name; null is an empty one."""
    given = settings.get("prompts", {})
    if not isinstance(given, dict) or not all(isinstance(text, str | None) for text in given.values()):
        raise SourceError(f"{file}: prompts {str(given)[:60]} do not map names to texts. Fix them.")
    return {**dict.fromkeys(STANDARD_PROMPTS, ""), **{name: text or "" for name, text in given.items()}}


def _modules(root: Path, listed: list[Module], pooling: type) -> tuple[SentenceModule, ...]:
    """The modules after the Transformer. Raises `SourceError` unless they begin with `pooling` and have one only."""
    read = [read_module(module.kind, module_folder(root, module)) for module in listed[1:]]
    modules = tuple(module for module in read if module is not None)
    pools = [type(module) if isinstance(module, PoolingSettings | SpladeSettings) else None for module in modules]
    if pools != [pooling, *[None] * (len(modules) - 1)] or (pooling is SpladeSettings and len(modules) > 1):
        expected = "SpladePooling alone" if pooling is SpladeSettings else "one Pooling right"
        raise SourceError(
            f"{root / MODULES}: modules {', '.join(module.kind for module in listed)} are not supported, expected "
            f"{expected} after the Transformer. Choose another model."
        )
    return modules
