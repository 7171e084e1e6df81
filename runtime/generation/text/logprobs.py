"""Log-probabilities of the generated tokens under the target model."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from intaglio.runtime.sampling.likelihood import largest
from intaglio.runtime.sessions.device_logits import StepLogits
from intaglio.runtime.strategies.contract import NO_LOGITS, Forward


class TokenLogprobs(msgspec.Struct, frozen=True):
    """A generated token and its alternatives, with natural logarithms of their probabilities.

    They are the log-softmax of the target model's logits in float32, at a temperature of 1, before penalties, bias and
    constraint (as OpenAI's API defines them).
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]  # the most probable tokens, in descending order; `token` may be among them
    text_offset: int  # characters of the text before the token's; a stop string can end the text before them


class LogprobRecorder:
    """Keeps the logits of the last pass, and returns those that predicted a token.

    A strategy writes tokens after a pass of the target model, and all of them before it requests the next pass.
    """

    def __init__(self, top: int):
        """`top`: number of alternatives to record for each token."""
        self._top = top
        self._logits: StepLogits = NO_LOGITS
        self._row = 0  # of the logits that predict the next token
        self._tree: Sequence[int] = ()
        self._parents: Sequence[int] = ()

    def answered(self, forward: Forward, logits: StepLogits, tokens: Sequence[int]) -> None:
        """Take the logits [wanted, vocab] that answer `forward`; `tokens` is the sequence before they are used."""
        self._logits, self._tree, self._parents = logits, forward.tree, forward.parents
        ahead = len(tokens) - len(forward.sequence)
        if forward.tree:
            self._row = -1
            for token in tokens[len(forward.sequence) :]:
                self._advance(token)
        else:
            self._row = forward.wanted - 1 + ahead

    def record(self, token: int, text_offset: int) -> TokenLogprobs:
        """Return the log-probabilities of the next token of the sequence."""
        logits = np.asarray(self._logits[self._row], np.float32)
        self._advance(token)
        highest = logits.max()
        total = highest + np.log(np.exp(logits - highest).sum())
        top = largest(logits, self._top).tolist() if self._top else []
        return TokenLogprobs(
            token,
            float(logits[token] - total),
            [(each, float(logits[each] - total)) for each in top],
            text_offset,
        )

    def _advance(self, token: int) -> None:
        """Move to the logits after `token`; past the last token of a path there are none until the next pass."""
        if not self._tree:
            self._row += 1
            return
        children = (place for place, parent in enumerate(self._parents) if parent == self._row)
        self._row = next((place for place in children if self._tree[place] == token), len(self._tree))
