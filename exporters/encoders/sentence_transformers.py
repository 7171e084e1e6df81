"""A folder of the sentence-transformers library: the modules after the Transformer, its prompts, its similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from intaglio.bundle.manifest import SIMILARITIES
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints import pylate_folder
from intaglio.exporters.checkpoints.pylate_folder import read_pylate
from intaglio.exporters.checkpoints.sentence_folder import MODULES, Module, module_folder
from intaglio.exporters.encoders.sentence_modules import (
    EMBEDDING,
    TOKENS,
    DenseSettings,
    LogitScoreSettings,
    MaskSettings,
    NormalizeSettings,
    PoolingSettings,
    SentenceModule,
    SpladeSettings,
    read_module,
)
from intaglio.exporters.files.config import integer
from intaglio.files.json_object import read_json

SETTINGS = "config_sentence_transformers.json"
MODEL_TYPE, SPARSE, CROSS, SEVERAL = "SentenceTransformer", "SparseEncoder", "CrossEncoder", "MultiVectorEncoder"
TASKS = {MODEL_TYPE: "embed", SPARSE: "embed-sparse", CROSS: "classify", SEVERAL: "embed-tokens"}
HEADS = (PoolingSettings, SpladeSettings, LogitScoreSettings, MaskSettings)
# Kind of model -> the module right after the Transformer, whether others cannot follow it, and both in words.
FIRST: dict[str, tuple[type, bool, str]] = {
    MODEL_TYPE: (PoolingSettings, False, "one Pooling right"),
    SPARSE: (SpladeSettings, True, "SpladePooling alone"),
    SEVERAL: (MaskSettings, False, "one MultiVectorMask, with Dense and Normalize of token_embeddings,"),
    CROSS: (LogitScoreSettings, True, "nothing, or LogitScore alone,"),
}
MOST = "max_active_dims"
STANDARD_PROMPTS = ("query", "document")  # every model that embeds has them in the library; empty unless set


@dataclass(frozen=True)
class SentenceHead:
    """What follows the Transformer: modules in order, and the settings of the whole model.

    The first module is the Pooling. A cross-encoder has none, or the score of a decoder alone.
    """

    modules: tuple[SentenceModule, ...]
    width: int | None  # the first numbers of an embedding that are kept; None: all
    prompts: Mapping[str, str]
    default_prompt: str | None
    similarity: str
    task: str = TASKS[MODEL_TYPE]
    max_active_dims: int | None = None  # of a sparse encoder: weights of a text
    means: bool = False  # with a vector for each token: a score is a mean
    transformer: Mapping[str, Any] = field(default_factory=dict)  # its settings, which its own file may replace
    prefixes: tuple[str, ...] = ()  # that begin prompts, and are single tokens if the vocabulary has them
    activation: str | None = None  # of a cross-encoder: the class of torch.nn that it names

    @property
    def embeds(self) -> bool:
        """Whether its modules return an embedding; else it is a cross-encoder."""
        return self.task != TASKS[CROSS]

    @property
    def mask(self) -> MaskSettings | None:
        """Which tokens have no vector, in a model with a vector for each token."""
        return next((module for module in self.modules if isinstance(module, MaskSettings)), None)

    @property
    def score(self) -> LogitScoreSettings | None:
        """The score of a cross-encoder that is a decoder."""
        module = next(iter(self.modules), None)
        return module if isinstance(module, LogitScoreSettings) else None

    @property
    def transformer_task(self) -> str:
        """The library's name of what its Transformer is for."""
        if self.embeds:
            return "fill-mask" if self.task == TASKS[SPARSE] else "feature-extraction"
        return "text-generation" if self.score else "sequence-classification"

    @property
    def excludes_prompt(self) -> bool:
        """Whether the tokens of a prompt are left out of pooling."""
        pooling = next(iter(self.modules), None)
        return isinstance(pooling, PoolingSettings) and not pooling.include_prompt and any(self.prompts.values())


