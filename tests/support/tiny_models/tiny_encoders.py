"""Small random checkpoints of the encoders of `transformers`, by their model_type, with a tokenizer of letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_families import make_config

from intaglio.exporters.encoders.traced import ALONE

LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *"0123456789.,;:()'-"]
VOCABULARY = 98  # one more letter or the continuation of a word each, and a few that are not used
BASE, MASKED, CLASSES = "Model", "ForMaskedLM", "ForSequenceClassification"
TAGS, ANSWERS, NEXT = "ForTokenClassification", "ForQuestionAnswering", "ForNextSentencePrediction"
POSITIONS = 96
WINDOW = 8
GAIN = {
    "mobilebert": 0.3,
    "convbert": 0.6,
    "mt5": 0.6,
    "umt5": 0.6,
}  # of a matrix; at that of others these amplify rounding
# What a type needs beside the sizes of all.
OPTIONS: dict[str, dict[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},
    "esmc": {"num_key_value_heads": 4},
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 8,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "position_biased_input": False,
        "type_vocab_size": 0,
        "conv_kernel_size": 3,
    },
    "esm": {"mask_token_id": 4, "token_dropout": True, "position_embedding_type": "rotary"},
    "mobilebert": {"true_hidden_size": 16, "intra_bottleneck_size": 16, "embedding_size": 16},
    "modernbert": {"local_attention": WINDOW, "num_hidden_layers": 4, "cls_token_id": 2, "sep_token_id": 3},
    "mpnet": {"pad_token_id": 1},  # its positions count from there in any case
    "squeezebert": {"embedding_size": 32},
    "xmod": {"languages": ["en_XX", "de_DE"], "default_language": "de_DE"},
}


def encoder_config(model_type: str, **options: Any) -> Any:
    """A small configuration of an encoder."""
    sizes = {"pad_token_id": 0, "vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "is_decoder": False}
    sizes |= {"eos_token_id": 3}
    return make_config(model_type, **{**sizes, **OPTIONS.get(model_type, {}), **options})


def save_encoder(folder: Path, model_type: str, head: str = BASE, **options: Any) -> Path:
    """Write a checkpoint of `model_type` with a head into `folder`, with weights large enough, and return it."""
    import torch
    import transformers

    torch.manual_seed(0)
    auto = {
        BASE: transformers.AutoModel,
        MASKED: transformers.AutoModelForMaskedLM,
        CLASSES: transformers.AutoModelForSequenceClassification,
        TAGS: transformers.AutoModelForTokenClassification,
        ANSWERS: transformers.AutoModelForQuestionAnswering,
        NEXT: transformers.AutoModelForNextSentencePrediction,
    }[head]
    config = encoder_config(model_type, **options)
    alone = ALONE.get(model_type) if head == BASE else None
    model = getattr(transformers, alone)(config) if alone else auto.from_config(config)
    model = model.eval().float()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim <= 1 or "norm" in name.lower():
                parameter.add_(torch.rand(parameter.shape, generator=random) * 0.5 - 0.1)
            else:
                scale = 0.5 if "embeddings" in name else GAIN.get(model_type, 1.2) / parameter[0].numel() ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=random) * scale)
    model.save_pretrained(folder)
    write_letter_tokenizer(folder)
    return folder


def write_letter_tokenizer(folder: Path) -> None:
    """A tokenizer of single characters with BERT's special tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(_pieces())}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))


def _pieces() -> list[str]:
    return [*LETTERS, *(f"##{letter}" for letter in LETTERS[5:])]
