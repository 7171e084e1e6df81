"""The prompts of an embedding model: texts that are put before those to embed."""

from __future__ import annotations

from intaglio.bundle.manifest import Manifest, Prompt
from intaglio.errors import UsageError
from intaglio.runtime.text.tokenizer import NO_PROMPT

QUERY = "query"  # the prompt that a model with a vector for each token puts before queries


def find_prompt(manifest: Manifest, name: str | None, option: str = "--prompt-name") -> Prompt:
    """The prompt of this name; None: the model's default, which may be none. Raises `UsageError`.

    `option`: the option that named it, for the message.
    """
    chosen = manifest.default_prompt if name is None else name
    if chosen is None:
        return NO_PROMPT
    if chosen in manifest.prompts:
        return manifest.prompts[chosen]
    if not manifest.prompts:
        raise UsageError(f"{option} {chosen[:60]!r}: the model has no prompts. Leave {option} out.")
    raise UsageError(f"{option} {chosen[:60]!r}: expected one of the model's prompts: {', '.join(manifest.prompts)}.")