def read_head(root: Path, listed: Sequence[Module]) -> SentenceHead | None:
    """What follows the Transformer in the modules `listed` of `root`, or None without any. Raises `SourceError`."""
    if not listed:
        return None
    file = root / SETTINGS
    settings = read_json(file) if file.is_file() else {}
    kind = settings.get("model_type", MODEL_TYPE)
    from_pylate = kind == pylate_folder.KIND
    if (kind := SEVERAL if from_pylate else kind) not in [*TASKS]:  # of any type
        raise SourceError(
            f"{file}: model_type {str(kind)[:60]} is not supported, expected {' or '.join(TASKS)}. Remove {MODULES} "
            "from a copy of the folder to export its Transformer alone."
        )
    most = None if settings.get(MOST) is None else integer(settings, MOST, 1, where=str(file))
    if most is not None and kind != SPARSE:
        raise SourceError(f"{file}: {MOST} is not supported for {kind}. Remove it.")
    prompts = _prompts(settings, file, () if kind == CROSS else STANDARD_PROMPTS)
    default = settings.get("default_prompt_name")
    if default is not None and default not in [*prompts]:
        raise SourceError(
            f"{file}: default_prompt_name {str(default)[:60]!r} is not among its prompts: {', '.join(prompts)}. "
            "Add it to them, or remove it."
        )
    width = None if settings.get("truncate_dim") is None else integer(settings, "truncate_dim", 1, where=str(file))
    similarity = settings.get("similarity_fn_name")
    named = similarity if similarity in SIMILARITIES else SIMILARITIES[kind == SPARSE]  # so does the library
    modules = _modules(root, listed, kind, from_pylate)
    own = settings.get("activation_fn") if kind == CROSS else None
    head = SentenceHead(modules, width, prompts, default, str(named), TASKS[kind])
    if kind == SEVERAL:
        return _with_vectors(head, settings, from_pylate, file)
    return replace(head, activation=None if own is None else str(own), max_active_dims=most)


def _with_vectors(head: SentenceHead, settings: Mapping[str, Any], from_pylate: bool, file: Path) -> SentenceHead:
    """The same of a model with a vector for each token, with the `settings` in `file`; `from_pylate`: it saved them."""
    if head.width is not None:
        raise SourceError(f"{file}: truncate_dim is not supported for {SEVERAL}. Remove it.")
    given = read_pylate(settings, file)
    modules = head.modules
    if from_pylate:
        modules = (MaskSettings(given.skipped, STANDARD_PROMPTS[1:]), *modules, NormalizeSettings())
    return replace(
        head,
        modules=modules,
        prompts=given.prompts(head.prompts),
        default_prompt=STANDARD_PROMPTS[1],  # of the library's encode_document
        means=settings.get("similarity_fn_name") == "meanmaxsim",
        transformer=given.transformer,
        prefixes=tuple(given.prefixes.values()),
    )


def _prompts(settings: Mapping[str, Any], file: Path, standard: Sequence[str]) -> dict[str, str]:
    """Prompts by name; null is an empty one."""
    given = settings.get("prompts", {})
    if not isinstance(given, dict) or not all(isinstance(text, str | None) for text in given.values()):
        raise SourceError(f"{file}: prompts {str(given)[:60]} do not map names to texts. Fix them.")
    return {**dict.fromkeys(standard, ""), **{name: text or "" for name, text in given.items()}}


def _modules(root: Path, listed: Sequence[Module], kind: str, from_pylate: bool) -> tuple[SentenceModule, ...]:
    """The modules after the Transformer. Raises `SourceError` unless a model of this `kind` has them."""
    feature = TOKENS if kind == SEVERAL else EMBEDDING
    kinds = ["Dense" if module.type == pylate_folder.DENSE else module.kind for module in listed]
    read = [
        read_module(each, module_folder(root, module), feature)
        for each, module in zip(kinds[1:], listed[1:], strict=True)
    ]
    modules = tuple(module for module in read if module is not None)
    if (not modules and kind == CROSS) or (from_pylate and all(isinstance(each, DenseSettings) for each in modules)):
        return modules
    first, alone, expected = FIRST[kind]
    if kind == SEVERAL:
        modules = tuple(sorted(modules, key=lambda module: not isinstance(module, MaskSettings)))  # which it may follow
    heads = [type(module) if isinstance(module, HEADS) else None for module in modules]
    if heads != [first, *[None] * (len(modules) - 1)] or (alone and len(modules) > 1):
        raise SourceError(
            f"{root / MODULES}: modules {', '.join(module.kind for module in listed)} are not supported, expected "
            f"{expected} after the Transformer. Choose another model."
        )
    return modules
