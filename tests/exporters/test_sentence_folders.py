"""Folders of sentence-transformers: embeddings equal the library, or the unsupported setting is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_folders import TEXTS, Case, edit, make, random_case, read, write
from tiny_decoders import save_decoder
from tiny_families import save_family

from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.runtime import run, similarity

BOUND = 1e-5  # absolute error of an embedding's values; measured: 2e-6
BACKBONES = ("bert", "cased", "distilbert", "roberta", "qwen3")
UNCASED = {"tokenizer_class": "BertTokenizer", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]",
           "mask_token": "[MASK]", "unk_token": "[UNK]"}  # fmt: skip
CLASSES = {"bert": "BertModel", "cased": "BertModel", "distilbert": "DistilBertModel", "roberta": "RobertaModel"}
Backbone = Callable[[str], Path]


@pytest.fixture(scope="module")
def backbone(make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A function that creates the checkpoint of a backbone: one random layer and a tokenizer of letters."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name in made:
            return made[name]
        if name == "qwen3":
            made[name] = save_decoder(
                tmp_path_factory.mktemp(name) / "checkpoint", name, num_hidden_layers=1, max_position_embeddings=256
            )
            edit(made[name] / "tokenizer_config.json", pad_token="<|end|>", padding_side="left")  # noqa: S106
            return made[name]
        made[name] = make_checkpoint(CLASSES[name], num_hidden_layers=1)
        settings = UNCASED | {"do_lower_case": name != "cased"}
        if name == "roberta":
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        write(made[name] / "tokenizer_config.json", settings)
        return made[name]

    return get


def expected(folder: Path, prompt_name: str | None) -> np.ndarray[Any, Any]:
    """The library's embeddings of `TEXTS`."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return np.array([model.encode(text, prompt_name=prompt_name) for text in TEXTS])


def check(case: Case, backbone: Backbone, folder: Path) -> None:
    """Write the folder, export it, and compare the embeddings under every prompt with those of the library."""
    source = make(case, backbone(case.backbone), folder / "source")
    export(str(source), folder / "bundle", check=case.backbone == "qwen3")  # decoders are always checked
    for prompt in (None, "query", *case.prompts):
        wanted = expected(source, prompt)
        found = [result.embedding for result in run(folder / "bundle", TEXTS, truncate=True, prompt_name=prompt)]
        np.testing.assert_allclose(np.array(found), wanted, rtol=0, atol=BOUND, err_msg=f"{case} {prompt}")
        try:
            whole = [result.embedding for result in run(folder / "bundle", TEXTS, prompt_name=prompt)]
        except UsageError as error:
            assert "the model takes at most" in str(error)
        else:
            np.testing.assert_allclose(np.array(whole), wanted, rtol=0, atol=BOUND)


SAMPLE = {
    "as version 6 saves it": Case(length="model_max_length"),
    "a default prompt, as version 5 saves it": Case(
        prompts={"query": "query: ", "other": "A b"}, default_prompt="query", version="5.0"
    ),
    "lower case of a cased tokenizer": Case(backbone="cased", lower_case=True, version="2.2"),
    "a cased tokenizer": Case(backbone="cased", length="left"),
    "a limit in the settings, and the folder of the Transformer": Case(length="both", version="0.4"),
    "a limit among the arguments of the tokenizer": Case(length="tokenizer_args"),
    "a limit of the processor": Case(length="processing"),
    "a limit beyond the positions": Case(length="beyond"),
    "all poolings without the prompt, and other modules": Case(
        poolings=("lasttoken", "cls", "max", "mean", "weightedmean", "mean_sqrt_len_tokens"),
        include_prompt=False,
        after=("Dense", "Dropout", "Normalize"),
        width=8,
        prompts={"query": "a query: ", "long": "word " * 40},
        default_prompt="query",
        length="model_max_length",
    ),
}


@pytest.mark.parametrize("case", SAMPLE.values(), ids=SAMPLE.keys())
def test_embeddings_equal_sentence_transformers(case: Case, backbone: Backbone, tmp_path: Path) -> None:
    check(case, backbone, tmp_path)


