"""A graph with adapters beside its products computes what peft does, for each row of a batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafts import save_drafts
from early_exits import save_early_exit
from gguf_files import write_gguf
from lora_adapters import change_settings, change_tensors, peft_logits, save_adapter, unmerged_by_peft
from tiny_decoders import save_decoder, write_byte_tokenizer

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import IntaglioError, SourceError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.plugins import CUDA_DOMAIN
from intaglio.plugins.cuda.compiler import Images
from intaglio.plugins.group_matmul.spec import group_weight
from intaglio.plugins.lut_matmul.spec import table_weight
from intaglio.plugins.ort.cuda_nodes import use_cuda_kernels
from intaglio.runtime.adapters.adapter import Floats
from intaglio.runtime.adapters.adapters import Adapters
from intaglio.runtime.adapters.side_path import add_side_paths
from intaglio.runtime.engines.onnxruntime import engine
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.sessions.decoder import DecoderSession

Once = Callable[[str, Callable[[Path], object]], Path]
TOKENS = [7, 3, 250, 19, 19, 4, 101, 64, 8, 200, 31, 5]
TEXT = "The quick brown fox jumps over the lazy dog.\n" * 20
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all": {"target_modules": "all-linear", "lora_alpha": 3, "r": 20},
    "stabilised": {"use_rslora": True, "r": 3, "target_modules": ["o_proj", "gate_proj", "lm_head"]},
    "patterns": {
        "rank_pattern": {"q_proj": 2, "layers.1.self_attn.v_proj": 6},
        "alpha_pattern": {r".*\.v_proj": 3, "^model.layers.0.self_attn.q_proj": 0.5},
    },
}


@pytest.fixture(scope="module")
def checkpoint(once: Once) -> Path:
    return once("side-paths/llama", lambda path: save_decoder(path, "llama", tie_word_embeddings=False))


@pytest.fixture(scope="module")
def bundle(once: Once, checkpoint: Path) -> Path:
    return once("side-paths/bundle", lambda path: export(str(checkpoint), path, check=False))


@pytest.fixture(scope="module")
def folders(once: Once, checkpoint: Path) -> dict[str, Path]:
    def saved(name: str) -> Path:
        return once(f"side-paths/{name}", lambda path: save_matrices(checkpoint, path, **SETTINGS[name]))

    return {name: saved(name) for name in SETTINGS}


def save_matrices(checkpoint: Path, folder: Path, **options: Any) -> Path:
    """An adapter without the copies of the head and the embedding that peft saves with some."""
    save_adapter(checkpoint, folder, **options)
    change_tensors(folder, lm_head__base_layer__weight=None, embed_tokens__weight=None)
    return folder


def with_adapter(checkpoint: Path, adapter: Path, architecture: str = "LlamaForCausalLM") -> Any:
    return peft_logits(unmerged_by_peft(checkpoint, adapter, architecture), TOKENS)


def logits(
    bundle: Path, adapters: Adapters, numbers: list[int], tokens: list[int] = TOKENS, scales: list[float] | None = None
) -> Floats:
    """[rows, tokens, vocab], of the same tokens in a row for each number of an adapter; in two steps."""
    with DecoderSession.open(bundle, batch=len(numbers), adapters=adapters) as session:
        session.adapters[:] = numbers
        if scales is not None:
            session.adapter_scales[:, 0, 0] = scales
        rows = [session.append([part] * len(numbers), [len(part)] * len(numbers)) for part in (tokens[:5], tokens[5:])]
    return np.stack([np.concatenate(parts) for parts in zip(*rows, strict=True)])


def test_rows_of_a_batch_equal_peft_each_with_its_adapter(
    bundle: Path, checkpoint: Path, folders: dict[str, Path]
) -> None:
    found = logits(bundle, Adapters.read(folders), [3, 0, 1, 4, 2])
    with DecoderSession.open(bundle) as session:
        np.testing.assert_allclose(found[1], session.append([TOKENS], [len(TOKENS)])[0], rtol=0, atol=1e-5)
    for row, name in ((2, "plain"), (4, "all"), (0, "stabilised"), (3, "patterns")):
        expected = with_adapter(checkpoint, folders[name])
        np.testing.assert_allclose(found[row], expected, rtol=0, atol=1e-4)
        assert np.abs(found[row] - found[1]).max() > 0.1


@pytest.mark.parametrize("name", ["all", "stabilised"])
def test_single_adapter_equals_peft_and_rows_without_it_the_model(
    name: str, bundle: Path, checkpoint: Path, folders: dict[str, Path]
) -> None:
    found = logits(bundle, Adapters.read({name: folders[name]}), [1, 0])
    np.testing.assert_allclose(found[0], with_adapter(checkpoint, folders[name]), rtol=0, atol=1e-4)
    with DecoderSession.open(bundle) as session:
        np.testing.assert_allclose(found[1], session.append([TOKENS], [len(TOKENS)])[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("ours", [True, False], ids=["our kernel", "standard operators"])
def test_scale_multiplies_the_change(
    ours: bool,
    bundle: Path,
    checkpoint: Path,
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The factor of peft is lora_alpha / r."""
    scales = [0.0, 0.5, -1.5, 1.0]
    if not ours:
        monkeypatch.setattr(engine, "can_put_in", lambda target: False)
    adapters = Adapters.read(folders)
    found = logits(bundle, adapters, [1 + [*folders].index("plain")] * 4, scales=scales)
    with DecoderSession.open(bundle) as session:
        np.testing.assert_allclose(found[0], session.append([TOKENS], [len(TOKENS)])[0], rtol=0, atol=1e-5)
    for row, scale in list(enumerate(scales))[1:]:
        shutil.copytree(folders["plain"], tmp_path / str(scale))
        change_settings(tmp_path / str(scale), lora_alpha=6 * scale)
        np.testing.assert_allclose(found[row], with_adapter(checkpoint, tmp_path / str(scale)), rtol=0, atol=1e-4)
        assert np.abs(found[row] - found[0]).max() > 0.05


