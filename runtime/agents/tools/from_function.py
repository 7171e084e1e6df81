"""The decorator `tool`: a `Tool` from the type hints and the docstring of a Python function."""

from __future__ import annotations

import copy
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, overload

import msgspec

from intaglio.errors import UsageError, one_line
from intaglio.files.json_decoder import json_decoder
from intaglio.runtime.agents.tools.tool import Tool

# An entry of a docstring's section `Args`: "name: text", "name (type): text".
ENTRY = re.compile(r"\s*\*{0,2}(\w+)(?: \([^)]*\))?: *(.*)")
HEADING = re.compile(r"(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes|Warnings?):")


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    timeout: float | None = None,
    limit: int | None = None,
    attempts: int = 1,
    shown: int | None = None,
    refuses: Callable[[str], str | None] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    limit: int | None = None,
    attempts: int = 1,
    shown: int | None = None,
    refuses: Callable[[str], str | None] | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a `Tool` of a function, sync or async: as `@tool`, or as `@tool(name="...", timeout=10)`.

    The description is the docstring without its sections, the schema comes from the type hints (all that msgspec reads:
    dataclasses, TypedDict, Enum, Literal, unions, `Annotated[int, msgspec.Meta(ge=1)]`), and the descriptions of the
    parameters from the section `Args` or from lines `name: text`. The function gets its arguments converted to these
    types. See `Tool` for the options.

    Raises `UsageError` for parameters that a model cannot give: *args, **kwargs, positional-only, without a type hint,
    or of a type or with a default that has no JSON; and as `Tool` does.
    """

    def decorate(function: Callable[..., Any]) -> Tool:
        title = name or str(getattr(function, "__name__", type(function).__name__))
        description, about = _documentation(function)
        arguments = _arguments(function, title, about)
        schema, converting = _schema(arguments, title), _converting(function, arguments)
        return Tool(title, description, schema, converting, timeout, limit, attempts, shown, refuses)

    return decorate if function is None else decorate(function)


def _arguments(function: Callable[..., Any], title: str, about: Mapping[str, str]) -> type[msgspec.Struct]:
    """Return a struct with a field for each parameter of `function`."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # of evaluating annotations, which may do anything
        raise UsageError(f"tool {title!r}: its type hints cannot be read: {one_line(error, 200)}.") from error
    fields = []
    for parameter in inspect.signature(function).parameters.values():
        place = f"tool {title!r}, parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"{place}: * and ** have no schema. Name each parameter.")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(
                f"{place}: positional-only, expected one that can be a keyword. Remove the slash after it."
            )
        if parameter.name not in hints:
            raise UsageError(f"{place}: no type hint. Add one, such as {parameter.name}: str.")
        hint = _described(hints[parameter.name], about.get(parameter.name))
        try:
            fields.append((parameter.name, hint, _field(parameter.default)))
            msgspec.json.schema(msgspec.defstruct("Arguments", fields[-1:], kw_only=True))
        except Exception as error:  # msgspec raises TypeError, ValueError and others, by the type
            cause = one_line(error, 200).rstrip(".")
            raise UsageError(f"{place}: its type or default has no JSON schema: {cause}. Use another type.") from error
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    try:
        json_decoder(arguments)  # threads of parallel calls convert to it
    except TypeError as error:
        raise UsageError(f"tool {title!r}: its parameters cannot be read: {one_line(error, 200)}.") from error
    return arguments


def _described(hint: Any, text: str | None) -> Any:
    return hint if text is None else typing.Annotated[hint, msgspec.Meta(description=text)]


def _field(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return msgspec.field()
    if isinstance(default, list | dict | set):
        return msgspec.field(default_factory=lambda: copy.deepcopy(default))
    return msgspec.field(default=default)


def _schema(arguments: type[msgspec.Struct], title: str) -> dict[str, Any]:
    """Return the schema of the arguments: an object without a title, with the types it refers to under `$defs`."""
    (reference,), definitions = msgspec.json.schema_components([arguments])
    schema = definitions.pop(reference["$ref"].rpartition("/")[2])
    del schema["title"]
    for field in msgspec.structs.fields(arguments):  # those of factories, which the library does not call
        if field.default_factory is not msgspec.NODEFAULT:
            schema["properties"][field.name]["default"] = msgspec.to_builtins(field.default_factory())
    return {**schema, "$defs": definitions} if definitions else schema


def _converting(function: Callable[..., Any], arguments: type[msgspec.Struct]) -> Callable[..., Any]:
    """Return `function` with keywords that are converted to the types of its parameters, and defaults for the rest."""

    def converted(keywords: Mapping[str, Any]) -> dict[str, Any]:
        try:
            values = msgspec.convert(keywords, arguments)
        except msgspec.ValidationError as error:
            raise UsageError(f"{one_line(error)}.") from error
        return {name: getattr(values, name) for name in arguments.__struct_fields__}

    if inspect.iscoroutinefunction(function):

        async def call(**keywords: Any) -> Any:
            return await function(**converted(keywords))

        return call
    return lambda **keywords: function(**converted(keywords))


def _documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the docstring without its sections and its lines about parameters, and what it says about each one."""
    names = inspect.signature(function).parameters
    description, about = list[str](), dict[str, str]()
    section = entry = None
    for line in (inspect.getdoc(function) or "").splitlines():
        if heading := HEADING.fullmatch(line.rstrip()):
            section, entry = heading[1], None
        elif section not in (None, "Args", "Arguments", "Parameters"):
            continue
        elif (match := ENTRY.fullmatch(line)) and match[1] in names:
            entry = match[1]
            about[entry] = match[2].strip()
        elif entry and line.startswith(" "):  # the text continues
            about[entry] = f"{about[entry]} {line.strip()}".strip()
        elif section is None:
            entry = None
            description.append(line.rstrip())
    return "\n".join(description).strip(), about