def test_first_numbers_equal_the_library(backbone: Backbone, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    source = make(Case(), backbone("bert"), tmp_path / "source")
    export(str(source), tmp_path / "bundle", check=False)
    wanted = SentenceTransformer(str(source), device="cpu", truncate_dim=8).encode(TEXTS)
    found = [result.embedding for result in run(tmp_path / "bundle", TEXTS, truncate=True, truncate_dim=8)]
    np.testing.assert_allclose(np.array(found), wanted, rtol=0, atol=BOUND)
    compared = similarity(tmp_path / "bundle", TEXTS, truncate=True, truncate_dim=8).similarity
    lengths = np.linalg.norm(wanted, axis=1)
    np.testing.assert_allclose(compared, wanted @ wanted.T / np.outer(lengths, lengths), atol=1e-5)
    for dimensions in (0, 33):
        with pytest.raises(UsageError, match=f"--truncate-dim {dimensions}: expected 1 to 32"):
            list(run(tmp_path / "bundle", TEXTS, truncate_dim=dimensions))


@pytest.mark.proof
def test_decoder_with_last_token_pooling_embeds(backbone: Backbone, tmp_path: Path) -> None:
    case = Case("qwen3", ("lasttoken",), prompts={"query": "Instruct: find\nQuery: "}, length="model_max_length")
    check(case, backbone, tmp_path)
    assert Bundle.open(tmp_path / "bundle").manifest.task == "embed"


@pytest.mark.proof
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "qwen2", "qwen3", "olmo2"])
@pytest.mark.parametrize("pooling", ["lasttoken", "weightedmean"])
def test_decoder_embeddings_equal_sentence_transformers(family: str, pooling: str, tmp_path: Path) -> None:
    save = save_family if family == "olmo2" else save_decoder
    checkpoint = save(tmp_path / "checkpoint", family, num_hidden_layers=1)  # Mistral's window: 8 tokens
    edit(checkpoint / "tokenizer_config.json", pad_token="<|end|>", padding_side="left")  # noqa: S106
    source = make(Case(poolings=(pooling,), length="max_seq_length"), checkpoint, tmp_path / "source")
    export(str(source), tmp_path / "bundle")
    found = [result.embedding for result in run(tmp_path / "bundle", TEXTS, truncate=True)]
    np.testing.assert_allclose(np.array(found), expected(source, None), rtol=0, atol=BOUND)


@pytest.mark.proof
def test_bidirectional_decoder_equals_sentence_transformers(tmp_path: Path) -> None:
    """EmbeddingGemma: Gemma 3 whose tokens attend both ways, within windows in some layers, and two dense layers."""
    checkpoint = save_family(tmp_path / "checkpoint", "gemma3_text", use_bidirectional_attention=True, pad_token_id=0)
    edit(checkpoint / "tokenizer_config.json", pad_token="<|end|>", tokenizer_class="PreTrainedTokenizerFast")  # noqa: S106
    prompts: dict[str, str | None] = {"query": "task: search result | query: "}
    source = make(Case(after=("Dense", "Normalize"), prompts=prompts), checkpoint, tmp_path / "source")
    export(str(source), tmp_path / "bundle")
    for name in (None, "query"):
        found = [result.embedding for result in run(tmp_path / "bundle", TEXTS, truncate=True, prompt_name=name)]
        np.testing.assert_allclose(np.array(found), expected(source, name), rtol=0, atol=BOUND)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(300))
def test_embeddings_of_300_folders_equal_sentence_transformers(seed: int, backbone: Backbone, tmp_path: Path) -> None:
    check(random_case(seed, BACKBONES), backbone, tmp_path)


def test_headless_model_matches_any_listed_head(
    make_checkpoint: Callable[..., Path], backbone: Backbone, tmp_path: Path
) -> None:
    """The library opens it by `AutoModel`; a bundle for masked or generated text would be another model."""
    source = make(Case(), backbone("bert"), tmp_path / "source")
    headed = make_checkpoint("BertForMaskedLM", num_hidden_layers=1)
    for name in ("model.safetensors", "config.json"):
        shutil.copy(headed / name, source / name)
    export(str(source), tmp_path / "bundle", check=False)
    found = [result.embedding for result in run(tmp_path / "bundle", TEXTS, truncate=True)]
    np.testing.assert_allclose(np.array(found), expected(source, None), rtol=0, atol=BOUND)


