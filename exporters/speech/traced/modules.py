"""The torch module of a speech recogniser that is traced: a CTC model of `transformers` from samples. Imports torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from intaglio.runtime.speech.recognizer import AUDIO, LENGTHS, LOG_PROBS, OUTPUT_LENGTHS

EPSILON = 1e-7  # added to the variance of a waveform by Wav2Vec2FeatureExtractor


class Recognizer(nn.Module):
    """A CTC model of `transformers` with the inputs and outputs of our recognisers.

    Inputs: `audio` float32 [batch, samples] and `lengths` int64 [batch]. Outputs: `log_probs` float32 [batch, frames,
    vocabulary] and `output_lengths` int64 [batch]. What lies beyond a row's length never changes the row's outputs,
    also where the model of `transformers` itself reads it.
    """

    input_names = (AUDIO, LENGTHS)
    output_names = (LOG_PROBS, OUTPUT_LENGTHS)

    def __init__(self, model: Any, normalizes: bool):
        """`normalizes`: a waveform gets the mean 0 and the variance 1 first. `model` is changed."""
        super().__init__()
        self.model = model
        self._normalizes = normalizes
        self._held: tuple[Any] = (getattr(model, model.base_model_prefix),)  # no module, or each would have two paths
        convolutions = [each for each in self._base.feature_extractor.modules() if isinstance(each, nn.Conv1d)]
        self._strides = [(each.kernel_size[0], each.stride[0]) for each in convolutions]
        self.shortest = 1  # samples of one frame
        for kernel, stride in reversed(self._strides):
            self.shortest = (self.shortest - 1) * stride + kernel
        for module in list(model.modules()):
            if parametrize.is_parametrized(module):  # a weight as a direction and a length
                parametrize.remove_parametrizations(module, "weight")
                weight = module.weight.detach()
                del module.weight
                module.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the model on its inputs in order."""
        audio, lengths = inputs
        samples = _before(lengths, audio.shape[1])
        x = _centred(audio, samples, EPSILON) if self._normalizes else audio * samples
        counts = [lengths]  # of each row, after each convolution of the front end
        for kernel, stride in self._strides:
            counts.append((counts[-1] - kernel + stride).clamp(min=0) // stride)
        with self._masked(counts):
            logits = self.model(x.to(self.model.lm_head.weight.dtype), attention_mask=samples.long()).logits
        return nn.functional.log_softmax(logits.float(), dim=-1), counts[-1]

    @property
    def _base(self) -> Any:
        """The model without its head."""
        return self._held[0]

    @contextmanager
    def _masked(self, counts: list[Tensor]) -> Iterator[None]:
        """Let the model read the first `counts` frames of each row alone.

        The attention of `transformers` does so, but a normalisation over time and the convolutions of the encoder read
        what lies beyond.
        """
        handles = []
        for path, module in self._base.named_modules():
            first = path.startswith("feature_extractor.")
            if first and isinstance(module, nn.GroupNorm):
                handles.append(module.register_forward_hook(partial(_group_norm, count=counts[1])))
            elif not first and isinstance(module, nn.Conv1d) and module.kernel_size[0] > 1:
                handles.append(module.register_forward_pre_hook(partial(_zeroed, count=counts[-1])))
        self._base._get_feature_vector_attention_mask = lambda size, *_, **__: _before(counts[-1], size)
        try:
            with _Filling(), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch's, of WavLM's two masks
                yield
        finally:
            del self._base._get_feature_vector_attention_mask
            for handle in handles:
                handle.remove()


class _Filling(TorchFunctionMode):
    """Lets an assignment by a mask (`states[~mask] = 0`) be a selection in the graph, and not a search for indices."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is Tensor.__setitem__ and isinstance(args[1], Tensor) and args[1].dtype == torch.bool:
            return args[0].masked_fill_(args[1], args[2])
        return function(*args, **(kwargs or {}))


def _before(lengths: Tensor, size: Any) -> Tensor:
    """Whether each of `size` positions is before a row's end, bool [batch, size]."""
    return torch.arange(size) < lengths[:, None]


def _centred(x: Tensor, keep: Tensor, epsilon: float) -> Tensor:
    """`x` [..., time] with mean 0 and variance 1 over the time that it `keep`s, and 0 elsewhere, float32.

    Means, as sums over the samples of a recording would leave the range of float16 in a compressed bundle.
    """
    share = keep.float().mean(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    centred = (x - (x * keep).mean(-1, keepdim=True) / share) * keep
    variance = centred.square().mean(-1, keepdim=True) / share
    return centred / (variance + epsilon).sqrt()


def _group_norm(module: Any, inputs: tuple[Tensor], output: Tensor, count: Tensor) -> Tensor:
    """The normalisation of each channel [batch, channels, frames] over the first `count` frames [batch]."""
    (x,) = inputs
    normed = _centred(x.float(), _before(count, x.shape[-1])[:, None], module.eps).to(x.dtype)
    scaled: Tensor = normed * module.weight[:, None] + module.bias[:, None]
    return scaled


def _zeroed(module: nn.Module, inputs: tuple[Tensor], count: Tensor) -> Tensor:
    (x,) = inputs
    return x * _before(count, x.shape[-1])[:, None]
