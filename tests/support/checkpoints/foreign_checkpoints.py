"""Tiny handmade checkpoints of other tools or with missing parts, and the expected message for each."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

BERT: dict[str, Any] = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 98, "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 256,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 98, "hidden_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 256,
}  # fmt: skip
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
BYTES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U32": 4, "F4": 1}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 440449768\n"
LAYER = "model.layers.0.self_attn.q_proj"
Files = Mapping[str, bytes | str | dict[str, Any]]


class Case(NamedTuple):
    """The files of a folder, and the expected message; `export` gets the folder, or `given` in it."""

    files: Files
    says: tuple[str, ...]
    given: str = ""


def write(folder: Path, files: Files) -> Path:
    """Write a folder of these files; JSON is given as a dict."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            path.write_text(json.dumps(content))
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def tensors(**dtypes: str) -> bytes:
    """A .safetensors file of [4, 4] matrices of zeros; `__` in a name stands for a dot."""
    return named_tensors({name.replace("__", "."): dtype for name, dtype in dtypes.items()})


def named_tensors(dtypes: Mapping[str, str]) -> bytes:
    header, offset = {}, 0
    for name, dtype in dtypes.items():
        size = math.prod((4, 4)) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": [4, 4], "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(offset)


def archive(*names: str) -> bytes:
    """A zip file with empty files of these names."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name in names:
            file.writestr(name, b"")
    return data.getvalue()


WHOLE = tensors(weight="F32")


def _quantised(config: dict[str, Any], *says: str, **tensor_names: str) -> Case:
    files = {
        "config.json": {**LLAMA, **config},
        "model.safetensors": tensors(**tensor_names) if tensor_names else WHOLE,
    }
    return Case(files, ("quantised already", *says))


def _by_tensors(says: tuple[str, ...], *names: str, dtype: str = "I32") -> Case:
    weights = named_tensors({f"{LAYER}.{name}": dtype for name in names} | {"model.norm.weight": "F16"})
    return Case({"config.json": LLAMA, "model.safetensors": weights}, ("quantised already", *says))


def _method(method: str, **more: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, **more}}


QUANTISED = {
    "gptq": _quantised(_method("gptq", bits=4, group_size=128), "GPTQ, 4 bits", "no tensor is called qweight"),
    "awq": _quantised(_method("awq", bits=4), "AWQ, 4 bits", "no tensor is called qweight"),
    "auto-round": _quantised(_method("auto-round", bits=4), "AutoRound, 4 bits", "--recipe gptq"),
    "compressed-tensors": _quantised(
        _method("compressed-tensors", format="pack-quantized"), "no tensor is called weight_packed"
    ),
    "compressed-tensors of floats": _quantised(
        _method("compressed-tensors", format="nvfp4-pack-quantized"), "no tensor is called weight_packed"
    ),
    "compressed-tensors with zeros": _quantised(
        _method("compressed-tensors", format="marlin-24"), "compressed-tensors", "--recipe gptq"
    ),
    "older compressed-tensors": _quantised(
        {"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors", "compression_config"
    ),
    "nf4": _quantised(
        _method("bitsandbytes", load_in_4bit=True, load_in_8bit=False, bnb_4bit_quant_type="nf4"), "(NF4, 4 bits)"
    ),
    "fp4": _quantised(_method("bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="fp4"), "(FP4, 4 bits)"),
    "int8": _quantised(_method("bitsandbytes", load_in_8bit=True), "(int8)", "no tensor is called SCB"),
    "bitsandbytes without its name": _quantised({"quantization_config": {"load_in_8bit": True}}, "(int8)"),
    "hqq": _quantised(
        _method("hqq", quant_config={"weight_quant_params": {"nbits": 4}}), "HQQ", "no tensor is called W_q"
    ),
    "fp8": _quantised(_method("mxfp8"), "MXFP8", "--recipe int8-weights"),
    "fp8 without its tensors": Case(
        {"config.json": {**LLAMA, **_method("fp8", activation_scheme="dynamic")}, "model.safetensors": WHOLE},
        ("FP8", "no tensor is called weight_scale_inv"),
    ),
    "fbgemm without its tensors": Case(
        {"config.json": {**LLAMA, **_method("fbgemm_fp8")}, "model.safetensors": WHOLE},
        ("FP8 (FBGEMM)", "no tensor is called weight_scale"),
    ),
    "mxfp4": _quantised(_method("mxfp4"), "MXFP4"),
    "nvfp4": _quantised(_method("modelopt", quant_algo="NVFP4"), "ModelOpt"),
    "quanto": _quantised(_method("quanto", weights="int8"), "Quanto"),
    "torchao": _quantised(_method("torchao"), "torchao"),
    "aqlm": _quantised(_method("aqlm"), "AQLM"),
    "eetq": _quantised(_method("eetq"), "EETQ"),
    "vptq": _quantised(_method("vptq"), "VPTQ"),
    "higgs": _quantised(_method("higgs"), "HIGGS"),
    "spqr": _quantised(_method("spqr"), "SpQR"),
    "bitnet": _quantised(_method("bitnet"), "BitNet"),
    "exl2": _quantised(_method("exl2", bits=4), "EXL2, 4 bits"),
    "quark": _quantised(_method("quark"), "Quark"),
    "mlx": _quantised({"quantization": {"group_size": 64, "bits": 4}}, "MLX, 4 bits"),
    "a new method": _quantised(_method("next_year", bits=3), "next_year, 3 bits"),
    "a method that is text": _quantised({"quantization_config": "gptq"}, "GPTQ"),
    "in the text's section": _quantised({"text_config": _method("awq")}, "AWQ"),
    "quantize_config.json": Case(
        {"config.json": LLAMA, "quantize_config.json": {"bits": 4, "group_size": 128}, "model.safetensors": WHOLE},
        ("GPTQ", "no tensor is called qweight"),
    ),
    "quant_config.json": Case(
        {"config.json": LLAMA, "quant_config.json": {"w_bit": 4, "q_group_size": 128}, "model.safetensors": WHOLE},
        ("AWQ", "no tensor is called qweight"),
    ),
    "hf_quant_config.json": Case(
        {
            "config.json": LLAMA,
            "hf_quant_config.json": {"quantization": {"quant_algo": "FP8"}},
            "model.safetensors": WHOLE,
        },
        ("ModelOpt", "no tensor is called weight_scale"),
    ),
    "quanto_qmap.json": Case({"config.json": LLAMA, "quanto_qmap.json": {}, "model.safetensors": WHOLE}, ("Quanto",)),
    "qmodel.pt": Case({"config.json": LLAMA, "qmodel.pt": b"PK"}, ("HQQ",)),
    "tensors of GPTQ": _by_tensors(("GPTQ", "tensor"), "qweight", "qzeros", "scales", "g_idx"),
    "tensors of AWQ": _by_tensors(("AWQ", "--recipe awq"), "qweight", "qzeros", "scales"),
    "tensors of compressed-tensors": _by_tensors(
        ("compressed-tensors",), "weight_packed", "weight_scale", "weight_shape"
    ),
    "tensors of NF4": _by_tensors(
        ("NF4",), "weight", "weight.quant_state.bitsandbytes__nf4", "weight.absmax", dtype="U8"
    ),
    "tensors of FP4": _by_tensors(("FP4",), "weight", "weight.quant_state.bitsandbytes__fp4", dtype="U8"),
    "tensors of int8": _by_tensors(("(int8)",), "weight", "SCB", "weight_format", dtype="I8"),
    "tensors of HQQ": _by_tensors(("HQQ",), "W_q", "scale", "zero", dtype="U8"),
    "tensors of FP8": _by_tensors(("FP8",), "weight", "weight_scale_inv", dtype="F8_E4M3"),
    "FP8 without scales": _by_tensors(("FP8", "weight is F8_E5M2"), "weight", dtype="F8_E5M2"),
    "tensors of MXFP4": _by_tensors(("MXFP4",), "down_proj_blocks", "down_proj_scales", dtype="U8"),
    "tensors of Quanto": _by_tensors(("Quanto",), "weight._data", "weight._scale", dtype="I8"),
    "tensors of AQLM": _by_tensors(("AQLM",), "codes", "codebooks", "scales", dtype="I16"),
    "tensors of EETQ": _by_tensors(("EETQ",), "weight", "weight_scales", dtype="I8"),
    "tensors of MLX": _by_tensors(("MLX",), "weight", "scales", "biases", dtype="U32"),
    "integers without a name": _by_tensors(("numbers of type I8",), "weight", dtype="I8"),
}
WEIGHTLESS = {"config.json": BERT}
FOREIGN = {
    "empty": Case({}, ("empty folder",)),
    "a readme alone": Case({"README.md": "x"}, ("no config.json and no weights", "README.md")),
    "a tokenizer alone": Case({"tokenizer.json": "{}"}, ("no config.json and no weights", "tokenizer.json")),
    "no weights": Case(WEIGHTLESS, ("no weights (model.safetensors)", "download the whole checkpoint")),
    "no config": Case({"model.safetensors": WHOLE}, ("no config.json beside model.safetensors",)),
    "gguf": Case({"model-Q4_K_M.gguf": b"GGUF"}, ("a model of llama.cpp", "Export that file")),
    "gguf beside a config": Case({**WEIGHTLESS, "m.gguf": b"GGUF"}, ("a model of llama.cpp", "Export that file")),
    "gguf file": Case({"m.gguf": b"GGUF"}, ("m.gguf: truncated",), "m.gguf"),
    "gguf under another name": Case({"model": b"GGUF\3\0\0\0"}, ("model: truncated",), "model"),
    "whisper.cpp": Case({"ggml-base.en.bin": b"lmgg"}, ("llama.cpp",)),
    "pickle": Case({**WEIGHTLESS, "pytorch_model.bin": b"x"}, ("pickle", "intaglio convert {folder} -o CHECKPOINT")),
    "sharded pickle": Case(
        {**WEIGHTLESS, "pytorch_model.bin.index.json": "{}"}, ("pickle", "intaglio convert {folder} -o CHECKPOINT")
    ),
    "pickle file": Case({"pytorch_model.bin": b"x"}, ("intaglio convert {folder} -o",), "pytorch_model.bin"),
    "shards of pickles without their index": Case(
        {**WEIGHTLESS, "pytorch_model-00001-of-00002.bin": b"x"}, ("without pytorch_model.bin.index.json",)
    ),
    "fp16 pickle": Case({**WEIGHTLESS, "pytorch_model.fp16.bin": b"x"}, ("a variant of the weights in a pickle",)),
    "shards without their index": Case(
        {**WEIGHTLESS, "model-00001-of-00002.safetensors": WHOLE}, ("without model.safetensors.index.json",)
    ),
    "fp16 variant": Case(
        {**WEIGHTLESS, "model.fp16.safetensors": WHOLE},
        ("Rename {folder}/model.fp16.safetensors to model.safetensors",),
    ),
    "sharded fp16 variant": Case(
        {**WEIGHTLESS, "model.safetensors.index.fp16.json": "{}", "model-00001-of-00002.fp16.safetensors": WHOLE},
        ("Rename {folder}/model.safetensors.index.fp16.json",),
    ),
    "another name": Case({**WEIGHTLESS, "bert.safetensors": WHOLE}, ("but bert.safetensors", "Rename")),
    "mistral's own": Case(
        {"consolidated.safetensors": WHOLE, "params.json": {"dim": 4096}, "tekken.json": "{}"},
        ("original format of Mistral or Meta", "config.json and model.safetensors"),
    ),
    "meta's own": Case(
        {"consolidated.00.pth": b"PK", "params.json": {}, "tokenizer.model": b"x"}, ("original format",)
    ),
    "meta's own in a folder": Case({**WEIGHTLESS, "original/consolidated.00.pth": b"PK"}, ("original format",)),
    "tensorflow": Case({**WEIGHTLESS, "tf_model.h5": b"\x89HDF"}, ("TensorFlow (tf_model.h5)", "from_tf=True")),
    "keras": Case({"model.keras": b"PK"}, ("TensorFlow",)),
    "saved model": Case({"saved_model.pb": b"x", "variables/variables.index": b"x"}, ("TensorFlow",)),
    "tensorflow 1": Case({"bert_config.json": "{}", "bert_model.ckpt.index": b"x"}, ("TensorFlow",)),
    "flax": Case({**WEIGHTLESS, "flax_model.msgpack": b"x"}, ("Flax or JAX", "from_flax=True")),
    "lightning": Case({"epoch=3.ckpt": b"PK"}, ("training framework (epoch=3.ckpt)", "save_pretrained")),
    "lightning file": Case({"last.ckpt": b"PK"}, ("training framework",), "last.ckpt"),
    "pt2": Case(
        {"model.pt2": archive("model/archive_format")}, ("exported or compiled", "Only checkpoints"), "model.pt2"
    ),
    "pt2 in a folder": Case({**WEIGHTLESS, "model.pt2": b"PK"}, ("exported or compiled",)),
    "torchscript": Case({"m.pt": archive("m/code/__torch__.py", "m/constants.pkl")}, ("TorchScript",), "m.pt"),
    "torchscript in a folder": Case({"m.pt": archive("m/code/__torch__.py")}, ("TorchScript",)),
    "state of torch": Case({"m.pth": archive("m/data.pkl")}, ("a file of torch (m.pth)", "save_pretrained"), "m.pth"),
    "optimum": Case({**WEIGHTLESS, "onnx/model.onnx": b"x"}, ("intaglio export {folder}/onnx/model.onnx -o BUNDLE",)),
    "onnx beside a config": Case(
        {**WEIGHTLESS, "model.onnx": b"x"}, ("intaglio export {folder}/model.onnx -o BUNDLE",)
    ),
    "quantised onnx": Case(
        {"model_quantized.onnx": b"x"}, ("intaglio export {folder}/model_quantized.onnx -o BUNDLE",)
    ),
    "optimum's encoder-decoder": Case(
        {**WEIGHTLESS, "encoder_model.onnx": b"x", "decoder_model.onnx": b"x"}, ("an encoder-decoder",)
    ),
    "openvino": Case({**WEIGHTLESS, "openvino_model.xml": b"x", "openvino_model.bin": b"x"}, ("OpenVINO",)),
    "tensorrt": Case({"model.engine": b"x"}, ("TensorRT",)),
    "tensorrt-llm": Case({"config.json": LLAMA, "rank0.safetensors": WHOLE}, ("TensorRT",)),
    "tflite": Case({"model.tflite": b"x"}, ("TensorFlow Lite",), "model.tflite"),
    "core ml": Case({"model.mlmodel": b"x"}, ("Core ML",)),
    "paddle": Case({"model_state.pdparams": b"x"}, ("Paddle",)),
    "ctranslate2": Case({"model.bin": b"x", "shared_vocabulary.txt": b"x"}, ("CTranslate2",)),
    "deepspeed": Case({"zero_to_fp32.py": b"x", "global_step5/mp_rank_00_model_states.pt": b"x"}, ("zero_to_fp32.py",)),
    "fsdp": Case({"__0_0.distcp": b"x", ".metadata": b"x"}, ("FSDP", "accelerate merge-weights")),
    "numpy": Case({"weights.npz": b"PK"}, ("NumPy",)),
    "joblib": Case({"model.joblib": b"x"}, ("pickle",)),
    "an archive": Case({"bert.zip": archive("bert/config.json")}, ("an archive (bert.zip)", "Unpack"), "bert.zip"),
    "half a download": Case({"model.safetensors.incomplete": b"x"}, ("did not end", "again")),
    "nemo": Case({"model.nemo": b"x"}, ("intaglio convert {folder}/model.nemo -o CHECKPOINT",)),
    "nemo file": Case({"model.nemo": b"x"}, ("intaglio convert {folder}/model.nemo -o CHECKPOINT",), "model.nemo"),
    "diffusers": Case({"model_index.json": {"_class_name": "StableDiffusionPipeline"}}, ("diffusers",)),
    "a bundle": Case({"bundle.json": "{}", "config.json": BERT, "model.onnx": b"x"}, ("intaglio inspect {folder}",)),
    "parent of one": Case(
        {"bert/config.json": BERT, "bert/model.safetensors": WHOLE}, ("intaglio export {folder}/bert -o BUNDLE",)
    ),
    "a snapshot's cache": Case(
        {"snapshots/0a1b/config.json": BERT, "snapshots/0a1b/model.safetensors": WHOLE, "refs/main": "0a1b"},
        ("intaglio export {folder}/snapshots/0a1b -o BUNDLE",),
    ),
    "several": Case(
        {
            f"checkpoint-{n}/{name}": x
            for n in (500, 1000)
            for name, x in (("config.json", BERT), ("model.safetensors", WHOLE))
        },
        ("2 checkpoints (checkpoint-500, checkpoint-1000)", "{folder}/checkpoint-1000"),
    ),
    "a file of a checkpoint": Case(
        {"config.json": BERT, "model.safetensors": WHOLE}, ("intaglio export {folder} -o BUNDLE",), "model.safetensors"
    ),
    "its config": Case({"config.json": BERT}, ("intaglio export {folder} -o BUNDLE",), "config.json"),
    "a text": Case({"notes.txt": "x"}, ("not a directory", "checkpoint's folder"), "notes.txt"),
    "lora alone": Case(
        {
            "adapter_config.json": {
                "peft_type": "LORA",
                "base_model_name_or_path": "org/base",
                "task_type": "CAUSAL_LM",
            },
            "adapter_model.safetensors": WHOLE,
        },
        ("without its model, org/base", "intaglio export org/base -o BUNDLE --adapter {folder}"),
    ),
    "lora beside": Case(
        {
            "config.json": LLAMA,
            "model.safetensors": WHOLE,
            "adapter_config.json": {"peft_type": "LORA", "task_type": "CAUSAL_LM"},
            "adapter_model.safetensors": WHOLE,
        },
        ("(LORA) beside the weights", "intaglio export {folder} -o BUNDLE --adapter DIR"),
    ),
    "lora without its config": Case(
        {"config.json": LLAMA, "model.safetensors": WHOLE, "adapter_model.bin": b"x"},
        ("adapter_model.bin: an adapter",),
    ),
    "lora in a named folder": Case(
        {
            "config.json": {**LLAMA, "speech": {"path": "./speech-lora"}},
            "model.safetensors": WHOLE,
            "speech-lora/adapter_config.json": {"peft_type": "LORA"},
        },
        ("speech-lora/adapter_config.json: an adapter", "intaglio export {folder} -o BUNDLE --adapter DIR"),
    ),
    "lora by a key": Case(
        {"config.json": {**LLAMA, "has_lora_adapter": True}, "model.safetensors": WHOLE},
        ("has_lora_adapter", "--adapter DIR"),
    ),
    "lora not merged": Case(
        {"config.json": LLAMA, "model.safetensors": tensors(**{f"{LAYER}.lora_A.weight".replace(".", "__"): "F32"})},
        ("not merged", "merge_and_unload"),
    ),
    "another adapter alone": Case(
        {"adapter_config.json": {"peft_type": "IA3", "task_type": "SEQ_CLS"}, "adapter_model.safetensors": WHOLE},
        ("without its model", "AutoPeftModelForSequenceClassification", "merge_and_unload"),
    ),
    "trained prompts": Case({"adapter_config.json": {"peft_type": "PROMPT_TUNING"}}, ("cannot be merged",)),
    **{
        f"pointer {name}": Case(
            {"config.json": BERT, "model.safetensors": WHOLE, "tokenizer.json": "{}", name: POINTER},
            (f"{name}: a pointer of Git LFS", "git lfs pull"),
        )
        for name in (
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "vocab.txt",
            "tokenizer.model",
            "1_Pooling/config.json",
        )
    },
    "pointer of a pickle": Case({**WEIGHTLESS, "pytorch_model.bin": POINTER}, ("pointer of Git LFS",)),
    "pointer of a graph": Case({"model.onnx": POINTER}, ("pointer of Git LFS",), "model.onnx"),
    "pointer of a shard": Case(
        {
            **WEIGHTLESS,
            "model.safetensors.index.json": {"weight_map": {"a": "m.safetensors"}},
            "m.safetensors": POINTER,
        },
        ("m.safetensors: a pointer of Git LFS",),
    ),
    "timm": Case(
        {"config.json": {"architecture": "resnet50", "pretrained_cfg": {}}, "model.safetensors": WHOLE}, ("timm",)
    ),
    "no model_type": Case(
        {"config.json": {"architectures": ["BertModel"]}, "model.safetensors": WHOLE}, ('"model_type": "bert"',)
    ),
    "another architecture": Case(
        {
            "config.json": {
                "model_type": "bart",
                "architectures": ["BartForQuestionAnswering"],
                "encoder_layers": "x",
            }
        },
        ("BartForQuestionAnswering is not supported", "BartForConditionalGeneration", "docs/reference.md"),
    ),
    "its numbers do not matter": Case(
        {"config.json": {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "intermediate_size": [1]}},
        ("MambaForCausalLM is not supported", "keeps a recurrent state"),
    ),
    "another head": Case(
        {"config.json": {**LLAMA, "architectures": ["LlamaForMultipleChoice"]}, "model.safetensors": WHOLE},
        ("LlamaForMultipleChoice is not supported", "LlamaForCausalLM (llama)"),
    ),
    "an image model": Case(
        {"config.json": {"model_type": "detr", "architectures": ["DetrForObjectDetection"], "num_channels": 3}},
        ("Of models that read images, classifiers, encoders, SmolVLM and Idefics3 are",),
    ),
    "a speech model": Case(
        {
            "config.json": {
                "model_type": "moonshine",
                "architectures": ["MoonshineForConditionalGeneration"],
                "num_mel_bins": 80,
            }
        },
        ("MoonshineForConditionalGeneration is not supported", "is WhisperForConditionalGeneration (whisper)"),
    ),
    "code of its own": Case(
        {"config.json": {"model_type": "x", "architectures": ["XForCausalLM"], "auto_map": {"AutoModel": "x.X"}}},
        ("(auto_map) and is not run",),
    ),
}