def quantised_model(checkpoint: Path, adapter: Path, bundle: Path) -> Any:
    """peft's model with the weights that the products of `bundle` have."""
    import torch

    model, constants = unmerged_by_peft(checkpoint, adapter), load(bundle / "model.onnx")
    weights = {name: value.const_value.numpy() for name, value in constants.graph.initializers.items()}
    parameters = {name.replace(".base_layer", ""): each for name, each in model.base_model.model.named_parameters()}
    replaced = 0
    for node in constants.graph:
        if node.op_type in ("GroupMatMul", "LutMatMul"):
            packed, *rest = (weights[value.name] for value in node.inputs[1:])
            bits = node.attributes["bits"].as_int()
            if node.op_type == "GroupMatMul":
                size = node.attributes["group_size"].as_int()
                weight = group_weight([packed, *rest, None, None, None][:5], bits, size)
            else:
                weight = table_weight(packed, rest[0], bits)
            path = node.inputs[1].name.removesuffix(".packed").removesuffix(".weight") + ".weight"
            parameters[path].data[...] = torch.from_numpy(weight.astype(np.float32))
            replaced += 1
    assert replaced > 10
    return model


@pytest.mark.parametrize("recipe", ["rtn", pytest.param("lut", marks=pytest.mark.proof)])
def test_quantised_weights_and_adapter_are_added(
    recipe: str, bundle: Path, checkpoint: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    calibration = tmp_path / "text.txt"
    calibration.write_text(TEXT)
    compress(bundle, tmp_path / "bundle", recipe=recipe, calibration=calibration if recipe == "lut" else None)
    found = logits(tmp_path / "bundle", Adapters.read(folders), [2])
    expected = peft_logits(quantised_model(checkpoint, folders["all"], tmp_path / "bundle"), TOKENS)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=2e-3 * np.abs(expected).max())  # x in fixed point


