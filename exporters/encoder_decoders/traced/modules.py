"""The two parts of an encoder-decoder of `transformers`, with the inputs and outputs of our graphs. Imports torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from intaglio.bundle.bundle import TensorSpec
from intaglio.exporters.decoders.caches import ShapeCache, Shapes, StepCache
from intaglio.exporters.decoders.operators import rows_at
from intaglio.exporters.decoders.step import EncoderPass, Step, running
from intaglio.exporters.decoders.traceable_decoder import DecoderModule
from intaglio.networks.blocks import after
from intaglio.runtime.sessions.step import ALIGNMENT, BATCH, CROSS, LOGITS, SOURCE, SOURCE_IDS, SOURCE_MASK, cache_names

Heads = Sequence[tuple[int, int]]  # layer and head

FEATURES = "features"  # the input of an encoder that reads a recording


class CrossAttentionModule(DecoderModule):
    """The decoder; the keys and values of the source are inputs of a step."""

    sources: tuple[TensorSpec, ...] = (SOURCE_IDS, SOURCE_MASK)  # inputs of the encoder

    def cache_shapes(self) -> Shapes:
        """See `DecoderModule`; afterwards `inputs` are known, too."""
        cache = ShapeCache()
        with torch.no_grad():
            crossed = self.encode(*self._example(), cache=cache)
        specs = [
            TensorSpec(CROSS + name, str(tensor.dtype).removeprefix("torch."), (BATCH, heads, SOURCE, width))
            for name, tensor in zip(cache_names(len(crossed) // 2), crossed, strict=True)
            for _, heads, _, width in [map(int, tensor.shape)]
        ]
        masks = [spec for spec in self.sources if spec == SOURCE_MASK]
        self.inputs = (*masks, *specs)  # these depend on the model
        return cache.shapes

    def encode(self, *source: Tensor, cache: Any = None) -> list[Tensor]:
        """The keys and values [batch, heads, source, head_dim] of a source, the inputs `sources`, for each layer.

        The decoder computes them from the encoder's last states in a first step. What else that step computes is noted
        by `cache`, and is no part of a traced graph.
        """
        states, first, mask = self._states(*source)
        step = Step(first[..., None] == 0, first, first[:, 0], mask)
        crossed = _CrossCache()
        both = _BothCaches(ShapeCache() if cache is None else cache, crossed, step)
        with running(step, both):
            self._run(first, step, both, states)
        return crossed.tensors()

    def _example(self) -> tuple[Tensor, ...]:
        """Sources of two rows."""
        return torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)

    def _states(self, *source: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The encoder's last states, a token 0 of each row [batch, 1], and which states are none of padding."""
        source_ids, source_mask = source
        reading, encoder = EncoderPass(source_mask), self._network.get_encoder()
        given = {}
        if "position_ids" in _parameters(encoder):  # of every row, as the operator for rotary embeddings wants them
            given["position_ids"] = torch.arange(source_ids.shape[1]) + source_ids * 0
        with running(reading, reading):
            states = encoder(input_ids=source_ids, attention_mask=source_mask.long(), **given)[0]
        return states, source_ids[:, :1] * 0, source_mask

    def compute(
        self, input_ids: Tensor, step: Step, logit_indices: Tensor, cache: StepCache, *further: Tensor
    ) -> tuple[Tensor, ...]:
        """See `DecoderModule`."""
        tensors = further[-2 * len(self.cached) :]
        if len(further) > len(tensors):
            step = step.with_source(further[0])
        both = _BothCaches(cache, _CrossCache(tensors), step)
        return (self._logits(input_ids, step, both, lambda states: rows_at(states, logit_indices)),)

    def _decode(self, input_ids: Tensor, step: Step, cache: _BothCaches) -> Tensor:
        keys = cache.cross_attention_cache.tensors()[0]
        return self._run(input_ids, step, cache, keys[:, 0, :, :1])  # of states, only the length is read

    def _run(self, input_ids: Tensor, step: Step, cache: _BothCaches, states: Tensor) -> Tensor:
        """The logits of a step; `states` [batch, source, width] are the encoder's."""
        with _given_positions(self._network, step.positions):
            takes = "decoder_position_ids" in _parameters(self._network)
            given = {"decoder_position_ids": step.positions} if takes else {}
            logits: Tensor = self._network(
                **given,
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                decoder_input_ids=input_ids,
                decoder_attention_mask=torch.ones_like(input_ids),  # the masks are those of the step
                past_key_values=cache,
                use_cache=True,
            ).logits
        return logits


