"""Alignment: the draft model learns the output of the target model alone, and agreement is measured correctly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from safetensors.numpy import load_file
from tiny_decoders import FAMILIES, save_decoder

from intaglio.errors import BundleError, GraphError, SourceError, UsageError
from intaglio.exporters import export
from intaglio.runtime.generation.generate import generate
from intaglio.runtime.generation.requests.prompts import read_prompts
from intaglio.samples.sentences import sentences
from intaglio.training import align
from intaglio.training.language_models.checkpoint import read_tokenizer

Maker = Callable[..., tuple[Path, Path]]
SHORT: dict[str, Any] = {"max_new_tokens": 8, "steps": 2, "batch_size": 3, "threads": 1}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten different prompts of different lengths, in a file of eleven lines, some with references."""
    lines: list[dict[str, str]] = [{"prompt": sentence[: 5 + 3 * n]} for n, sentence in enumerate(sentences()[:10])]
    lines[3]["reference"] = "not looked at"
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in [*lines, lines[0]]))
    return path


@pytest.fixture(scope="module")
def pair(make_decoder: Maker) -> tuple[Path, Path]:
    """A checkpoint, and the bundle of a larger model with its tokenizer."""
    return make_decoder("gpt2", n_layer=1)[0], make_decoder("llama")[1]


