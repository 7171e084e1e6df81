"""Encoders of all kinds, exported by tracing, compute what `transformers` computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from tiny_encoders import ANSWERS, CLASSES, MASKED, TAGS, save_encoder

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import GraphError
from intaglio.exporters import export
from intaglio.exporters.encoders.traced import ALONE
from intaglio.graph_passes import compress
from intaglio.runtime import open_engine
from intaglio.runtime.text.tokenizer import Tokenizer

BOUND = 2e-5  # of the largest number
# What each adds to BERT.
KINDS = {
    "albert": "blocks that share their weights, a factorised embedding, a pooler",
    "deberta-v2": "attention by relative positions, in buckets",
    "modernbert": "windows in some layers, rotary embeddings with two settings, gated layers, no biases",
    "bert-generation": "a decoder's type without its decoder",
    "mpnet": "a bias of relative positions, positions after the padding token's number",
    "t5": "the encoder alone of an encoder-decoder, positions without a limit",
}
OTHERS = (  # noqa: SIM905
    "big_bird convbert data2vec-text deberta electra ernie esm esmc eurobert flaubert gte ibert jina_embeddings_v3 "
    "luke megatron-bert mobilebert mt5 nomic_bert rembert roberta-prelayernorm roformer splinter squeezebert ultrabert "
    "umt5 xlm xlm-roberta-xl xmod"
).split()
TEXTS = ["a", "The quick brown fox, 12.5; jumps (over) the lazy dog", "another text: 'it' is not so long"]
RECIPES = ("float16", "int8-weights")
# The types that become integer-only; of the others, a node that prevents it.
INTEGER_ONLY = (  # noqa: SIM905
    "albert bert-generation big_bird data2vec-text electra ernie gte jina_embeddings_v3 luke megatron-bert modernbert "
    "mpnet rembert roberta-prelayernorm splinter xlm-roberta-xl"
).split()
BUCKETS = {"mpnet": ["Cast", "Div", "Log", "Div", "Mul"]}  # of distances, not of anything that depends on a text
NOT_INTEGER = {
    "convbert": "Conv",
    "deberta": "Mul model.embeddings",
    "deberta-v2": "Conv",
    "esm": "Where model.embeddings",
    "esmc": "Sigmoid",
    "eurobert": "RMSNormalization",
    "ibert": "without a LayerNormalization",
    "mobilebert": "without a LayerNormalization",
    "mt5": "RMSNormalization",
    "nomic_bert": "Sigmoid",
    "roformer": "Concat",
    "squeezebert": "Conv",
    "t5": "RMSNormalization",
    "ultrabert": "RMSNormalization",
    "umt5": "RMSNormalization",
    "xlm": "Mul model/Mul",
    "flaubert": "Mul model/Mul",
    "xmod": "GatherND",
}


def feeds_of(bundle: Path) -> list[dict[str, Any]]:
    """Batches of one and three texts, and of one that is longer than any window, up to the last position."""
    tokenizer = Tokenizer.open(Bundle.open(bundle))
    return [tokenizer.feeds(texts, truncate=True) for texts in (TEXTS[1:2], TEXTS, [" ".join(TEXTS * 9), "b"])]


def expected(checkpoint: Path, architecture: str, feeds: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of transformers."""
    import torch
    import transformers

    model = getattr(transformers, architecture).from_pretrained(checkpoint).eval()
    with torch.inference_mode():
        found = model(**{name: torch.from_numpy(array) for name, array in feeds.items()})
    return {name: array.numpy() for name, array in found.items() if isinstance(array, torch.Tensor)}


def assert_equal(checkpoint: Path, bundle: Path) -> None:
    """All outputs of a bundle equal those of transformers, except at padding."""
    architecture = Bundle.open(bundle).manifest.architecture
    with open_engine(bundle) as engine:
        for feeds in feeds_of(bundle):
            wanted = expected(checkpoint, architecture, feeds)
            real = feeds["attention_mask"] == 1
            for name, found in engine.run(feeds).items():
                first, second = (
                    array[real] if array.shape[:2] == real.shape else array
                    for array in (found.astype(np.float32), wanted[name])
                )
                np.testing.assert_allclose(first, second, rtol=0, atol=BOUND * np.abs(second).max(), err_msg=name)


@pytest.fixture
def exported(once: Callable[..., Path]) -> Callable[[str], tuple[Path, Path]]:
    """A function: a type of models -> its checkpoint without a head, and the bundle of it. Read-only."""

    def get(model_type: str) -> tuple[Path, Path]:
        def make(path: Path) -> None:
            assert export(str(checkpoint), path).passed

        checkpoint = once(
            f"encoders/{model_type}/checkpoint",
            lambda path: save_encoder(path.with_name("unfinished"), model_type).rename(path),
        )
        return checkpoint, once(f"encoders/{model_type}/bundle", make)

    return get


