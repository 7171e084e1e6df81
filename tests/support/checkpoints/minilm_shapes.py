"""The trained MiniLM as checkpoints of other types of encoders that compute the same embeddings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

FIRST_POSITION = 2  # in RoBERTa and its kind the first token's position is the padding token's number and one more


def save_as_roberta(minilm: Path, folder: Path, model_type: str) -> Path:
    """Write MiniLM into `folder` as `model_type`, which has RoBERTa's modules; return it.

    Positions move up by two rows, and the row of the first segment becomes part of them.
    """
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(minilm / "model.safetensors")
    positions, segments = (weights[f"embeddings.{name}_embeddings.weight"] for name in ("position", "token_type"))
    unused = torch.zeros(FIRST_POSITION, positions.shape[1])
    weights["embeddings.position_embeddings.weight"] = torch.cat([unused, positions + segments[0]])
    weights["embeddings.token_type_embeddings.weight"] = torch.zeros_like(segments[:1])
    weights.pop("embeddings.position_ids", None)
    architecture = {"roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel", "camembert": "CamembertModel"}
    changes = {
        "model_type": model_type,
        "architectures": [architecture[model_type]],
        "max_position_embeddings": len(positions) + FIRST_POSITION,
        "type_vocab_size": 1,
        "pad_token_id": FIRST_POSITION - 1,  # no text has this token, and padding is masked
    }
    _copy(minilm, folder, changes)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _copy(minilm: Path, folder: Path, changes: dict[str, Any]) -> None:
    """Copy all files but the weights, with changes of the configuration."""
    shutil.copytree(minilm, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
