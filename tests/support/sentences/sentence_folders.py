"""Folders of the sentence-transformers library: made by the library itself, and rewritten as older versions saved them.

A `Case` describes one; `make` writes it from a backbone, a small random checkpoint with its tokenizer.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
LEGACY = (
    "pooling_mode_cls_token",
    "pooling_mode_max_tokens",
    "pooling_mode_mean_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
)
WIDTH = 32  # hidden size of every backbone
TEXTS = [
    "Ab",
    "A SHORT text, 12",
    "one that is longer: it has more tokens than any limit (but not than the positions) of the models here; 0123456789",
    "x" * 3 + " Y" * 45,
]
PROMPTS: tuple[tuple[dict[str, str | None], str | None], ...] = (
    ({}, None),
    ({"query": "query: "}, None),
    ({"query": "query: ", "passage": "Passage: "}, "query"),
    ({"task": "A LONG instruction (of many words)", "none": ""}, "task"),
    ({"query": "q"}, "document"),
)
LENGTHS = ("none", "model_max_length", "left", "max_seq_length", "beyond", "both", "tokenizer_args", "processing")
GRAPHS = 16
VERSIONS = ("6.2", "5.0", "2.2", "0.4")


@dataclass(frozen=True)
class Case:
    """One folder: what it pools and how, its prompts, its letters' case, its length limit, and the version's format."""

    backbone: str = "bert"
    poolings: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    after: tuple[str, ...] = ("Normalize",)
    width: int | None = None
    prompts: dict[str, str | None] = field(default_factory=dict)
    default_prompt: str | None = None
    lower_case: bool = False
    length: str = "none"
    version: str = "6.2"
    similarity: str | None = None


def random_case(seed: int, backbones: tuple[str, ...]) -> Case:
    """Any combination of them, of `GRAPHS` different graphs for each backbone."""
    pick = random.Random(seed)
    prompts, default = pick.choice(PROMPTS)
    shape = random.Random(seed % GRAPHS)  # few, as each is traced
    count = shape.choice((1, 1, 1, 2, 3))
    version = pick.choice(VERSIONS)
    length = pick.choice(LENGTHS)
    poolings = [shape.choice(POOLINGS) for _ in range(count)]
    if version != "6.2":  # which lists them by key
        poolings = sorted(set(poolings), key=POOLINGS.index)
    return Case(
        backbone=pick.choice(backbones),
        poolings=tuple(poolings),
        include_prompt=shape.random() < 0.5,
        after=shape.choice(((), ("Normalize",), ("Dense",), ("Dense", "Normalize"), ("LayerNorm",), ("Dropout",))),
        width=shape.choice((None, None, 8)),
        prompts=prompts,
        default_prompt=default,
        lower_case=pick.random() < 0.4,
        length="both" if length == "processing" and version != "6.2" else length,
        version=version,
        similarity=pick.choice((None, "cosine", "dot", "euclidean", "manhattan")),
    )


def make(case: Case, backbone: Path, folder: Path) -> Path:
    """Write the folder of `case` with the library, from the checkpoint `backbone`."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling

    transformer = Transformer(str(backbone))
    _limit(case, transformer)
    pooling = Pooling(WIDTH, case.poolings, case.include_prompt)
    width = WIDTH * len(case.poolings)
    made: dict[str, Callable[[], Any]] = {
        "Normalize": Normalize,
        "Dense": lambda: Dense(width, 24, use_residual=case.version == "6.2"),
        "LayerNorm": lambda: LayerNorm(width),
        "Dropout": lambda: Dropout(0.5),
    }
    torch.manual_seed(0)
    modules = [transformer, pooling, *(made[name]() for name in case.after)]
    options = {"prompts": dict(case.prompts), "default_prompt_name": case.default_prompt, "truncate_dim": case.width}
    model = SentenceTransformer(modules=modules, similarity_fn_name=case.similarity, device="cpu", **options)
    model.save_pretrained(str(folder), create_model_card=False)
    _rewrite(case, folder)
    return folder


def _limit(case: Case, transformer: Any) -> None:
    """Limit the length as version 6 does: in the tokenizer's own configuration."""
    if case.length in ("model_max_length", "left"):
        transformer.max_seq_length = 20
    if case.length == "left":
        transformer.tokenizer.truncation_side = "left"
    if case.length == "processing":
        transformer.processing_kwargs = {"text": {"max_length": 17}}


def _rewrite(case: Case, folder: Path) -> None:
    """Turn what the library saved into what older versions did: other names, other keys, other folders."""
    settings: dict[str, Any] = read(folder / "sentence_bert_config.json")
    if case.lower_case:
        settings["do_lower_case"] = True
    if case.version != "6.2":
        settings = {"max_seq_length": None, "do_lower_case": case.lower_case}
        _legacy_modules(case, folder)
    if case.length == "tokenizer_args":
        settings["tokenizer_args"] = {"model_max_length": 13}
    elif case.length in ("max_seq_length", "both"):
        settings["max_seq_length"] = 15
    elif case.length == "beyond":
        settings["max_seq_length"] = 100_000
    if case.length == "both":
        edit(folder / "tokenizer_config.json", model_max_length=11)
    write(folder / "sentence_bert_config.json", settings)
    if case.version == "0.4":
        _move_transformer(folder)


def _legacy_modules(case: Case, folder: Path) -> None:
    modules = read(folder / "modules.json")
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
        if module["type"].endswith("Normalize"):
            shutil.rmtree(folder / module["path"])
    write(folder / "modules.json", modules)
    legacy = {key: name in case.poolings for key, name in zip(LEGACY, POOLINGS, strict=True)}
    prompt = {} if case.include_prompt else {"include_prompt": False}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **legacy, **prompt})
    if case.version == "0.4" and not case.prompts:
        (folder / "config_sentence_transformers.json").unlink()
    else:
        edit(folder / "config_sentence_transformers.json", __version__={"sentence_transformers": "2.2.2"})


def _move_transformer(folder: Path) -> None:
    """Into a folder of its own, as versions before 1 did."""
    (folder / "0_Transformer").mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(folder / "0_Transformer" / path.name)
    modules = read(folder / "modules.json")
    modules[0]["path"] = "0_Transformer"
    write(folder / "modules.json", modules)


def read(path: Path) -> Any:
    """The JSON in a file."""
    return json.loads(path.read_text())


def write(path: Path, content: object) -> None:
    """Write JSON to a file."""
    path.write_text(json.dumps(content))


def edit(path: Path, **changes: Any) -> None:
    """Change keys of the JSON object in a file; None removes one."""
    content = {**read(path), **changes}
    write(path, {key: value for key, value in content.items() if value is not None})
