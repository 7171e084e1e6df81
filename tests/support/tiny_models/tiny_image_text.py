"""Small random checkpoints of decoders that read images, with their image processor and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_decoders import END, write_byte_tokenizer

SIDE = 32  # of a frame
TOKENS = 4  # of a frame
IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
SPECIAL = [IMAGE, AROUND, WHOLE, "<end_of_utterance>", *(f"<row_{row}_col_{col}>" for row in (1, 2) for col in (1, 2))]
NAMES = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}
TEXT = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": END,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": 8,
}
# As that of SmolVLM: it writes parts of messages, and nothing of a content that is a text.
CHAT = (
    "{% for message in messages %}{{ message.role }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def save_image_text(
    folder: Path, model_type: str = "smolvlm", processor: dict[str, Any] | None = None, **options: Any
) -> Path:
    """Write a checkpoint of `model_type` into `folder`, with weights large enough for varied text, and return it.

    `processor`: settings of the image processor; `options`: of config.json.
    """
    import torch
    import transformers

    name = NAMES[model_type]
    settings = {"text_config": {"model_type": "llama", **TEXT}, "vision_config": VISION, "image_token_id": END + 1}
    config = getattr(transformers, f"{name}Config")(**{**settings, "scale_factor": 2, **options})
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
            else:
                parameter.add_(torch.rand(parameter.shape) * 0.5 - 0.1)
    model.save_pretrained(folder)
    sizes = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    getattr(transformers, f"{name}ImageProcessorPil")(**{**sizes, **(processor or {})}).save_pretrained(folder)
    write_byte_tokenizer(folder, CHAT)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **json.loads(path.read_text())}))
    return folder


def library_processor(folder: Path) -> Any:
    """The processor of `transformers`, on Pillow.

    It is that of Idefics3 for both: SmolVLM's, which writes the same, needs libraries for videos.
    """
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    return transformers.Idefics3Processor(images, tokenizer, image_seq_len=TOKENS, chat_template=CHAT)