Exported = Callable[[str], tuple[Path, Path]]


@pytest.mark.parametrize("model_type", few([*KINDS, *OTHERS], ["albert"]))
def test_traced_encoder_equals_transformers(
    model_type: str, exported: Exported, tmp_path: Path, proved: Callable[..., None]
) -> None:
    """Without a head, with its pooler; compressed, too."""
    checkpoint, bundle = exported(model_type)
    assert_equal(checkpoint, bundle)
    for recipe in RECIPES:
        compress(bundle, tmp_path / recipe, recipe=recipe)
        assert cosine(bundle, tmp_path / recipe) > 0.99, recipe
    proved(model_type, "encode", "traced", tested=["hidden states"], recipes=list(RECIPES), targets=["ort-cpu"])


@pytest.mark.proof
@pytest.mark.parametrize("model_type", [*KINDS, *OTHERS])
def test_traced_encoder_becomes_integer_or_names_what_does_not(
    model_type: str, exported: Exported, tmp_path: Path, proved: Callable[..., None]
) -> None:
    """No floating point between embedding and head, or an error before anything is written."""
    _, bundle = exported(model_type)
    texts, recipes = tmp_path / "texts.txt", ["int8-qdq", *["int8-only"] * (model_type in INTEGER_ONLY)]
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    for recipe in recipes:
        compress(bundle, tmp_path / recipe, recipe=recipe, calibration=texts)
        assert cosine(bundle, tmp_path / recipe) > 0.99, recipe
    if model_type in INTEGER_ONLY:
        assert floats_of_encoder(tmp_path / "int8-only") == BUCKETS.get(model_type, [])
    else:
        refused = rf"{re.escape(NOT_INTEGER[model_type])}.* recipe int8-qdq.* int8-weights"
        with pytest.raises(GraphError, match=refused):
            compress(bundle, tmp_path / "int8-only", recipe="int8-only", calibration=texts)
        assert not (tmp_path / "int8-only").exists()
    proved(model_type, "encode", "traced", tested=["hidden states"], recipes=recipes)


@pytest.mark.parametrize(
    ("model_type", "head", "task"),
    few(
        [
            (model_type, head, task)
            for model_type in (*KINDS, *OTHERS)
            if model_type not in ALONE
            for head, task in ((MASKED, "fill-mask"), (CLASSES, "classify"))
        ]
        + [
            (model_type, head, task)
            for model_type in (*KINDS, "bert", "distilbert", "electra", "ultrabert")
            for head, task in ((TAGS, "token-classification"), (ANSWERS, "question-answering"))
            if model_type != "bert-generation" and (model_type, head) != ("t5", ANSWERS)  # whose decoder answers
        ],
        [],
    ),
)
def test_traced_head_equals_transformers(
    model_type: str, head: str, task: str, tmp_path: Path, proved: Callable[..., None]
) -> None:
    checkpoint = save_encoder(tmp_path / "checkpoint", model_type, head, num_labels=2 if head == ANSWERS else 3)
    assert export(str(checkpoint), tmp_path / "bundle").passed
    assert Bundle.open(tmp_path / "bundle").manifest.task == task
    assert_equal(checkpoint, tmp_path / "bundle")
    if model_type not in ("bert", "distilbert"):  # whose families are written
        proved(model_type, "encode", "traced", tested=[task])


def floats_of_encoder(bundle: Path) -> list[str]:
    """The operators that compute a floating-point tensor before the last normalisation, also of positions."""
    nodes = list(load(Bundle.open(bundle).model_path).graph)
    last = max(index for index, node in enumerate(nodes) if node.op_type == "IntLayerNorm")
    dtypes = [(node.op_type, value.dtype) for node in nodes[:last] for value in node.outputs]
    assert None not in (dtype for _, dtype in dtypes)
    return [op_type for op_type, dtype in dtypes if dtype is not None and dtype.is_floating_point()]


def cosine(*bundles: Path) -> float:
    """Of the hidden states of two bundles, at tokens."""
    states = []
    for bundle in bundles:
        feeds = feeds_of(bundle)[1]
        with open_engine(bundle) as engine:
            found = engine.run(feeds)["last_hidden_state"]
        states.append(found[feeds["attention_mask"] == 1].astype(np.float32).ravel())
    return float(states[0] @ states[1] / np.prod([np.linalg.norm(each) for each in states]))
