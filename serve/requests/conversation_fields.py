"""Shared by the two conversation APIs: scheduler requests from messages, tools and a format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.chat import ChatPrompt
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.tool_calls.calling import ToolCalling, tool_calling
from intaglio.serve.models.model import DecoderModel
from intaglio.serve.requests.constraints import ResponseFormat, constraints_of, grammar_for, grammar_of_tools
from intaglio.serve.requests.generation_fields import GenerationFields, generation_requests
from intaglio.serve.responses.errors import invalid

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class ConversationFields(GenerationFields, kw_only=True):
    """The fields that both APIs have."""

    metadata: Metadata | None = None  # notes of the client, returned with the answer
    prompt_cache_key: str | None = None  # as `user`: prompts share beginnings without it
    safety_identifier: str | None = None  # as `user`
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the template, such as {"enable_thinking": false}


def conversation_requests(
    fields: ConversationFields,
    model: DecoderModel,
    messages: Sequence[Message],
    response_format: ResponseFormat | None,
    tools: Sequence[Mapping[str, Any]],
    choice: str | Mapping[str, Any] | None,
    max_new_tokens: int | None,
    logprobs: int | None = None,
) -> tuple[list[GenerationRequest], ToolCalling | None]:
    """The requests for `fields.n` answers, and how their tool calls are read; None where the request has no tools.

    `tools`, `choice`: as the chat API has them. Raises `ApiError` for values out of range, and for a model that has no
    chat template.
    """
    _ = model.template  # which a conversation needs
    tokenizer = model.worker.prompts.tokenizer
    grammar = grammar_for(fields, response_format, tokenizer)
    calling = calling_for(model, tools, choice, fields.parallel_tool_calls, grammar is not None)
    if calling is not None and calling.grammar is not None and grammar is None:
        grammar = grammar_of_tools(calling.grammar, tokenizer)
    shown = calling.prompt_tools if calling else ()
    requests = generation_requests(
        fields,
        model,
        [ChatPrompt(messages, shown, fields.chat_template_kwargs or {})],
        max_new_tokens,
        logprobs,
        constraints_of(grammar, fields.end_tokens(model), fields.n),
        calling.keep_special if calling else frozenset(),
    )
    return requests, calling


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
