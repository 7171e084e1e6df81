"""Small random Whispers, whose windows are two seconds, with a tokenizer of single bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LANGUAGES = ("en", "fr", "de")
SPECIAL = [
    "<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES), "<|translate|>",
    "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
]  # fmt: skip
TOKEN = {name.strip("<|>"): 256 + index for index, name in enumerate(SPECIAL)}
SECONDS = 2  # of a window
FIRST_TIME = TOKEN["notimestamps"] + 1
VOCABULARY = FIRST_TIME + 50 * SECONDS + 1
SUPPRESSED = [33, 34, TOKEN["translate"], TOKEN["transcribe"], TOKEN["startofprev"], TOKEN["startoflm"]]
FACTORS = {"decoder.embed_positions": 60, "encoder.embed_positions": 3, "embed_tokens": 30, "": 6}
SETTINGS: dict[str, Any] = {
    "is_multilingual": True,
    "lang_to_id": {f"<|{code}|>": TOKEN[code] for code in LANGUAGES},
    "task_to_id": {task: TOKEN[task] for task in ("translate", "transcribe")},
    "no_timestamps_token_id": TOKEN["notimestamps"],
    "decoder_start_token_id": TOKEN["startoftranscript"],
    "suppress_tokens": SUPPRESSED,
    "begin_suppress_tokens": [220, TOKEN["endoftext"]],
    "max_initial_timestamp_index": 30,
    "prev_sot_token_id": TOKEN["startofprev"],
    "return_timestamps": False,
    "max_length": 48,
    "alignment_heads": [[0, 1], [0, 2], [0, 3]],
}


def save_whisper(folder: Path, seed: int = 0, decoder_layers: int = 1, **settings: Any) -> Path:
    """Write a checkpoint into `folder`, with weights large enough for varied text, and return it.

    `settings`: of generation_config.json; None leaves one out.
    """
    import torch
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=80,
        d_model=32,
        encoder_layers=2,
        decoder_layers=decoder_layers,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=50 * SECONDS,
        max_target_positions=48,
        decoder_start_token_id=TOKEN["startoftranscript"],
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), TOKEN["endoftext"]),
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim > 1:  # large, or all texts are one token again and again
                parameter.mul_(next(factor for name, factor in FACTORS.items() if name in path))
            else:
                parameter.add_(torch.randn_like(parameter) / 4)
    chosen = {name: value for name, value in {**SETTINGS, **settings}.items() if value is not None}
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=TOKEN["endoftext"], bos_token_id=TOKEN["endoftext"], eos_token_id=TOKEN["endoftext"], **chosen
    )
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(chunk_length=SECONDS).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer of single bytes into `folder`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    times = [AddedToken(f"<|{number / 50:.2f}|>", special=False) for number in range(50 * SECONDS + 1)]
    tokenizer.add_tokens(times)
    assert tokenizer.get_vocab_size() == VOCABULARY and tokenizer.token_to_id("<|0.00|>") == FIRST_TIME
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