@pytest.fixture(scope="module")
def folder(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every module. Read-only."""
    case = Case(after=("LayerNorm", "Dense", "Normalize"), prompts={"query": "query: "})
    return make(case, backbone("bert"), tmp_path_factory.mktemp("every") / "source")


def module(number: int, **changes: Any) -> Callable[[Path], None]:
    """A change of one module of modules.json."""

    def change(source: Path) -> None:
        modules = read(source / "modules.json")
        modules[number] |= changes
        write(source / "modules.json", modules)

    return change


def setting(file: str, **changes: Any) -> Callable[[Path], None]:
    """A change of the settings in a file."""
    return lambda source: edit(source / file, **changes)


BERT, WHOLE = "sentence_bert_config.json", "config_sentence_transformers.json"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "another first module": (module(0, type="sentence_transformers.models.StaticEmbedding"), "StaticEmbedding"),
    "a module of others": (module(2, type="custom_code.Normalize"), "the module custom_code.Normalize is not"),
    "a recurrent module": (module(2, type="sentence_transformers.models.LSTM"), "the module LSTM is not supported"),
    "word weights": (module(1, type="sentence_transformers.models.WordWeights"), "the module WordWeights is not"),
    "two poolings": (module(2, type="sentence_transformers.models.Pooling", path="1_Pooling"), "expected one Pooling"),
    "two modules of one name": (module(2, name="1"), "two modules are named '1'"),
    "a path that leaves": (module(1, path="../1_Pooling"), "stays inside"),
    "an unknown pooling": (setting("1_Pooling/config.json", pooling_mode="median"), "pooling median is not supported"),
    "an unknown key of pooling": (setting("1_Pooling/config.json", attention=True), "the setting 'attention'"),
    "an activation of others": (setting("3_Dense/config.json", activation_function="my.Swish"), "my.Swish is not"),
    "another input of Dense": (
        setting("3_Dense/config.json", module_input_name="token_embeddings"),
        "token_embeddings",
    ),
    "another width of Dense": (setting("3_Dense/config.json", out_features=23), "expected {'linear.weight': [23, 32]"),
    "no weights of Dense": (lambda source: (source / "3_Dense" / "model.safetensors").unlink(), "save it again"),
    "a limit of queries": (setting(BERT, query_length=32), "query_length '32' is not supported"),
    "messages": (setting(BERT, modality_config={"message": {}}), "modality_config"),
    "another task": (setting(BERT, transformer_task="fill-mask"), "transformer_task 'fill-mask' is not supported"),
    "another tokenizer": (setting(BERT, tokenizer_name_or_path="other"), "tokenizer_name_or_path 'other'"),
    "arguments of the model": (setting(BERT, model_args={"num_hidden_layers": 1}), "model_kwargs 'num_hidden_layers'"),
    "arguments of the processor": (setting(BERT, processing_kwargs={"text": {"add_special_tokens": False}}), "process"),
    "an unknown setting": (setting(BERT, reverse=True), "the setting 'reverse' is not supported"),
    "no room for a token": (setting(BERT, max_seq_length=2), "expected room for a token"),
    "a length that is none": (setting(BERT, max_seq_length=0), "sentence_bert_config.json: max_seq_length is 0"),
    "padding that moves positions": (setting("tokenizer_config.json", padding_side="left"), "padding_side 'left' is"),
    "a kind of model": (
        setting(WHOLE, model_type="AudioEncoder"),
        "AudioEncoder is not supported, expected",
    ),
    "kinds of models": (setting(WHOLE, model_type=["SentenceTransformer"]), "is not supported, expected"),
    "several defaults": (setting(WHOLE, default_prompt_name=["query"]), "is not among its prompts"),
    "an unknown default": (setting(WHOLE, default_prompt_name="q"), "default_prompt_name 'q' is not among its prompts"),
    "prompts that are none": (setting(WHOLE, prompts=["a"]), "do not map names to texts"),
    "a width that is none": (setting(WHOLE, truncate_dim=0), "truncate_dim is 0"),
    "an unknown architecture": (setting("config.json", model_type="bart"), "model_type bart is not supported in a"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_unsupported_setting_is_refused_by_name(
    change: Callable[[Path], None], message: str, folder: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(folder, tmp_path / "source"))
    change(source)
    with pytest.raises(SourceError) as refused:
        export(str(source), tmp_path / "bundle", check=False)
    assert message in str(refused.value)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.proof
def test_similarity_function_is_read_from_the_model(backbone: Backbone, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    source = make(Case(after=()), backbone("bert"), tmp_path / "source")
    for function in ("cosine", "dot", "euclidean", "manhattan"):
        edit(source / WHOLE, similarity_fn_name=function)
        model = SentenceTransformer(str(source), device="cpu")
        wanted = model.similarity(model.encode(TEXTS), model.encode(TEXTS)).numpy()
        export(str(source), tmp_path / function, check=False)
        found = similarity(tmp_path / function, TEXTS, truncate=True)
        assert found.function == function
        np.testing.assert_allclose(
            found.similarity, wanted, atol=1e-3
        )  # float32 errors of the library for distances near 0