@pytest.mark.proof  # test_t5_learns_the_output_of_a_larger_one, on a smaller pair
def test_few_steps_on_the_shipped_pair_raise_held_out_agreement(
    language_models: Path, trained_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    data = language_models / "calibration.txt"
    result = align(
        language_models / "small", tmp_path / "made", trained_pair[1], data, prompt_tokens=32, max_new_tokens=48,
        texts=80, steps=40, batch_size=16, learning_rate=1e-3, threads=1,
    )  # fmt: skip
    assert (result.texts, result.held_out_texts) == (72, 8)
    assert result.agreement > result.agreement_before + 0.02
    assert result.loss < result.loss_before - 0.3
    # The target model is called less often, too.
    export(str(tmp_path / "made"), tmp_path / "aligned", check=False)
    unseen = read_prompts(data, "--data", read_tokenizer(language_models / "small"), 32)[72:80]
    options: dict[str, Any] = {"strategy": "speculative", "window": 4, "max_new_tokens": 48, "threads": 1, "batch": 8}
    calls = [
        sum(text.calls.large for text in generate(trained_pair[1], unseen, draft=draft, **options))
        for draft in (trained_pair[0], tmp_path / "aligned")
    ]
    assert calls[1] < 0.97 * calls[0]


@pytest.mark.parametrize("family", few(FAMILIES, ["gpt2", "qwen3"]))
def test_decoder_agrees_with_its_own_output(family: str, make_decoder: Maker, prompts: Path, tmp_path: Path) -> None:
    checkpoint, bundle = make_decoder(family)
    result = align(checkpoint, tmp_path / "made", bundle, prompts, **SHORT, texts=4, learning_rate=1e-9)
    assert result.agreement_before == result.agreement == 1.0
    alone = align(checkpoint, tmp_path / "alone", bundle, prompts, **SHORT | {"batch_size": 1}, texts=4)
    assert result.loss_before == pytest.approx(alone.loss_before, rel=1e-5)


@pytest.mark.parametrize("family", ["t5", "mt5"])
def test_encoder_decoder_agrees_with_its_own_output(
    family: str, make_encoder_decoder: Maker, prompts: Path, tmp_path: Path
) -> None:
    checkpoint, bundle = make_encoder_decoder(family)
    result = align(checkpoint, tmp_path / "made", bundle, prompts, **SHORT, learning_rate=1e-9)
    assert result.agreement_before == result.agreement == 1.0


def test_loss_covers_only_generated_tokens(pair: tuple[Path, Path], prompts: Path, tmp_path: Path) -> None:
    import torch
    import transformers

    from intaglio.training.language_models.aligner import Aligner
    from intaglio.training.language_models.written_texts import WrittenText

    result = align(pair[0], tmp_path / "made", pair[1], prompts, **SHORT, texts=10, learning_rate=1e-9)
    asked = read_prompts(prompts, "--data", read_tokenizer(pair[0]), 64)
    assert len(asked) == 10 and result.held_out_texts == 1
    (text,) = generate(pair[1], asked[-1], max_new_tokens=8)
    network = transformers.AutoModelForCausalLM.from_pretrained(pair[0]).eval()
    before = read_tokenizer(pair[0]).encode(asked[-1]).ids
    with torch.no_grad():
        logits = network(torch.tensor([before + text.tokens])).logits[0, len(before) - 1 : -1]
    wanted = torch.tensor(text.tokens)
    assert result.held_out == len(text.tokens)
    assert result.loss_before == pytest.approx(torch.nn.functional.cross_entropy(logits, wanted).item(), rel=1e-4)
    assert result.agreement_before == pytest.approx((logits.argmax(-1) == wanted).float().mean().item())
    # Other texts of different lengths have no effect: the mean is over all tokens.
    texts = [WrittenText((), (*before, *text.tokens), 8), WrittenText((), (1, 2, 3), 1), WrittenText((), (4, 5), 1)]
    aligner = Aligner(network, 1e-3)
    together, apart = aligner.measure(texts, 3), [aligner.measure([each], 1) for each in texts]
    assert together.loss == pytest.approx((8 * apart[0].loss + apart[1].loss + apart[2].loss) / 10, rel=1e-5)


def test_t5_learns_the_output_of_a_larger_one(make_encoder_decoder: Maker, prompts: Path, tmp_path: Path) -> None:
    source, teacher = make_encoder_decoder("t5", num_layers=1, num_decoder_layers=1)[0], make_encoder_decoder("t5")[1]
    options = SHORT | {"steps": 40, "batch_size": 9, "learning_rate": 1e-2}
    result = align(source, tmp_path / "made", teacher, prompts, **options)
    assert result.loss < result.loss_before
    export(str(tmp_path / "made"), tmp_path / "bundle", check=False)
    (text,) = generate(teacher, "Hello", draft=tmp_path / "bundle", strategy="speculative", max_new_tokens=8, threads=1)
    assert len(text.tokens) <= 8


def test_folder_has_files_tokenizer_and_dtype_of_the_draft_model(
    language_models: Path, trained_pair: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    source, made = language_models / "small", tmp_path / "made"
    align(source, made, trained_pair[1], prompts, **SHORT)
    assert {path.name for path in made.iterdir()} == {path.name for path in source.iterdir()}
    assert (made / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert {array.dtype.name for array in load_file(made / "model.safetensors").values()} == {"float16"}
    again = tmp_path / "again"
    align(source, again, trained_pair[1], prompts, **SHORT, dtype="float32")
    first, second = load_file(made / "model.safetensors"), load_file(again / "model.safetensors")
    for name, array in second.items():  # the same training without rounding
        np.testing.assert_array_equal(first[name], array.astype(np.float16))


def test_positions_and_vocabulary_of_the_draft_model_limit_the_texts(
    make_decoder: Maker, prompts: Path, tmp_path: Path
) -> None:
    source = save_decoder(tmp_path / "source", "gpt2", n_positions=40, vocab_size=257)
    teacher = make_decoder("llama")[1]
    result = align(source, tmp_path / "made", teacher, prompts, **SHORT | {"max_new_tokens": 60})
    lengths = [5 + 3 * n for n in range(10)]  # of the prompts, in bytes, which are tokens
    assert result.held_out_texts == 1 and result.held_out <= 40 - lengths[-1]
    assert result.tokens <= sum(40 - length for length in lengths[:-1])
    (tmp_path / "long.jsonl").write_text('{"prompt": "short"}\n' + json.dumps({"prompt": "a" * 40}))
    with pytest.raises(UsageError, match="prompt of 40 tokens: the model takes at most 40"):
        align(source, tmp_path / "not", teacher, tmp_path / "long.jsonl", **SHORT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps 0: expected at least 1"),
        ({"prompt_tokens": 0}, "prompt tokens 0: expected at least 1"),
        ({"max_new_tokens": 0}, "max new tokens 0: expected at least 1"),
        ({"texts": 0}, "texts 0: expected at least 1"),
        ({"texts": 1}, "texts 1: expected at least 2 prompts"),
        ({"dtype": "int8"}, "dtype 'int8': expected one of float32, float16"),
        ({"learning_rate": -1.0}, "learning rate -1.0: expected a positive number"),
        ({"seed": -1}, "seed -1: expected at least 0"),
    ],
)
def test_options_out_of_range_are_refused(
    options: dict[str, Any], message: str, pair: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        align(pair[0], tmp_path / "made", pair[1], prompts, **SHORT | options)
    assert not (tmp_path / "made").exists()


def test_incompatible_models_print_one_line(
    pair: tuple[Path, Path], make_encoder_decoder: Maker, language_models: Path, prompts: Path, tmp_path: Path
) -> None:
    t5 = make_encoder_decoder("t5")
    made = tmp_path / "made"
    with pytest.raises(UsageError, match=r"its vocabulary is not that of .* tokens, .* differ") as raised:
        align(language_models / "small", made, pair[1], prompts)
    assert "\n" not in str(raised.value) and str(language_models / "small") in str(raised.value)
    with pytest.raises(UsageError, match=r"its task is 'generate', that of .* is 'text-to-text'"):
        align(pair[0], made, t5[1], prompts)
    with pytest.raises(UsageError, match=r"its task is 'text-to-text', that of .* is 'generate'"):
        align(t5[0], made, pair[1], prompts)
    manifest = json.loads((pair[1] / "bundle.json").read_text()) | {"task": "embed", "decoder": None}
    shutil.copytree(pair[1], tmp_path / "embedder")
    (tmp_path / "embedder" / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="its task is 'embed', not 'generate'"):
        align(pair[0], made, tmp_path / "embedder", prompts)
    with pytest.raises(SourceError, match=r"no tokenizer\.json"):
        align(tmp_path, made, pair[1], prompts)
    with pytest.raises(UsageError, match="is the source itself, which would be overwritten"):
        align(pair[0], pair[0], pair[1], prompts, force=True)
    assert not made.exists()


def test_files_with_too_few_prompts_print_one_line(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for text, message in (
        ("two words", "0 prompts, expected at least 2 different ones"),
        ("", "0 prompts, expected at least 2 different ones"),
        ('{"prompt": "alone"}', "1 prompts, expected at least 2 different ones"),
        ('{"prompt": 1}', "line 1"),
    ):
        (tmp_path / "data").write_text(text)
        with pytest.raises(UsageError, match=message) as raised:
            align(pair[0], tmp_path / "made", pair[1], tmp_path / "data")
        assert "\n" not in str(raised.value) and "--data" in str(raised.value)


def test_diverging_training_leaves_no_files(pair: tuple[Path, Path], prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="Lower the learning rate"):
        align(pair[0], tmp_path / "made", pair[1], prompts, **SHORT | {"steps": 30}, learning_rate=1e30)
    assert list(tmp_path.iterdir()) == []
