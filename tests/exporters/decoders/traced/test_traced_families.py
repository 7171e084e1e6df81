"""Decoders of all kinds, exported by tracing, write what `transformers` writes, and have its gradients."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squared_gradients import squared_gradients
from tiny_families import save_family

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.networks.positions import first_position
from intaglio.runtime import generate, open_engine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.text.chunks import chunk_feeds
from intaglio.samples.sentences import sentences
from intaglio.sensitivity_file import Sensitivities
from intaglio.training import sensitivity

PROMPTS = ["Hello wo", "The", "A cat sat on"]
TOKENS = 40
CALIBRATION = "The quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. " * 2
LENGTH = 48  # tokens per piece of it
# What each adds to the ones before it.
KINDS = {
    "gemma2": "caps of scores and logits, windows in every other layer, scaled embeddings",
    "gemma3_text": "two rotary settings in one model, normalised queries and keys",
    "phi3": "joined projections",
    "granite": "multipliers of embeddings, residuals, attention and logits",
    "gpt_neox": "parallel residuals, part of each head rotated, biases",
    "cohere2": "interleaved rotary, layers without positions, a norm that subtracts the mean",
    "gpt_oss": "sinks, experts with biases and a gate of their own",
    "mixtral": "experts in tensors of their own",
    "deepseek_v3": "latent attention: keys and values of different widths; shared experts, groups of experts",
    "deepseek_v2": "rotary by complex numbers",
    "llama4_text": "attention in chunks, scaled by the position",
    "lfm2": "short convolutions",
}

# Traced by every run of the tests; what the others add, tests of passes and of single modules see, too.
FIRST = ("cohere2", "gpt_oss", "deepseek_v3", "lfm2")

# Of these one layer has all that is tested, and is traced in the half of the time; `make families` traces two or more.
ALIKE: dict[str, dict[str, Any]] = {
    "phi3": {},
    "granite": {},
    "gpt_neox": {},
    "mixtral": {},
    "deepseek_v2": {"first_k_dense_replace": 0},
    "deepseek_v3": {"first_k_dense_replace": 0},
    "gemma2": {"layer_types": ["sliding_attention"]},
    "gpt_oss": {"layer_types": ["sliding_attention"]},
    "llama4_text": {"no_rope_layers": [1], "interleave_moe_layer_step": 1},
}

# All others that are known to export, for `make families`.
OTHERS = (  # noqa: SIM905
    "afmoe apertus arcee aria_text axk1 beam bert bert-generation biogpt bitnet camembert cohere cohere2_moe ctrl cwm "
    "data2vec-text diffllama dots1 electra ernie ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo flint gemma "
    "gemma3n_text gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite gpt-sw3 gpt2 gpt_bigcode "
    "granite_swa granitemoe granitemoe_swa granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax "
    "internlm3 iquestcoder jais2 kolibri1 laguna lfm2_moe llama mellum mimo_v2_flash minicpm3 minimax_m2 "
    "minimax_m3_vl_text ministral ministral3 mistral modernbert-decoder nanochat nemotron olmo olmo2 olmo3 olmoe opt "
    "persimmon phi phimoe qwen2 qwen2_moe qwen3 qwen3_moe roberta roberta-prelayernorm roc_bert seed_oss smollm3 "
    "solar_open stablelm starcoder2 vaultgemma xlm-roberta xlm-roberta-xl youtu"
).split()


def in_groups(model_types: list[str], kept: list[str]) -> list[Any]:
    """As `few`; with `--dist loadgroup`, all tests of a type run in one process, which traces it once."""
    proof = pytest.mark.proof
    return [
        pytest.param(each, marks=[pytest.mark.xdist_group(each), *([] if each in kept else [proof])])
        for each in model_types
    ]


RECIPES = {"rtn": 0.6, "gptq": 0.6, "lut-sparse": 0.6, "int8-weights": 0.9}  # least cosine, for random weights


@pytest.mark.parametrize("model_type", in_groups([*KINDS, *OTHERS], list(FIRST)))
def test_traced_family_equals_transformers(
    model_type: str, tmp_path: Path, proved: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    """Logits in the check of the export; text, logits after a rollback, and the sensitivity of each weight."""
    one_layer = model_type in ALIKE and request.config.getoption("--known-models") is None
    options = {"num_hidden_layers": 1, **ALIKE[model_type]} if one_layer else {}
    checkpoint = save_family(tmp_path / "checkpoint", model_type, **options)
    assert export(str(checkpoint), tmp_path / "bundle").passed
    assert_rollback_leaves_no_trace(tmp_path / "bundle")
    assert_sensitivities_are_squared_gradients(checkpoint, tmp_path / "bundle", least=3 if one_layer else 7)
    written = [text.tokens for text in generate(tmp_path / "bundle", PROMPTS, max_new_tokens=TOKENS, batch=3)]
    assert written == [continued(checkpoint, tmp_path / "bundle", prompt) for prompt in PROMPTS]
    tested = ["logits", "rollback", "sensitivities", "text"]
    proved(model_type, "generate", "traced", tested=tested, strategies=["greedy"])


@pytest.mark.proof
@pytest.mark.parametrize("model_type", in_groups([*KINDS, *OTHERS], [*KINDS, *OTHERS]))
def test_traced_family_is_compressed_drafted_for_and_built(
    model_type: str, tmp_path: Path, proved: Callable[..., None]
) -> None:
    checkpoint = save_family(tmp_path / "checkpoint", model_type)
    bundle = tmp_path / "bundle"
    assert export(str(checkpoint), bundle).passed
    facts = {"model_type": model_type, "task": "generate", "graph": "traced"}
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences()))
    (tmp_path / "eight-bits.yaml").write_text("passes: [{rtn: {bits: 8}}]")
    assert cosine(bundle, compress(bundle, tmp_path / "eight", recipe=tmp_path / "eight-bits.yaml").bundle) > 0.98
    for recipe, least in RECIPES.items():
        calibration = None if recipe in ("rtn", "int8-weights") else text
        result = compress(bundle, tmp_path / recipe, recipe=recipe, calibration=calibration)
        assert result.bytes_after < result.bytes_before
        assert cosine(bundle, tmp_path / recipe) > least, recipe
    proved(**facts, recipes=list(RECIPES))

    greedy, *drafted = (
        [each.tokens for each in generate(bundle, PROMPTS, max_new_tokens=TOKENS, batch=3, **options)]
        for options in ({}, {"strategy": "ngram"}, {"strategy": "speculative", "draft": bundle})
    )
    assert drafted == [greedy, greedy]
    proved(**facts, strategies=["ngram", "speculative"])

    pytest.importorskip("tensorrt_rtx")
    # In a process of its own: the library might crash.
    command = [sys.executable, "-m", "intaglio", "build", str(bundle), "--target", "tensorrt-rtx", "--gpu", "a100"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    proved(**facts, targets=["ort-cpu", "tensorrt-rtx a100"])


def cosine(*bundles: Path | str) -> float:
    """Of the logits of two bundles, all together: a token whose experts change has logits of its own."""
    ids = np.random.default_rng(0).integers(0, 250, (4, 24))
    logits = []
    for bundle in bundles:
        with open_engine(bundle) as engine:
            logits.append(engine.run(chunk_feeds(Bundle.open(bundle), ids))["logits"].ravel())
    return float(logits[0] @ logits[1] / np.prod([np.linalg.norm(each) for each in logits]))


def assert_rollback_leaves_no_trace(bundle: Path) -> None:
    """Tokens after a rollback get the logits that they get without the tokens that were there before."""
    first, dropped, second = [[5, 6, 7], [8, 9]], [[21, 22, 23, 24], [25]], [[11, 12], [13, 14, 15]]
    logits = []
    for between in (None, dropped):
        with DecoderSession.open(bundle, batch=2) as session:
            session.append(first, [1, 1])
            if between is not None:
                session.append(between, [1, 1])
                session.rollback([3, 2])
            logits.append(session.append(second, [2, 3]))
    for without, after in zip(*logits, strict=True):
        np.testing.assert_allclose(after, without, atol=1e-5 * np.abs(without).max(), rtol=0)


def assert_sensitivities_are_squared_gradients(checkpoint: Path, bundle: Path, least: int) -> None:
    """Of more than `least` weights, each equals the mean squared gradient of a matrix, by autograd in `transformers`.

    Names are compared elsewhere: those of joined or renamed weights are the checkpoint's in one and the module's in the
    other.
    """
    (bundle.parent / "text.txt").write_text(CALIBRATION)
    result = sensitivity(bundle, bundle.parent / "sensitivity", bundle.parent / "text.txt", samples=2, tokens=LENGTH)
    found = Sensitivities.open(bundle.parent / "sensitivity")
    expected = defaultdict[tuple[int, ...], list[np.ndarray]](list)
    for gradient in gradients(checkpoint, result.samples):
        for turned in (gradient, gradient.T):
            expected[turned.shape].append(turned)
    graph = load(Bundle.open(bundle).model_path).graph
    seen = [name for name in graph.initializers if name in found]
    assert len(seen) == result.weights > least
    for name in seen:
        shape = tuple(int(length) for length in graph.initializers[name].shape)
        actual = found.read(name, shape)
        assert any(np.allclose(actual, each, rtol=2e-3, atol=1e-4 * each.max()) for each in expected[shape]), name


def gradients(checkpoint: Path, pieces: int) -> list[np.ndarray]:
    """The mean squared gradient of each matrix; those of several experts in one tensor apart."""
    arrays = squared_gradients(checkpoint, CALIBRATION, pieces, LENGTH).values()
    return [each for array in arrays if array.ndim in (2, 3) for each in (array if array.ndim == 3 else [array])]


def continued(checkpoint: Path, bundle: Path, prompt: str) -> list[int]:
    """The tokens that transformers writes greedily after a prompt, with the end token."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(prompt).ids
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    decoder = Bundle.open(bundle).manifest.decoder
    assert decoder is not None
    start = len(ids)
    if first := first_position(model):  # from which the model counts by itself, but not in `generate`
        for _ in range(TOKENS):
            positions = first + torch.arange(len(ids))[None]
            ids.append(int(model(input_ids=torch.tensor([ids]), position_ids=positions).logits[0, -1].argmax()))
            if ids[-1] in decoder.eos_token_ids:
                break
        return ids[start:]
    written = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=TOKENS, do_sample=False,
        eos_token_id=list(decoder.eos_token_ids), pad_token_id=0,
    )  # fmt: skip
    return [int(token) for token in written[0, len(ids) :]]
