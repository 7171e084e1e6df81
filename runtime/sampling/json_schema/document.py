"""A JSON schema as a document: whether it is one, where its parts are, and what its references lead to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from intaglio.errors import UsageError

Schema = Mapping[str, Any] | bool
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ONE = (
    *("additionalProperties", "propertyNames", "unevaluatedProperties", "items", "contains", "unevaluatedItems"),
    *("not", "if", "then", "else", "additionalItems", "contentSchema"),
)
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
COUNTS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
STRINGS = ("pattern", "format", "$ref", "$dynamicRef", "$anchor", "$dynamicAnchor", "$id")
EXPECTED = {
    **dict.fromkeys(COUNTS, "a whole number that is not negative"),
    **dict.fromkeys(NUMBERS, "a number"),
    **dict.fromkeys(STRINGS, "a string"),
    **dict.fromkeys(LISTS, "a list of schemas"),
    **dict.fromkeys((*MAPS, "dependencies"), "an object"),
    "multipleOf": "a number above 0",
    "uniqueItems": "true or false",
    "enum": "a list",
    "required": "a list of names",
    "dependentRequired": "an object with lists of names",
    "type": f"one or more of {', '.join(TYPES)}",
}


class UnsupportedError(UsageError):
    """A keyword of a schema that a grammar cannot enforce, or that is not valid."""

    def __init__(self, path: str, cause: str, keyword: str | None = None):
        """`path`: the JSON pointer of the schema, such as #/properties/name.

        `keyword`: the schema part that may be omitted, as the finished value is checked.
        """
        super().__init__(f"{path}: {cause}")
        self.path, self.keyword = path, keyword


class Place(NamedTuple):
    """Where a schema is."""

    path: str  # JSON pointer, for messages
    base: str  # the URI that its references are relative to


class Document:
    """A schema and all schemas in it."""

    def __init__(self, schema: Schema):
        """Raises `UnsupportedError` for a keyword whose value is not valid."""
        self._root = schema
        self._places: dict[int, Place] = {}
        self._resources: dict[str, Schema] = {"": schema}
        self._anchors: dict[tuple[str, str], Schema] = {}
        self._dynamic: dict[str, list[Schema]] = {}
        self._walk(schema, "#", "")

    def path(self, schema: Schema) -> str:
        """Return the JSON pointer of a schema, for messages."""
        return self._places[id(schema)].path if id(schema) in self._places else "#"

    def resolve(self, schema: Mapping[str, Any], keyword: str) -> Schema:
        """Return what the `$ref` or `$dynamicRef` of `schema` leads to. Raises `UnsupportedError`."""
        place = self._places[id(schema)]
        reference = schema[keyword]
        joined = f"{place.base}{reference}" if reference.startswith("#") else urljoin(place.base, reference)
        uri, fragment = urldefrag(joined)
        resource = self._resources.get(uri)
        if resource is None:
            raise UnsupportedError(
                place.path, f"{keyword} {reference!r:.80} is not in the schema. Copy its target into $defs."
            )
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get((uri, fragment))
            if keyword == "$dynamicRef" and len(self._dynamic.get(fragment, ())) > 1:
                raise UnsupportedError(place.path, f"{keyword}: several schemas have $dynamicAnchor {fragment!r:.80}.")
        else:
            found = at_pointer(resource, fragment)
        if not isinstance(found, Mapping | bool):
            raise UnsupportedError(place.path, f"{keyword} {reference!r:.80}: there is no schema. Fix it.")
        if isinstance(found, Mapping) and id(found) not in self._places:  # in a keyword that has no schemas
            self._walk(found, f"#{fragment}", uri)
        return found

    def _walk(self, schema: Any, path: str, base: str) -> None:
        if not isinstance(schema, Mapping | bool):
            raise UnsupportedError(path, f"got {schema!r:.60}, expected a schema: an object, true or false. Fix it.")
        if isinstance(schema, bool) or id(schema) in self._places:
            return
        check_keywords(schema, path)
        if isinstance(schema.get("$id"), str) and not schema["$id"].startswith("#"):
            base = urldefrag(urljoin(base, schema["$id"])).url
            self._resources.setdefault(base, schema)
        self._places[id(schema)] = Place(path, base)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if keyword in schema:
                self._anchors.setdefault((base, schema[keyword]), schema)
        if "$dynamicAnchor" in schema:
            self._dynamic.setdefault(schema["$dynamicAnchor"], []).append(schema)
        for below, inner in _inner(schema):
            self._walk(inner, f"{path}/{below}", base)


def check_keywords(schema: Mapping[str, Any], path: str) -> None:
    """Raise `UnsupportedError` for a keyword whose value is not valid."""
    for keyword, value in schema.items():
        if keyword in EXPECTED and not _valid(keyword, value):
            raise UnsupportedError(path, f"{keyword} is {value!r:.60}, expected {EXPECTED[keyword]}. Fix it.")


def _valid(keyword: str, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if keyword in COUNTS:
        return number and value >= 0 and value == int(value)
    if keyword in NUMBERS or keyword == "multipleOf":
        return number and (keyword != "multipleOf" or value > 0)
    if keyword in STRINGS:
        return isinstance(value, str)
    if keyword in LISTS or keyword == "enum":
        return isinstance(value, list)
    if keyword == "uniqueItems":
        return isinstance(value, bool)
    if keyword == "type":
        types = value if isinstance(value, list) else [value]
        return all(isinstance(each, str) and each in TYPES for each in types)
    if keyword == "required":
        return _names(value)
    return isinstance(value, Mapping) and (keyword != "dependentRequired" or all(map(_names, value.values())))


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas in a schema, with the end of their JSON pointers."""
    for keyword, value in schema.items():
        if keyword in LISTS or (keyword == "items" and isinstance(value, list)):
            yield from ((f"{keyword}/{place}", each) for place, each in enumerate(value))
        elif keyword in ONE:
            yield keyword, value
        elif keyword in MAPS:
            yield from ((f"{keyword}/{escape(name)}", each) for name, each in value.items())
        elif keyword == "dependencies":
            yield from ((f"{keyword}/{escape(name)}", each) for name, each in value.items() if not _names(each))


def escape(name: str) -> str:
    """Return a name as JSON pointers have it."""
    return name.replace("~", "~0").replace("/", "~1")


def at_pointer(value: Any, pointer: str) -> Any:
    """Return what a JSON pointer leads to; None for nothing."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
