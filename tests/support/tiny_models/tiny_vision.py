"""Small random checkpoints of models of `transformers` that read images, by their model_type, with image processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_encoders import VOCABULARY, write_letter_tokenizer

SIZE = 32  # of an image, height and width
BASE, CLASSES = "Model", "ForImageClassification"
LABELS = 5
WIDTHS = {"hidden_sizes": [16, 32], "depths": [1, 2]}  # of stages
STAGES = {"embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 2}
PLAIN: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": SIZE,
    "patch_size": 8,
}
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "projection_size": 32,
    "projection_dim": 32,
}
TOWERS = {"text_config": TEXT, "vision_config": PLAIN, "projection_dim": 24}
# What a type needs in place of `PLAIN`, or beside it.
OPTIONS: dict[str, dict[str, Any]] = {
    "beit": {**PLAIN, "use_relative_position_bias": True, "layer_scale_init_value": 0.5},
    "bit": {**WIDTHS, "embedding_size": 16, "num_groups": 4},
    "clip": TOWERS,
    "convnext": {**WIDTHS, "num_stages": 2},
    "convnextv2": {**WIDTHS, "num_stages": 2, "image_size": SIZE},
    "dinov2": {**PLAIN, "mlp_ratio": 2},
    "dinov2_with_registers": {**PLAIN, "mlp_ratio": 2, "num_register_tokens": 2},
    "dinov3_convnext": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "image_size": SIZE},
    "dinov3_vit": {**PLAIN, "num_register_tokens": 2},
    "focalnet": {
        "image_size": SIZE,
        "embed_dim": 16,
        "hidden_sizes": [16, 32],
        "depths": [1, 2],
        "focal_levels": [1, 1],
        "focal_windows": [3, 3],
    },
    "metaclip_2": TOWERS,
    "mobilenet_v2": {"depth_multiplier": 0.25, "image_size": SIZE},
    "poolformer": {
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "num_encoder_blocks": 2,
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "padding": [2, 1],
    },
    "pvt": {
        "image_size": SIZE,
        "num_encoder_blocks": 2,
        "depths": [1, 1],
        "sequence_reduction_ratios": [2, 1],
        "hidden_sizes": [16, 32],
        "patch_sizes": [4, 2],
        "strides": [4, 2],
        "num_attention_heads": [2, 4],
        "mlp_ratios": [2, 2],
    },
    "regnet": {**WIDTHS, "embedding_size": 16, "groups_width": 8},
    "resnet": {**WIDTHS, "embedding_size": 16, "layer_type": "basic"},
    "siglip": TOWERS,
    "swin": {**STAGES, "image_size": SIZE},
    "swinv2": {**STAGES, "image_size": SIZE},
}
# The image processor of the models that are known by the type's name, where it is not ViT's.
FLOATING = "DINOv3ViT"  # only for torchvision
PROCESSORS = {
    "beit": "Beit",
    "bit": "Bit",
    "clip": "CLIP",
    "clip_vision_model": "CLIP",
    "convnext": "ConvNext",
    "convnextv2": "ConvNext",
    "data2vec-vision": "Beit",
    "deit": "DeiT",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
    "dinov3_convnext": FLOATING,
    "dinov3_vit": FLOATING,
    "metaclip_2": "CLIP",
    "pvt": "Pvt",
    "regnet": "ConvNext",
    "resnet": "ConvNext",
    "siglip": "Siglip",
    "siglip_vision_model": "Siglip",
}
TEACHERS = {"deit": "DeiTForImageClassification", "levit": "LevitForImageClassification"}
SIZES: dict[str, dict[str, Any]] = {  # of an image processor
    "Bit": {"size": {"shortest_edge": SIZE + 5}, "crop_size": {"height": SIZE, "width": SIZE}},
    "CLIP": {"size": {"shortest_edge": SIZE}, "crop_size": {"height": SIZE, "width": SIZE}},
    "ConvNext": {"size": {"shortest_edge": SIZE}},
    "DeiT": {"size": {"height": SIZE + 4, "width": SIZE + 4}, "crop_size": {"height": SIZE, "width": SIZE}},
}


def save_vision(folder: Path, model_type: str, head: str = BASE, **options: Any) -> Path:
    """Write a checkpoint of `model_type`, with a head or without one, into `folder`, and return it."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"num_labels": LABELS, **OPTIONS.get(model_type, PLAIN), **options}
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    if head == CLASSES and model_type in TEACHERS:
        config.architectures = [TEACHERS[model_type]]  # the library knows two classes
    auto = {BASE: transformers.AutoModel, CLASSES: transformers.AutoModelForImageClassification}[head]
    model = auto.from_config(config).eval().float()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim <= 1 or not parameter[0].numel():
                parameter.add_(torch.rand(parameter.shape, generator=random) * 0.5 - 0.1)
            else:
                scale = 1.2 / parameter[0].numel() ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=random) * scale)
        for name, buffer in model.named_buffers():  # batch normalisation's
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=random) * 0.1)
            elif name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=random) + 0.5)
    model.save_pretrained(folder)
    write_processor(folder, PROCESSORS.get(model_type, "ViT"))
    if OPTIONS.get(model_type) is TOWERS:
        write_letter_tokenizer(folder)
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_processor(folder: Path, kind: str, **options: Any) -> None:
    """Write preprocessor_config.json for a class of the library, as the library writes it."""
    import transformers

    sizes = SIZES.get(kind, {"size": {"height": SIZE, "width": SIZE}})
    if kind == FLOATING:
        settings = {"image_processor_type": f"{kind}ImageProcessor", **sizes, **options}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
        return
    getattr(transformers, f"{kind}ImageProcessorPil")(**{**sizes, **options}).save_pretrained(folder)


def library_processor(folder: Path) -> Any:
    """The image processor of `transformers` on Pillow; for one that exists only for torchvision, the nearest."""
    import transformers

    settings = json.loads((folder / "preprocessor_config.json").read_text())
    if settings["image_processor_type"].startswith(FLOATING):
        normal = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
        return transformers.ViTImageProcessorPil(**{**normal, **settings})
    return transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
