"""Answers of the question-answering pipeline, which transformers 5 has not any more: a program for version 4.

Arguments: the folder of a tokenizer, an .npz file of the tables of a model (`table_models`), a JSON file of calls of
the pipeline. Prints a list of answers for each call, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel, QuestionAnsweringPipeline
from transformers.utils import ModelOutput

POSITIONS = 96


class TableModel(PreTrainedModel):
    """A model that looks its logits up."""

    config_class = PretrainedConfig
    device = torch.device("cpu")
    tables: dict[str, Any] = {}  # noqa: RUF012

    def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
        places = torch.arange(len(self.tables["start_logits"]) - POSITIONS, len(self.tables["start_logits"]))
        places = places[: input_ids.shape[1]]
        return ModelOutput({name: table[input_ids] + table[places] for name, table in self.tables.items()})


if __name__ == "__main__":
    folder, tables, calls = sys.argv[1:]
    TableModel.tables = {name: torch.from_numpy(array) for name, array in np.load(tables).items()}
    pipe = QuestionAnsweringPipeline(
        model=TableModel(PretrainedConfig()), tokenizer=AutoTokenizer.from_pretrained(folder), framework="pt"
    )
    found = [pipe(**call) for call in json.loads(Path(calls).read_text())]
    sys.stdout.write(json.dumps([[each] if isinstance(each, dict) else each for each in found]))