@pytest.mark.proof
def test_codes_of_a_checkpoint_and_adapter_are_added(
    checkpoint: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    types = {"attn|gate|up": "Q4_0", "^output": "Q8_0"}
    export(str(write_gguf(checkpoint, tmp_path / "model.gguf", "llama", types)), tmp_path / "bundle")
    found = logits(tmp_path / "bundle", Adapters.read(folders), [2, 3])
    for row, name in enumerate(("all", "stabilised")):
        expected = peft_logits(quantised_model(checkpoint, folders[name], tmp_path / "bundle"), TOKENS)
        np.testing.assert_allclose(found[row], expected, rtol=0, atol=2e-3 * np.abs(expected).max())


def test_half_precision_adds_in_half_precision(
    bundle: Path, checkpoint: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    compress(bundle, tmp_path / "bundle", recipe="float16")
    expected = with_adapter(checkpoint, folders["plain"])
    for names in (["plain"], ["plain", "all"]):
        found = logits(tmp_path / "bundle", Adapters.read({name: folders[name] for name in names}), [1])
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("joined", ["gpt2", pytest.param("phi3", marks=pytest.mark.proof)])
def test_joined_projections_have_one_change(joined: str, tmp_path: Path) -> None:
    import transformers

    architecture, modules = "GPT2LMHeadModel", ["c_attn", "c_fc", "c_proj"]
    if joined == "gpt2":
        save_decoder(tmp_path / "model", "gpt2")
    else:
        architecture, modules = "Phi3ForCausalLM", ["qkv_proj", "gate_up_proj", "o_proj"]
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
        config = transformers.Phi3Config(vocab_size=272, pad_token_id=None, eos_token_id=256, bos_token_id=1, **sizes)
        transformers.Phi3ForCausalLM(config).save_pretrained(tmp_path / "model")
        write_byte_tokenizer(tmp_path / "model")
    export(str(tmp_path / "model"), tmp_path / "bundle", check=joined == "phi3")  # a traced graph is always checked
    save_adapter(tmp_path / "model", tmp_path / "adapter", architecture, target_modules=modules)
    found = logits(tmp_path / "bundle", Adapters.read({"a": tmp_path / "adapter"}), [1])
    expected = with_adapter(tmp_path / "model", tmp_path / "adapter", architecture)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-4)


def test_sorted_columns_of_a_weight_do_not_sort_the_change(checkpoint: Path, folders: dict[str, Path]) -> None:
    import onnx

    shape = ["batch", "tokens", 32]
    nodes = [
        onnx.helper.make_node("Gather", ["x", "model.layers.0.self_attn.q_proj.weight.order"], ["sorted"], axis=-1),
        onnx.helper.make_node("MatMul", ["sorted", "model.layers.0.self_attn.q_proj.weight"], ["y"]),
    ]
    values = [onnx.helper.make_tensor_value_info(name, 1, shape) for name in ("x", "y", "sorted")]
    constants = [
        onnx.numpy_helper.from_array(np.arange(32)[::-1].copy(), nodes[0].input[1]),
        onnx.numpy_helper.from_array(np.zeros((32, 32), np.float32), nodes[1].input[1]),
    ]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:2], constants, value_info=values[2:])
    model = onnx.helper.make_model(graph)
    adapters = Adapters.read({"a": folders["plain"]})
    path = "model.layers.0.self_attn.q_proj"
    add_side_paths(model, Adapters(adapters.names, {path: adapters.modules[path]}), [], Path("m"))
    reads = [node.input[0] for node in model.graph.node if "lora" in node.name and node.op_type == "MatMul"]
    assert reads[0] == "x"


def stored(product: str, adapter: Path, activation_bits: int = 32) -> dict[str, np.ndarray]:
    """The matrices that a session stores beside a product of layer 0's q_proj, by the letters of their names."""
    import onnx

    path = "model.layers.0.self_attn.q_proj"
    attributes = {} if product == "MatMul" else {"K": 32, "bits": 4, "activation_bits": activation_bits}
    node = onnx.helper.make_node(product, ["x", f"{path}.weight"], ["y"], **attributes)
    values = [onnx.helper.make_tensor_value_info(name, 1, ["batch", "tokens", 32]) for name in ("x", "y")]
    weight = onnx.numpy_helper.from_array(np.zeros((32, 32), np.float32), node.input[1])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:], [weight]))
    adapters = Adapters.read({"a": adapter})
    only = Adapters(adapters.names, {path: adapters.modules[path]})
    matrices = add_side_paths(model, only, [], Path("m"), by_our_kernel=True)
    return {name.removeprefix("y.lora_"): each for name, each in matrices.items()}


