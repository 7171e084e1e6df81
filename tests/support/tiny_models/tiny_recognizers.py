"""Small random checkpoints of speech recognisers of `transformers` that read the waveform, by their model_type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CLASSES = {
    "data2vec-audio": "Data2VecAudioForCTC",
    "hubert": "HubertForCTC",
    "unispeech": "UniSpeechForCTC",
    "unispeech-sat": "UniSpeechSatForCTC",
    "wav2vec2": "Wav2Vec2ForCTC",
    "wavlm": "WavLMForCTC",
}
TOKENS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIR"]
KERNELS, STRIDES = [10, 3, 3, 3], [5, 4, 4, 2]  # of the front end: a frame lasts 160 samples, and reads 285


def save_recognizer(
    folder: Path, model_type: str, norm: str = "layer", tokens: list[str] = TOKENS, **options: Any
) -> Path:
    """Write a checkpoint with the normalisation `norm` in its front end; `options` are of its configuration."""
    import torch
    import transformers

    torch.manual_seed(0)
    given: dict[str, Any] = {
        "vocab_size": len(tokens),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "conv_dim": [16] * len(KERNELS),
        "conv_kernel": KERNELS,
        "conv_stride": STRIDES,
        "num_feat_extract_layers": len(KERNELS),
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 4,
        "feat_extract_norm": norm,
        "do_stable_layer_norm": norm == "layer",
        "conv_bias": norm == "layer",
        "pad_token_id": 0,
        **options,
    }
    config = transformers.AutoConfig.for_model(model_type, **given)
    model = getattr(transformers, CLASSES[model_type])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms that do something, and outputs that differ
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.lm_head.weight.mul_(4)
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=norm == "layer").save_pretrained(folder)
    return folder
