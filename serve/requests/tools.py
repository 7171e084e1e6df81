"""The tools of a request, for the prompt, the grammar and the parser of the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.errors import UsageError
from intaglio.runtime.generation.tool_calls.calling import ToolCalling, tool_calling
from intaglio.serve.models.model import DecoderModel
from intaglio.serve.responses.errors import invalid


def calling_for(
    model: DecoderModel,
    tools: Sequence[Mapping[str, Any]],
    choice: str | Mapping[str, Any] | None,
    parallel: bool,
    constrained: bool,
) -> ToolCalling | None:
    """Prepare the tools of a request; None if it has none. `constrained`: whether another grammar constrains its text.

    Raises `ApiError` for invalid tools, and for a model whose chat template does not support tools.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice: there are no tools. Add tools, or leave it out.", "tool_choice")
        return None
    template = model.template
    if not template.knows_tools:
        raise invalid(
            f"tools: the chat template of model {model.name!r} does not support tools. Leave them out.", "tools"
        )
    try:
        calling = tool_calling(
            template.tool_source,
            model.worker.prompts.tokenizer,
            tools,
            choice or "auto",  # type: ignore[arg-type]
            parallel,
        )
    except UsageError as error:
        raise invalid(str(error), "tool_choice" if str(error).startswith("tool choice") else "tools") from error
    if constrained and calling.choice.mode != "none":
        both = "tools: the text has another format, too. Set tool_choice to none, or leave one of them out."
        raise invalid(both, "tools")
    return calling
