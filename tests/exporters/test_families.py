"""Every supported architecture, exported from a random checkpoint and compared with transformers itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.exporters import export, load_module
from intaglio.exporters.encoders.family import EncoderFamily
from intaglio.exporters.families import ENCODERS
from intaglio.runtime import open_engine
from intaglio.runtime.text.tokenizer import Tokenizer

TEXTS = ["a", "the quick brown fox, 12.5", "x" * 40]
ROBERTA = ("xlm-roberta", "camembert")  # families of the same modules
BASES = [(family.architecture, 2) for family in ENCODERS if family.model_type not in ROBERTA]
# Each family, each kind of head and none; other tests trace most of them too, so that these take little time.
FEW = [
    ("BertForSequenceClassification", 1),
    ("DistilBertModel", 1),
]
OTHERS = [
    (name, 1) for family in ENCODERS for name in family.architectures if (name, 1) not in FEW and (name, 2) not in BASES
]


@pytest.mark.parametrize(
    ("architecture", "layers"),
    [*FEW, *(pytest.param(*case, marks=pytest.mark.proof) for case in (*BASES, *OTHERS))],
)
def test_each_architecture_agrees_with_transformers(
    architecture: str, layers: int, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    import torch
    import transformers

    labels = 2 if architecture.endswith("QuestionAnswering") else 3  # where an answer begins, and where it ends
    folder = make_checkpoint(architecture, num_hidden_layers=layers, num_labels=labels)
    result = export(str(folder), tmp_path / "bundle")
    assert result.passed
    bundle = Bundle.open(tmp_path / "bundle")
    feeds = Tokenizer.open(bundle).feeds(TEXTS)
    model = getattr(transformers, architecture).from_pretrained(folder)
    with torch.inference_mode():
        expected = model(**{name: torch.from_numpy(array) for name, array in feeds.items()})[0].numpy()
    with open_engine(tmp_path / "bundle") as engine:
        (actual,) = engine.run(feeds).values()
    real = feeds["attention_mask"] == 1
    if actual.shape[:2] == real.shape:
        actual, expected = actual[real], expected[real]
    np.testing.assert_allclose(actual, expected, atol=2e-6)
    check_names(bundle)


@pytest.mark.parametrize("family", ENCODERS, ids=lambda family: family.model_type)
def test_default_padding_equals_transformers(family: EncoderFamily) -> None:
    from transformers import AutoConfig

    assert family.pad_token_id == AutoConfig.for_model(family.model_type).pad_token_id


def check_names(bundle: Bundle) -> None:
    """Nodes are named after their modules."""
    nodes = list(load(bundle.model_path).graph)
    modules = {name for name, _ in load_module(bundle.manifest.source).named_modules()}
    names = [str(node.name) for node in nodes]
    assert len(set(names)) == len(names)
    paths = {name.rsplit("/", 1)[0] for name in names}
    assert paths <= modules | {"encoder"} and len(paths) > 15
    for node in nodes:
        path, operator = str(node.name).rsplit("/", 1)
        assert operator.split("_")[0] == node.op_type
        transposed = [value.name for value in node.inputs if value and str(value.name).endswith(".weight_transposed")]
        assert transposed in ([], [f"{path}.weight_transposed"])
