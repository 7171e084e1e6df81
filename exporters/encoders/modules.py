"""The torch modules that are traced: an encoder from `transformers` with our head. Imports torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.exporters.encoders import sentence_modules
from intaglio.exporters.encoders.sentence_modules import module_weights
from intaglio.exporters.encoders.sentence_transformers import SentenceHead
from intaglio.runtime.text.tokenizer import POOLING_MASK


class Encoder(nn.Module):
    """A `transformers` model whose inputs are positional and whose outputs are a tuple.

    Inputs: int64 [batch, sequence] each, in the order of `input_names`: the family's, then `pooling_mask`, 0 at the
    tokens of a prompt, if pooling leaves them out. Outputs, in the order of `output_names`: `last_hidden_state` [batch,
    sequence, hidden], `logits`, or `start_logits` and `end_logits` [batch, sequence]; then `pooler_output` [batch,
    hidden] of a model that has it, or `sentence_embedding` float32 [batch, width] of a sentence model; alone
    `token_embeddings` float32 [batch, sequence, width] of one with a vector for each token.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        head: SentenceHead | None,
        causal: bool = False,
        classes_last: bool = False,
    ):
        """`causal`: a decoder; `classes_last`: whose classifier reads the last token of a text.

        The head of a decoder that scores pairs returns the logits of the tokens of its `LogitScoreSettings` only.
        """
        super().__init__()
        self.model = model
        self.model_inputs = inputs
        self.input_names = (*inputs, POOLING_MASK) if head and head.excludes_prompt else inputs
        self.model_outputs = outputs
        self.tokens = head is not None and head.mask is not None
        self.head = (TokenHead if self.tokens else Head)(head) if head and head.embeds else None
        self.scores = head is not None and head.score is not None
        self.options = _decoder_options(model) if causal else {}
        self.classes_last = classes_last
        self.sparse = head is not None and head.task == "embed-sparse"
        self.alone = self.sparse or self.tokens  # the head's output is the only one
        computed = "token_embeddings" if self.tokens else "sentence_embedding"
        self.output_names = (*(() if self.alone else outputs), *([computed] if self.head else []))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the model on its inputs in order."""
        named: Mapping[str, Tensor] = dict(zip(self.input_names, inputs, strict=True))
        mask = named["attention_mask"]
        given: dict[str, Any] = {name: named[name] for name in self.model_inputs} | self.options
        if "position_ids" in given:
            given["position_ids"] = torch.arange(mask.shape[1]).unsqueeze(0)
        if self.classes_last:
            return (self._classes(given),)
        output: Any = self.model(**given)
        if self.scores:
            return (self._score(output.logits, mask),)
        found: list[Tensor] = [output[name] for name in self.model_outputs]
        if self.head is not None:
            found.append(self.head(found[0], mask, named.get(POOLING_MASK)))
        return tuple(found[self.alone :])  # the logits of each token are a vocabulary wide

    def _classes(self, given: dict[str, Any]) -> Tensor:
        """The logits [batch, classes] of the last token that is no padding."""
        model: Any = self.model
        states = model.base_model(**given).last_hidden_state
        tokens = given["attention_mask"]
        if (padding := model.config.get_text_config().pad_token_id) is not None:
            tokens = tokens * (given["input_ids"] != padding)
        logits: Tensor = model.score(_last(states, tokens.unsqueeze(-1).to(states.dtype)))
        return logits

    def _score(self, logits: Tensor, mask: Tensor) -> Tensor:
        """The score [batch, 1] of `logits` [batch, sequence, tokens] at the last token that is no padding."""
        last = _last(logits, mask.unsqueeze(-1).to(logits.dtype))
        return last[:, :1] - last[:, 1:] if last.shape[1] == 2 else last


class AnswerHead(nn.Linear):
    """A linear layer of one or two outputs, the logits of answers, in float32."""

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [batch, sequence, hidden] -> float32 [batch, sequence, answers]."""
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.linear(hidden.float(), self.weight.float(), bias)


def keep_logits(model: Any, tokens: Sequence[int]) -> None:
    """Keep the rows of `tokens` of a decoder's head alone: its logits are then theirs, in this order."""
    whole = model.get_output_embeddings()
    head = AnswerHead(whole.in_features, len(tokens), bias=whole.bias is not None)
    head.load_state_dict({name: tensor[list(tokens)].clone() for name, tensor in whole.state_dict().items()})
    model.set_output_embeddings(head)


def _decoder_options(model: nn.Module) -> dict[str, Any]:
    """The arguments with which a decoder reads a whole text at once."""
    known = inspect.signature(model.forward).parameters
    return {name: value for name, value in (("position_ids", None), ("use_cache", False)) if name in known}


class Head(nn.Module):
    """Sentence embedding from hidden states; computed in float32 for any dtype of the encoder."""

    def __init__(self, head: SentenceHead):
        super().__init__()
        # Named, as modules with numbers for names are taken for the blocks of the encoder.
        stages = {f"stage{number}": STAGES[type(module)](module) for number, module in enumerate(head.modules)}
        self.stages = nn.ModuleDict(stages)
        self.width = head.width

    def forward(self, hidden: Tensor, attention_mask: Tensor, pooling_mask: Tensor | None) -> Tensor:
        """`hidden` [batch, sequence, hidden], masks [batch, sequence] -> float32 [batch, width]."""
        pooling, *later = self.stages.values()
        pooled: Tensor = pooling(hidden, attention_mask, pooling_mask)
        for stage in later:
            pooled = stage(pooled)
        return pooled[:, : self.width] if self.width is not None else pooled


