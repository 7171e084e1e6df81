"""Models that add a row for each token and one for each position: as bundles, without export, and of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from tiny_encoders import VOCABULARY, write_letter_tokenizer

from intaglio.bundle.bundle import Axis, Source, create
from intaglio.bundle.model_file import save
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.writing.manifest import new_manifest

TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]",
    "mask_token": "[MASK]", "unk_token": "[UNK]", "model_max_length": 96,
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}  # fmt: skip
POSITIONS = 96
# output -> a row, or a number, for each token, and then for each position
Tables = dict[str, npt.NDArray[np.float32]]


def random_tables(seed: int, **widths: int) -> Tables:
    """Output -> float32 [vocabulary + positions, width], without the last axis for the width 0."""
    random = np.random.default_rng(seed)
    rows = VOCABULARY + POSITIONS
    return {
        name: random.normal(0, 2, (rows, width) if width else rows).astype(np.float32) for name, width in widths.items()
    }


def table_bundle(folder: Path, task: str, tables: Tables, labels: list[str]) -> Path:
    """Write a bundle of `task` into `folder`/bundle, and its tokenizer into `folder`; return the bundle."""
    tensors = [numpy_helper.from_array(table, f"table_{name}") for name, table in tables.items()]
    tensors.append(numpy_helper.from_array(np.array([VOCABULARY]), "first"))
    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in names]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "sequence", *table.shape[1:]])
        for name, table in tables.items()
    ]
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["length"], start=1),
        helper.make_node("Add", ["length", "first"], ["end"]),
    ]
    for name in tables:
        nodes += [
            helper.make_node("Gather", [f"table_{name}", "input_ids"], [f"of_tokens_{name}"]),
            helper.make_node("Slice", [f"table_{name}", "first", "end"], [f"of_positions_{name}"]),
            helper.make_node("Add", [f"of_tokens_{name}", f"of_positions_{name}"], [name]),
        ]
    graph = helper.make_graph(nodes, "tables", inputs, outputs, tensors)
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10))
    folder.mkdir(exist_ok=True)
    write_letter_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    with create(folder / "bundle") as draft:
        axes = {"batch": Axis(), "sequence": Axis(1, POSITIONS)}
        family = Family("table", "TableModel")
        draft.manifest = new_manifest(model, Source("onnx", "tables"), family, task, "float32", axes, labels=labels)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (draft.path / name).write_bytes((folder / name).read_bytes())
        save(model, draft.model_path)
    return folder / "bundle"


def table_model(tables: Tables, labels: list[str]) -> Any:
    """The same as a model of transformers."""
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers.utils import ModelOutput

    class TableModel(PreTrainedModel):
        config_class = PreTrainedConfig
        device = torch.device("cpu")  # it has no parameters

        def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
            places = torch.arange(VOCABULARY, VOCABULARY + input_ids.shape[1])
            found = {name: torch.from_numpy(table) for name, table in tables.items()}
            return ModelOutput({name: table[input_ids] + table[places] for name, table in found.items()})

    return TableModel(PreTrainedConfig(id2label=dict(enumerate(labels))))