class FeaturesModule(CrossAttentionModule):
    """The same for an encoder that reads the features of a recording, of one length and without padding."""

    def __init__(self, model: Any, bands: int, frames: int, alignment_heads: Heads = ()):
        """`frames` of features in `bands`. The graph also returns the weights of `alignment_heads`, in order."""
        super().__init__(model)
        self.sources = (TensorSpec(FEATURES, "float32", (BATCH, bands, frames)),)
        self._heads = alignment_heads
        if alignment_heads:
            self.outputs = (LOGITS, ALIGNMENT)

    def compute(
        self, input_ids: Tensor, step: Step, logit_indices: Tensor, cache: StepCache, *further: Tensor
    ) -> tuple[Tensor, ...]:
        """See `DecoderModule`."""
        if not self._heads:
            return super().compute(input_ids, step, logit_indices, cache, *further)
        layers = {layer: self._network.get_decoder().layers[layer].encoder_attn for layer, _ in self._heads}
        queries = dict[int, Tensor]()  # by layer, [batch, tokens, width]
        with ExitStack() as stack:
            for layer, module in layers.items():
                stack.enter_context(after(module.q_proj, _keeping(queries, layer)))
            found = super().compute(input_ids, step, logit_indices, cache, *further)
        keys = further[-2 * len(self.cached) :: 2]
        weights = [
            _attended(queries[layer], keys[layer][:, head], head, layers[layer].scaling) for layer, head in self._heads
        ]
        return (*found, torch.stack(weights, 1))

    def _example(self) -> tuple[Tensor, ...]:
        (spec,) = self.sources
        return (torch.zeros(2, *spec.shape[1:]),)  # type: ignore[arg-type]  # both axes have lengths

    def _states(self, *source: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        (features,) = source
        reading = EncoderPass(features[:, 0, :1] == 0)  # whose masks no such encoder asks for
        encoder = self._network.get_encoder()
        with running(reading, reading):
            states = encoder(features.to(next(encoder.parameters()).dtype))[0]
        return states, features[:, 0, :1].long() * 0, None


def _keeping(queries: dict[int, Tensor], layer: int) -> Callable[[Tensor, Tensor], Tensor]:
    def keep(_: Tensor, found: Tensor) -> Tensor:
        queries[layer] = found
        return found

    return keep


def _attended(queries: Tensor, keys: Tensor, head: int, scale: float) -> Tensor:
    """The weights float32 [batch, tokens, source] of `queries` [batch, tokens, width] to `keys` of one head."""
    width = keys.shape[-1]
    own = queries[..., head * width : (head + 1) * width] * scale
    return (own.float() @ keys.transpose(1, 2).float()).softmax(-1)


class EncoderModule(nn.Module):
    """The encoder, with the part of the decoder that depends on its states alone."""

    def __init__(self, decoder: CrossAttentionModule):
        super().__init__()
        for name, child in decoder.named_children():
            self.add_module(name, child)
        self._held: tuple[CrossAttentionModule] = (decoder,)  # not a module of this one, or each would have two paths

    def forward(self, *source: Tensor) -> tuple[Tensor, ...]:
        """Return the keys and values of each layer in turn."""
        return tuple(self._held[0].encode(*source))


class _Layer(NamedTuple):
    keys: Tensor
    values: Tensor


class _CrossCache:
    """The keys and values of a source, in the order of the decoder's layers."""

    def __init__(self, tensors: Sequence[Tensor] = ()):
        """`tensors`: keys and values in turn; none, if they are to be computed."""
        self.layers = dict(enumerate(map(_Layer, tensors[::2], tensors[1::2])))

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> _Layer:
        """Keep the keys and values of a layer."""
        self.layers[layer_idx] = _Layer(key_states, value_states)
        return self.layers[layer_idx]

    def tensors(self) -> list[Tensor]:
        """Keys and values of the layers in turn."""
        return [tensor for _, layer in sorted(self.layers.items()) for tensor in layer]


class _BothCaches(EncoderDecoderCache):  # type: ignore[misc]
    """The caches of a step. A model adds their length to the numbers of the step's tokens to get positions."""

    def __init__(self, cache: Any, crossed: _CrossCache, step: Step):
        self.self_attention_cache, self.cross_attention_cache = cache, crossed
        self.is_updated = dict.fromkeys(crossed.layers, True)
        self._before = step.positions - torch.arange(step.positions.shape[1])

    def get_seq_length(self, layer_idx: int = 0) -> Tensor:
        """Return [batch, tokens]: in a branch of drafts, they differ."""
        return self._before

    def holds(self, *tensors: Tensor) -> bool:
        """Whether all of these are buffers themselves."""
        crossed = [id(each) for each in self.cross_attention_cache.tensors()]
        return self.self_attention_cache.holds(*tensors) or all(id(each) in crossed for each in tensors)


@contextmanager
def _given_positions(model: Any, positions: Tensor) -> Iterator[None]:
    """Let the embeddings of positions in the decoder of `model` take these [batch, tokens].

    Those of `transformers` take one row, for all sequences.
    """
    found = position_embeddings(model.get_decoder())
    for each in found:
        each.forward = _embedding(each, positions)
    try:
        yield
    finally:
        for each in found:
            del each.forward


LENGTH = "past_key_values_length"  # the argument of an embedding of positions that counts the tokens of the cache


def position_embeddings(model: nn.Module) -> list[Any]:
    """The modules that embed positions."""
    return [each for each in model.modules() if LENGTH in _parameters(each)]


def _parameters(module: Any) -> Mapping[str, Any]:
    """The parameters of a module's `forward`."""
    return inspect.signature(type(module).forward).parameters


def _embedding(module: Any, positions: Tensor) -> Callable[..., Tensor]:
    """The embeddings [batch, tokens, width] of `positions` by `module`, in place of those of the arguments."""
    forward = module.forward
    if "position_ids" not in _parameters(module):  # a table of sines, from the padding's id on
        return lambda *args, **options: module.weights[positions + module.padding_idx + 1]

    def embed(*args: Any, **options: Any) -> Tensor:
        rows: Tensor = forward(*args, **{**options, "position_ids": positions.flatten()})
        return rows.reshape(*positions.shape, -1)

    return embed