class TokenHead(nn.Module):
    """A vector for each token from hidden states, in float32; which tokens keep theirs is decided by their ids."""

    def __init__(self, head: SentenceHead):
        super().__init__()
        kept = [module for module in head.modules if module is not head.mask]
        self.stages = nn.ModuleDict({f"stage{n}": STAGES[type(module)](module) for n, module in enumerate(kept)})

    def forward(self, hidden: Tensor, attention_mask: Tensor, pooling_mask: Tensor | None) -> Tensor:
        """`hidden` [batch, sequence, hidden] -> float32 [batch, sequence, width]; the masks are not read."""
        vectors = hidden.float()
        for stage in self.stages.values():
            vectors = stage(vectors)
        return vectors


class Pooling(nn.Module):
    """One or more poolings of the hidden states, concatenated."""

    def __init__(self, settings: sentence_modules.PoolingSettings):
        super().__init__()
        self.poolings = settings.poolings

    def forward(self, hidden: Tensor, attention_mask: Tensor, pooling_mask: Tensor | None) -> Tensor:
        """`hidden` [batch, sequence, hidden], masks [batch, sequence] -> float32 [batch, hidden · poolings].

        Without a `pooling_mask`, all tokens are pooled, and the first is at position 0.
        """
        hidden = hidden.float()
        mask = attention_mask.unsqueeze(-1).float()
        if pooling_mask is None:
            return torch.cat([POOL[name](hidden, mask) for name in self.poolings], dim=-1)
        mask = mask * pooling_mask.unsqueeze(-1).float()
        pools = POOL | {"cls": _first}
        return torch.cat([pools[name](hidden, mask) for name in self.poolings], dim=-1)


class Splade(nn.Module):
    """The weight of each token of the vocabulary, 0 for most."""

    def __init__(self, settings: sentence_modules.SpladeSettings):
        super().__init__()
        self.strategy, self.logarithms = settings.strategy, settings.logarithms

    def forward(self, logits: Tensor, attention_mask: Tensor, _: Tensor | None) -> Tensor:
        """`logits` [batch, sequence, vocabulary], mask [batch, sequence] -> float32 [batch, vocabulary]."""
        weights = torch.relu(logits.float() * attention_mask.unsqueeze(-1).float())
        for _each in range(self.logarithms):
            weights = torch.log(1 + weights)
        return weights.max(1).values if self.strategy == "max" else weights.sum(1)


class Dense(nn.Module):
    """A linear layer, an activation, and optionally the sum with its input, in the dtype of its weights."""

    def __init__(self, settings: sentence_modules.DenseSettings):
        super().__init__()
        weights = module_weights(settings.weights)
        outer, inner = weights["linear.weight"].shape
        self.linear = nn.Linear(inner, outer, bias="linear.bias" in weights)
        self.activation = getattr(nn, settings.activation)()
        self.has_residual = settings.residual
        self.residual = nn.Linear(inner, outer, bias=False) if "residual.weight" in weights else nn.Identity()
        self.load_state_dict(weights)

    def forward(self, x: Tensor) -> Tensor:
        """`x` float32 [batch, width] -> float32 [batch, another width]."""
        given = x.to(self.linear.weight.dtype)
        out: Tensor = self.activation(self.linear(given))
        return (out + self.residual(given) if self.has_residual else out).float()


class LayerNorm(nn.Module):
    """Layer normalisation, in float32."""

    def __init__(self, settings: sentence_modules.LayerNormSettings):
        super().__init__()
        weights = module_weights(settings.weights)
        self.norm = nn.LayerNorm(len(weights["norm.weight"]))
        self.load_state_dict(weights)

    def forward(self, x: Tensor) -> Tensor:
        """`x` float32 [batch, width] -> the same."""
        weight, bias = self.norm.weight.float(), self.norm.bias.float()
        return nn.functional.layer_norm(x, self.norm.normalized_shape, weight, bias, self.norm.eps)


class Normalize(nn.Module):
    """Division by the length."""

    def __init__(self, _: sentence_modules.NormalizeSettings):
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """`x` float32 [batch, width] -> the same, of length 1."""
        return nn.functional.normalize(x, dim=-1)


STAGES: dict[type, Any] = {
    sentence_modules.PoolingSettings: Pooling,
    sentence_modules.SpladeSettings: Splade,
    sentence_modules.DenseSettings: Dense,
    sentence_modules.LayerNormSettings: LayerNorm,
    sentence_modules.NormalizeSettings: Normalize,
}


# Each from `hidden` [batch, sequence, hidden] and `mask` [batch, sequence, 1], 1 at tokens to pool, to [batch, hidden].


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def _mean_sqrt_len(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean, weighted by the positions, from 1."""
    return _mean(hidden, mask * _positions(mask))


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(mask == 0, -1e9).max(1).values


def _cls(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden[:, 0]


def _first(hidden: Tensor, mask: Tensor) -> Tensor:
    """The first token to pool: that with the largest 1 / position."""
    return _at((mask / _positions(mask)).argmax(1), hidden)


def _last(hidden: Tensor, mask: Tensor) -> Tensor:
    """The last token to pool: that with the largest position. Of none, zeros."""
    return _at((mask * _positions(mask)).argmax(1), hidden * mask)


def _at(index: Tensor, hidden: Tensor) -> Tensor:
    return hidden.gather(1, index.unsqueeze(-1).expand(-1, 1, hidden.shape[-1])).squeeze(1)


def _positions(mask: Tensor) -> Tensor:
    return torch.arange(1, mask.shape[1] + 1, dtype=torch.float32)[None, :, None]


POOL = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}
