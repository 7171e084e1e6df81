"""CALM with state propagation, token by token: the reference for graphs that stop computing saturated tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NEVER = 2.0


class Read(NamedTuple):
    """The result for a token."""

    logits: Any  # float32 [vocab]
    blocks: int  # blocks that computed it


class CalmReference:
    """A small GPT-2 or LLaMA that processes one token at a time; `keys` and `values` hold all tokens of each block."""

    def __init__(self, checkpoint: Path):
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.rotary = self.model.config.model_type != "gpt2"
        self.layers = self.model.model.layers if self.rotary else self.model.transformer.h
        self.forget()

    def forget(self) -> None:
        """Begin a new sequence."""
        self.keys: list[list[Any]] = [[] for _ in self.layers]
        self.values: list[list[Any]] = [[] for _ in self.layers]

    def read(self, token: int, threshold: float) -> Read:
        """Process the next token; it exits if the cosine of its states around a block exceeds `threshold`."""
        torch = self.torch
        with torch.inference_mode():
            place = torch.tensor([len(self.keys[0])])
            if self.rotary:
                state = self.model.model.embed_tokens.weight[token]
            else:
                state = (self.model.transformer.wte.weight[token] + self.model.transformer.wpe(place))[0]
            blocks, exited = 0, False
            for index, layer in enumerate(self.layers):
                queries = (self._llama if self.rotary else self._gpt2)(index, layer, state, place)
                if not exited:
                    before, blocks = state, blocks + 1
                    attended = self._attend(index, queries)
                    if self.rotary:
                        state = state + layer.self_attn.o_proj(attended)
                        state = state + layer.mlp(layer.post_attention_layernorm(state))
                    else:
                        state = state + layer.attn.c_proj(attended[None])[0]
                        state = state + layer.mlp(layer.ln_2(state)[None])[0]
                    cosine = float(before @ state / (before.norm() * state.norm()))
                    exited = cosine > np.float32(threshold)
            norm = self.model.model.norm if self.rotary else self.model.transformer.ln_f
            return Read(self.model.lm_head(norm(state)).numpy(), blocks)

    def _gpt2(self, index: int, layer: Any, state: Any, place: Any) -> Any:
        """The queries [heads, head_dim]; keys and values are appended to the cache."""
        heads = layer.attn.num_heads
        queries, keys, values = layer.attn.c_attn(layer.ln_1(state)[None])[0].reshape(3, heads, -1)
        self.keys[index].append(keys)
        self.values[index].append(values)
        return queries

    def _llama(self, index: int, layer: Any, state: Any, place: Any) -> Any:
        x, attention = layer.input_layernorm(state), layer.self_attn
        queries, keys, values = (
            each(x).reshape(-1, attention.head_dim) for each in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        cosines, sines = (each[0, 0] for each in self.model.model.rotary_emb(state[None, None], place[None]))
        queries, keys = (
            each * cosines + self.torch.cat([-each.chunk(2, -1)[1], each.chunk(2, -1)[0]], -1) * sines
            for each in (queries, keys)
        )
        self.keys[index].append(keys)
        self.values[index].append(values)
        return queries

    def _attend(self, index: int, queries: Any) -> Any:
        """Attention to all tokens so far, with concatenated heads."""
        keys, values = (self.torch.stack(each[index], 1) for each in (self.keys, self.values))  # [kv_heads, tokens, d]
        groups = len(queries) // len(keys)
        keys, values = (each.repeat_interleave(groups, 0) for each in (keys, values))
        scores = (keys @ queries[:, :, None])[:, :, 0] / math.sqrt(queries.shape[-1])
        return (scores.softmax(-1)[:, None] @ values)[:, 0].flatten()

    def write(self, prompt: list[int], most: int, saturation: float, decay: float) -> list[tuple[int, int]]:
        """The greedy continuation of `prompt`: tokens, and the number of blocks that computed each."""
        self.forget()
        for token in prompt[:-1]:
            self.read(token, NEVER)
        token, threshold, written = prompt[-1], NEVER, []
        for number in range(1, most + 1):
            found = self.read(token, threshold)
            token = int(found.logits.argmax())
            written.append((token, found.blocks))
            threshold = min(1.0, max(0.0, 0.9 * saturation + 0.1 * math.exp(-decay * number / most)))
        return written
