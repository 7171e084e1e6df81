"""A small encoder, trained within a minute to predict masked letters of Python's manual."""

from __future__ import annotations

from pathlib import Path
from pydoc_data import topics

import numpy as np
from tiny_encoders import encoder_config, write_letter_tokenizer

MASK, UNMASKED = 4, -100
LENGTH, BATCH, RATE = 96, 8, 3e-3
SIZES = {"hidden_size": 96, "intermediate_size": 144, "num_hidden_layers": 4, "local_attention": 32}


def paragraphs(training: bool) -> list[str]:
    """Nine tenths of the paragraphs to train on, or the last tenth, up to 200 characters of each."""
    blocks = [" ".join(block.split()) for text in topics.topics.values() for block in text.split("\n\n")]
    chosen = [block[:200] for block in blocks if 60 < len(block) < 600]
    first = len(chosen) * 9 // 10
    return chosen[:first] if training else chosen[first:]


def save_trained_modernbert(folder: Path, steps: int = 800) -> Path:
    """Write a ModernBERT of 4 layers with its head into `folder`, and return it; on one thread."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder.mkdir()
    write_letter_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    letters = np.concatenate([tokenizer.encode(text).ids for text in paragraphs(training=True)])
    model = transformers.ModernBertForMaskedLM(encoder_config("modernbert", max_position_embeddings=256, **SIZES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    random = np.random.default_rng(0)
    for _ in range(steps):
        starts = random.integers(0, len(letters) - LENGTH, BATCH)
        ids = torch.from_numpy(np.stack([letters[start : start + LENGTH] for start in starts]))
        hidden = torch.rand(ids.shape) < 0.2
        found = model(
            input_ids=ids.masked_fill(hidden, MASK),
            attention_mask=torch.ones_like(ids),
            labels=ids.masked_fill(~hidden, UNMASKED),
        )
        optimizer.zero_grad()
        found.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    torch.set_num_threads(threads)
    model.eval().save_pretrained(folder)
    return folder