@pytest.mark.parametrize(("product", "activation_bits"), [("MatMul", 32), ("GroupMatMul", 32), ("GroupMatMul", 16)])
@pytest.mark.parametrize("size", [1.0, 1e-7, 1e7])
def test_float16_holds_matrices_that_lose_nothing_or_little(
    product: str, activation_bits: int, size: float, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Numbers far beyond float16's range too; those of float32 are unchanged where activations are not rounded."""
    import torch

    adapter = Path(shutil.copytree(folders["plain"], tmp_path / "adapter"))
    change_tensors(adapter, lora_B__weight=lambda tensor: tensor * size)
    change = Adapters.read({"a": adapter}).modules["model.layers.0.self_attn.q_proj"]
    exact = change.factor[1] * change.first[1].T.astype(np.float64) @ change.second[1]
    found = stored(product, adapter, activation_bits)
    assert {found[letter].dtype.name for letter in "AB"} == {"float16" if activation_bits == 16 else "float32"}
    made = found["factor"][1] * found["A"][1].T.astype(np.float64) @ found["B"][1].astype(np.float64)
    allowed = 2.0**-9 if activation_bits == 16 else 2.0**-23
    bound = np.abs(change.factor[1] * change.first[1].T) @ np.abs(change.second[1])
    assert (np.abs(made - exact) <= allowed * bound).all() and np.abs(exact).max() > 1e-2 * size

    change_tensors(adapter, weight=lambda tensor: tensor.to(torch.bfloat16))
    assert stored(product, adapter)["B"].dtype == np.float16


def test_products_with_cuda_kernels_are_found(bundle: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    import onnx_ir as ir

    compress(bundle, tmp_path / "bundle", recipe="rtn")
    model = load(tmp_path / "bundle" / "model.onnx")
    assert not use_cuda_kernels(model, 80, lambda folder, sm: Images(b"", b"ptx"))
    message = ir.to_proto(model)
    adapters = Adapters.read({"a": folders["all"]})
    matrices = add_side_paths(message, adapters, [], tmp_path)
    assert len([name for name in matrices if name.endswith(".lora_A")]) == len(adapters.modules)
    read = {node.input[0] for node in message.graph.node if node.name.endswith("/MatMul") and ".lora." in node.name}
    assert not [name for name in read if name.startswith(CUDA_DOMAIN)]


@pytest.mark.parametrize("family", ["qwen2", "opt"])
def test_products_with_a_bias_equal_peft(family: str, tmp_path: Path) -> None:
    architecture = {"qwen2": "Qwen2ForCausalLM", "opt": "OPTForCausalLM"}[family]
    save_decoder(tmp_path / "model", family)
    export(str(tmp_path / "model"), tmp_path / "bundle", check=False)
    save_adapter(tmp_path / "model", tmp_path / "adapter", architecture, target_modules="all-linear")
    found = logits(tmp_path / "bundle", Adapters.read({"a": tmp_path / "adapter"}), [1])
    expected = with_adapter(tmp_path / "model", tmp_path / "adapter", architecture)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["hidden-transfer", "medusa"])
def test_drafts_of_the_model_itself_keep_its_text(
    kind: str, checkpoint: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    export(str(save_drafts(checkpoint, tmp_path / "model", kind)), tmp_path / "bundle", check=False)
    texts = []
    for strategy in ("greedy", kind):
        options = {"adapter": [folders["all"]], "strategy": strategy, "max_new_tokens": 12, "ignore_eos": True}
        with TextGenerator(tmp_path / "bundle", **options) as generator:
            texts.append(generator.write("hello").whole().tokens)
    assert texts[0] == texts[1]
    found = logits(tmp_path / "bundle", Adapters.read({"a": folders["all"]}), [1])
    np.testing.assert_allclose(found[0], with_adapter(checkpoint, folders["all"]), rtol=0, atol=1e-4)


def test_exits_of_single_tokens_are_refused(checkpoint: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    export(str(save_early_exit(checkpoint, tmp_path / "model", "every")), tmp_path / "bundle", check=False)
    with pytest.raises(SourceError, match=r"no products with the weight of model\.layers\.1\."):
        DecoderSession.open(tmp_path / "bundle", adapters=Adapters.read({"a": folders["all"]}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_modules": ["q_proj"], "layers_to_transform": [0]}, None),
        ({"target_modules": ["lm_head"]}, "no products with the weight of lm_head"),
    ],
)
def test_weight_of_two_modules_is_refused_by_name(options: dict[str, Any], message: str | None, tmp_path: Path) -> None:
    save_decoder(tmp_path / "model", "llama", tie_word_embeddings=True)
    export(str(tmp_path / "model"), tmp_path / "bundle", check=False)
    save_matrices(tmp_path / "model", tmp_path / "adapter", **options)
    adapters = Adapters.read({"a": tmp_path / "adapter"})
    if message is None:
        DecoderSession.open(tmp_path / "bundle", adapters=adapters).close()
        return
    with pytest.raises(IntaglioError, match=message):
        DecoderSession.open(tmp_path / "bundle", adapters=adapters)


def test_adapter_of_another_model_is_refused(bundle: Path, tmp_path: Path) -> None:
    save_decoder(tmp_path / "model", "llama", num_key_value_heads=4)
    save_adapter(tmp_path / "model", tmp_path / "adapter")
    with pytest.raises(IntaglioError, match=r"v_proj has 32 inputs and 32 outputs, the model's has 32 and 16"):
        DecoderSession.open(bundle, adapters=Adapters.read({"a": tmp_path / "adapter"}))


def test_product_under_two_names_is_refused(bundle: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    """As an adapter of a LlamaModel and one of a LlamaForCausalLM name it."""
    from safetensors.torch import load_file, save_file

    bare = Path(shutil.copytree(folders["plain"], tmp_path / "bare"))
    path = bare / "adapter_model.safetensors"
    save_file({name.replace("model.model.model", "model.model"): each for name, each in load_file(path).items()}, path)
    for names in (("a", "b"), ("b", "a")):
        both = {"a": folders["plain"], "b": bare}
        with pytest.raises(IntaglioError, match="is a product that another name of it changes"):
            DecoderSession.open(bundle, adapters=Adapters.read({name: both[name] for name in names}))


@pytest.mark.parametrize(("dtype", "alpha"), [("float32", 1e40), ("float16", 4e6)])
def test_adapter_that_overflows_is_refused_by_its_name(
    dtype: str, alpha: float, bundle: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    large = Path(shutil.copytree(folders["plain"], tmp_path / "large"))
    settings = json.loads((large / "adapter_config.json").read_text())
    (large / "adapter_config.json").write_text(json.dumps({**settings, "lora_alpha": alpha}))
    if dtype == "float16":
        compress(bundle, tmp_path / "half", recipe="float16")
        bundle = tmp_path / "half"
    adapters = Adapters.read({"fine": folders["plain"], "large": large})
    with pytest.raises(IntaglioError, match=f"adapter large: its numbers overflow in {dtype}"):
        DecoderSession.open(bundle, adapters=adapters)


def test_pass_that_scales_inputs_is_refused(bundle: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    compress(bundle, tmp_path / "bundle", recipe="awq", calibration=tmp_path / "text.txt")
    with pytest.raises(IntaglioError, match="the pass awq changed what products read"):
        DecoderSession.open(tmp_path / "bundle", adapters=Adapters.read(folders))


def test_bundle_is_not_changed(bundle: Path, folders: dict[str, Path]) -> None:
    logits(bundle, Adapters.read(folders), [1])
    assert not Bundle.open(bundle).manifest.passes
    with DecoderSession.open(bundle) as session:
        assert "adapter" not in [spec.name for spec in session.engine.inputs]
