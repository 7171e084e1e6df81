"""The kinds of files that other tools write, by their names: what each is, and what to do with it."""

from __future__ import annotations

from typing import NamedTuple

ORIGINAL = "Give the checkpoint in the format of transformers: config.json and model.safetensors."
OTHER = f"It was made from a checkpoint. {ORIGINAL}"


class FileKind(NamedTuple):
    """Files of one kind: patterns of names, and what to say. `{path}` is the first that was found, `{folder}` its own.

    `{source}` is the source as named by the user.
    """

    patterns: tuple[str, ...]
    what: str
    fix: str


CONVERT = "Convert it: intaglio convert {source} -o CHECKPOINT, and export CHECKPOINT."
KINDS = (
    FileKind(("bundle.json",), "a bundle, which export made", "It needs no export: intaglio inspect {source}"),
    FileKind(
        ("model_index.json", "unet/*", "transformer/diffusion_pytorch_model*", "diffusion_pytorch_model*"),
        "a pipeline of diffusers, which generates images",
        "It cannot be exported.",
    ),
    FileKind(
        ("model.safetensors.index.*.json", "model.*.safetensors.index.json"),
        "a variant of sharded weights ({name})",
        "Rename {path} to model.safetensors.index.json in a copy of the folder.",
    ),
    FileKind(
        ("model.*.safetensors", "pytorch_model.safetensors"),
        "weights under another name ({name})",
        "Rename {path} to model.safetensors in a copy of the folder.",
    ),
    FileKind(
        ("consolidated*.safetensors", "consolidated*.pth"),
        "weights in the original format of Mistral or Meta ({name}, params.json)",
        "Give the checkpoint in the format of transformers, usually in the same place at the hub, or under a name with "
        "-hf: config.json and model.safetensors.",
    ),
    FileKind(
        ("model-*-of-*.safetensors",),
        "parts of the weights ({name}) without model.safetensors.index.json",
        "Download or copy that file too.",
    ),
    FileKind(("rank*.safetensors", "*.engine", "*.plan", "*.trt"), "an engine of TensorRT ({name})", OTHER),
    FileKind(("pytorch_model.bin", "pytorch_model.bin.index.json"), "the weights in a pickle ({name})", CONVERT),
    FileKind(
        ("pytorch_model-*-of-*.bin",),
        "parts of the weights in pickles ({name}) without pytorch_model.bin.index.json",
        "Download or copy that file too, then: intaglio convert {source} -o CHECKPOINT",
    ),
    FileKind(
        ("pytorch_model.*.bin", "pytorch_model.bin.index.*.json"),
        "a variant of the weights in a pickle ({name})",
        "Remove the variant from the file's name in a copy of the folder, then: intaglio convert COPY -o CHECKPOINT",
    ),
    FileKind(
        ("*.nemo", "*.hama"),
        "a speech recogniser of another toolkit",
        "Convert it: intaglio convert {path} -o CHECKPOINT",
    ),
    FileKind(("*.gguf",), "a model of llama.cpp ({name})", "Export that file: intaglio export {path} -o BUNDLE"),
    FileKind(
        ("*.ggml", "ggml-*.bin", "*.llamafile"),
        "weights of llama.cpp in an older format ({name})",
        "Give a .gguf file, or the checkpoint that they were made from.",
    ),
    FileKind(
        ("onnx/model.onnx", "model.onnx", "*/model.onnx"),
        "a graph that another tool exported ({name})",
        "Export that file: intaglio export {path} -o BUNDLE",
    ),
    FileKind(
        ("*encoder_model*.onnx", "*decoder_model*.onnx", "*decoder*.onnx"),
        "graphs of an encoder-decoder that another tool exported ({name})",
        ORIGINAL,
    ),
    FileKind(
        ("*.onnx",), "a graph that another tool exported ({name})", "Export that file: intaglio export {path} -o BUNDLE"
    ),
    FileKind(
        ("*.ort",), "a graph in ONNX Runtime's own format ({name})", "Export the .onnx file that it was made from."
    ),
    FileKind(
        ("zero_to_fp32.py", "*_model_states.pt", "*_optim_states.pt"),
        "a checkpoint of DeepSpeed, in parts",
        "Join them: python {folder}/zero_to_fp32.py {folder} OUTPUT, then add config.json and the tokenizer.",
    ),
    FileKind(
        ("*.distcp", ".metadata"),
        "a distributed checkpoint of torch (FSDP), in parts",
        "Join them: accelerate merge-weights {folder} OUTPUT, then add config.json and the tokenizer.",
    ),
    FileKind(
        (
            "tf_model.h5",
            "tf_model-*.h5",
            "*.h5",
            "*.keras",
            "saved_model.pb",
            "*.ckpt.index",
            "*.ckpt.meta",
            "*.tf_model",
        ),
        "weights of TensorFlow ({name})",
        "Load them with transformers 4, from_pretrained(..., from_tf=True), and save the model with save_pretrained.",
    ),
    FileKind(
        ("flax_model.msgpack", "flax_model-*.msgpack", "*.msgpack", "*.orbax*", "_CHECKPOINT_METADATA"),
        "weights of Flax or JAX ({name})",
        "Load them with transformers 4, from_pretrained(..., from_flax=True), and save the model with save_pretrained.",
    ),
    FileKind(("*.pdparams", "*.pdmodel", "model_state.pdparams"), "weights of Paddle ({name})", ORIGINAL),
    FileKind(("*.tflite", "*.task"), "a model of TensorFlow Lite ({name})", OTHER),
    FileKind(("*.mlmodel", "*.mlpackage/*", "*.mlmodelc/*", "*.mlpackage"), "a model of Core ML ({name})", OTHER),
    FileKind(("openvino_model.xml", "openvino*.xml"), "a model of OpenVINO ({name})", OTHER),
    FileKind(("weights.npz", "weights.*.npz", "*.npz", "*.npy"), "weights as NumPy arrays ({name})", ORIGINAL),
    FileKind(
        ("model.bin",),
        "a model of CTranslate2 or another runtime ({name})",
        OTHER,
    ),
    FileKind(("*.mar", "*.caffemodel", "*.prototxt"), "a model of another framework ({name})", ORIGINAL),
    FileKind(("*.rknn", "*.mnn", "*.param", "*.ncnn*", "*.xmodel"), "a model of another runtime ({name})", OTHER),
    FileKind(("*.joblib", "*.pkl", "*.pickle", "*.dill"), "a Python object in a pickle ({name})", ORIGINAL),
    FileKind(
        ("*.pt2", "*.ptl"),
        "a program that torch exported or compiled ({name})",
        f"Only checkpoints are traced. {ORIGINAL}",
    ),
    FileKind(
        ("*.ckpt",),
        "a checkpoint of a training framework ({name})",
        "Load it there, save the model with transformers' save_pretrained, and export that folder.",
    ),
    FileKind(
        ("sq-*.pt",),
        "weights of SqueezeLLM ({name})",
        "Convert them: intaglio convert {path} --base FOLDER -o CHECKPOINT, FOLDER being the model that they were made "
        "from, and export CHECKPOINT.",
    ),
    FileKind(
        ("*.pt", "*.pth", "*.bin"),
        "a file of torch ({name})",
        "Load it with the code that made it, save it with transformers' save_pretrained, and export that folder.",
    ),
    FileKind(
        ("*.incomplete", "*.part", "*.crdownload", "*.aria2", "*.download"),
        "a download that did not end ({name})",
        "Download it again.",
    ),
    FileKind(
        ("*.zip", "*.tar", "*.tar.gz", "*.tgz", "*.7z", "*.rar", "*.tar.bz2", "*.tar.zst"),
        "an archive ({name})",
        "Unpack it, and give the folder with config.json.",
    ),
)
PROGRAM = FileKind((), "a program of TorchScript ({name})", f"Only checkpoints are traced. {ORIGINAL}")
