"""Grammars: text that matches a JSON schema, a regular expression, or a Lark grammar, by masks of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from intaglio.errors import UsageError, one_line
from intaglio.extras import load
from intaglio.plugins.native.logit_mask import BITS
from intaglio.runtime.sampling.constraint import Booleans, LogitConstraint, Octets
from intaglio.runtime.sampling.grammar_tokenizer import GrammarTokenizer, grammar_tokenizer
from intaglio.runtime.sampling.json_schema.document import UnsupportedError
from intaglio.runtime.sampling.json_schema.writer import schema_grammar
from intaglio.runtime.text.tokenizer import check_unicode

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from tokenizers import Tokenizer

# Whitespace between the tokens of JSON: a space, or a line feed and an indentation. If it were not bounded, weak models
# would write spaces without end.
WHITESPACE = r"[ ]|\n(\t{0,8}| {0,16})"
MAX_CHARACTERS = 1 << 17  # of a grammar; one with 5000 properties, twice as long, compiles for 3 s
MAX_DEPTH = 64  # of the objects and arrays of a schema
HINT = re.compile(r" Enable '\w+' option.*")  # in the library's messages, for its own interface
SHOWN = 300  # characters of the library's messages
MASKS = 64  # masks that a constraint caches: for the drafts that are verified next


class Grammar:
    """A grammar compiled for one tokenizer. Requests share it; each has a `GrammarConstraint` of its own.

    It is compiled first in a separate process with limits, see `grammar_check`.

    Raises `UsageError` for a grammar that is invalid, too large, takes too much time or memory to compile, or uses what
    is not supported, and for a tokenizer whose tokens have no bytes of their own; `MissingExtraError` if
    llguidance is missing.
    """

    def __init__(self, text: str, tokenizer: Tokenizer, kind: str):
        """`text`: a grammar of llguidance; `kind`: what the user gave, for messages."""
        self._kind = kind
        self.tokenizer: GrammarTokenizer = grammar_tokenizer(tokenizer)
        library: Any = load("llguidance")
        self.bytes = self.tokenizer.check.bytes_of(text, kind)  # of the grammar and its first mask
        limits = library.LLParserLimits(verbose_errors=False)
        self._matcher: LLMatcher = library.LLMatcher(self.tokenizer.library, text, limits=limits, log_level=0)
        self.check(self._matcher)
        if not GrammarConstraint(self, ()).octets(()).any():
            raise UsageError(f"the {kind} matches no text that the tokenizer can write, except the empty one. Fix it.")

    @classmethod
    def from_json_schema(cls, schema: Mapping[str, Any] | bool | str, tokenizer: Tokenizer) -> Grammar:
        """JSON that validates against `schema`, an object or its text; properties are in the order of the schema.

        Keys and strings are written in the one spelling that JSON has for each character, so that no key stands twice
        in an object, once with an escape. Raises `UsageError` with the place of a keyword that cannot be enforced, such
        as `uniqueItems` of any strings, and of a reference to another document.
        """
        kind = "JSON schema"
        if isinstance(schema, str):
            try:
                schema = json.loads(_of_size(schema, kind))
            except (ValueError, RecursionError) as error:
                raise UsageError(f"the {kind} is not JSON: {one_line(error, 200)}. Fix it.") from error
        if not isinstance(schema, Mapping | bool):
            raise UsageError(f"the {kind} is a {type(schema).__name__}, expected an object. Fix it.")
        if _depth(schema) > MAX_DEPTH:
            raise UsageError(f"the {kind} is nested more than {MAX_DEPTH} deep. Use $ref for its inner parts.")
        try:
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
            text.encode()
        except ValueError as error:  # NaN, half of a surrogate pair
            raise UsageError(f"the {kind} is not valid JSON: {one_line(error, 200)}. Fix it.") from error
        load("llguidance")
        try:
            grammar = schema_grammar(_of_size(text, kind), WHITESPACE)
        except UnsupportedError as error:
            raise UsageError(f"the {kind} cannot be used: at {error}") from error
        return cls(grammar, tokenizer, kind)

    @classmethod
    def json_object(cls, tokenizer: Tokenizer) -> Grammar:
        """Any JSON object."""
        return cls.from_json_schema({"type": "object"}, tokenizer)

    @classmethod
    def from_regex(cls, regex: str, tokenizer: Tokenizer) -> Grammar:
        """Text that matches all of `regex`, in the syntax of Rust's regex crate: no look-around, no back-references."""
        kind = "regular expression"
        check_unicode(_of_size(regex, kind))
        library: Any = load("llguidance")
        return cls(library.LLMatcher.grammar_from_regex(regex), tokenizer, kind)

    @classmethod
    def from_lark(cls, grammar: str, tokenizer: Tokenizer) -> Grammar:
        r"""Text of a context-free grammar in llguidance's variant of Lark, which begins at the rule `start`.

        Lower-case names are rules, upper-case ones terminals. `<tool_call>`, without quotes, is the special token of
        this name: the text contains its id. `%json {...}` is JSON of a schema, `%regex {...}` a substring or a
        regular expression with options. Text until a tag is a lazy terminal, or a terminal that excludes it:

            start: TEXT ( <tool_call> "\n" call "\n" </tool_call> )+
            TEXT: /[^<]*/
            call: weather | clock
            weather: %json {"type": "object", "properties": {"name": {"const": "weather"}}, "required": ["name"],
                            "x-guidance": {"whitespace_pattern": "[ ]|\\n {0,16}"}}
            clock: %json {...}

        A tag that is no special token of the tokenizer is a quoted string. JSON in it may have any whitespace, unless
        the schema has `"x-guidance": {"whitespace_pattern": WHITESPACE}`. The text may end wherever the grammar is
        complete, and ends where it cannot go on.
        """
        kind = "Lark grammar"
        check_unicode(_of_size(grammar, kind))
        if grammar.lstrip().startswith("{"):
            raise UsageError(f"the {kind} begins with a brace, expected rules such as start: /[a-z]+/. Is it a schema?")
        return cls(grammar, tokenizer, kind)

    def matcher(self) -> LLMatcher:
        """Return a matcher at the beginning of a text."""
        return self._matcher.deep_copy()

    def check(self, matcher: LLMatcher) -> None:
        """Raise `UsageError` if `matcher` stopped because of an error in the grammar, or because of its limits."""
        if matcher.is_error():
            cause = _cause(matcher.get_error(), self._kind == "Lark grammar")
            raise UsageError(f"the {self._kind} cannot be used: {cause}. Fix or simplify it.")


class TokenMask(NamedTuple):
    """What may follow a text."""

    octets: Octets  # the allowed tokens
    finished: bool  # whether nothing but an end may follow

    def allows(self, token: int) -> bool:
        """Whether a token of the vocabulary is allowed."""
        return bool(self.octets[token // BITS] & 1 << token % BITS)


class GrammarConstraint(LogitConstraint):
    """The constraint of one request by a grammar.

    One matcher follows the text. For a text that differs from the last one it is rolled back to what both have in
    common, in some microseconds, so drafts can be checked in any order. A text that the grammar has completed allows
    only `end_tokens`; so does a text with an end token.
    """

    def __init__(self, grammar: Grammar, end_tokens: Collection[int]):
        """`end_tokens`: the tokens that end the text; none if it ends only where the grammar cannot go on."""
        self._grammar = grammar
        self._matcher = grammar.matcher()
        self._size = grammar.tokenizer.size
        self._ends = frozenset(end_tokens)
        self._width = max(self._size, *(end + 1 for end in end_tokens), 0)
        self._written: list[int] = []  # the tokens that the matcher has consumed
        self._masks: dict[int, TokenMask] = {}  # number of the first tokens of `_written` -> the mask after them

    def allowed(self, written: Sequence[int]) -> Booleans:
        """See `LogitConstraint`. A text that does not match the grammar allows no token."""
        return np.unpackbits(self.octets(written), count=self._width, bitorder="little").view(np.bool_)

    def octets(self, written: Sequence[int]) -> Octets:
        """See `LogitConstraint`."""
        return self._mask(list(written)).octets

    def finished(self, written: Sequence[int]) -> bool:
        """See `LogitConstraint`."""
        written = list(written)
        # A mask is computed only where the grammar accepts the text, and may go on.
        if self._follow(written) and (self._matcher.is_stopped() or not self._matcher.is_accepting()):
            return self._matcher.is_stopped()
        return self._mask(written).finished

    def count_allowed(self, written: Sequence[int], draft: Sequence[int]) -> int:
        """See `LogitConstraint`. A draft may end with an end token.

        Where the grammar forces the next characters, `allowed` has only the token that the tokenizer writes for them;
        here other tokens with the same characters count too.
        """
        if not self._follow(list(written)):
            return 0
        tokens = self._readable(draft)
        count = self._matcher.validate_tokens(tokens)
        if count < len(draft) and draft[count] in self._ends:
            before = self._mask([*written, *draft[:count]])
            count += before.allows(draft[count])
        return count

    def _mask(self, written: list[int]) -> TokenMask:
        count = len(written)
        if count in self._masks and self._written[:count] == written:
            return self._masks[count]
        if not self._follow(written):
            return self._after_the_end(written)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._grammar.check(self._matcher)
        if len(self._masks) >= MASKS:
            del self._masks[min(self._masks)]
        self._masks[count] = mask = read_mask(bits, self._size, self._width, self._ends)
        return mask

    def _after_the_end(self, written: list[int]) -> TokenMask:
        """Return the mask after a text that the matcher could not follow: with an end token, or one that breaks it."""
        place = len(self._written)
        ended = written[place] in self._ends and self._mask(written[:place]).allows(written[place])
        return TokenMask(_with_ends(np.zeros(-(-self._width // BITS), np.uint8), self._ends, ended), ended)

    def _follow(self, written: list[int]) -> bool:
        """Move the matcher to the end of `written`, or of its longest prefix that the grammar allows.

        Return whether it allows all of it.
        """
        known = self._written
        if written[: len(known)] != known:
            pairs = enumerate(zip(known, written, strict=False))
            same = next((place for place, (old, new) in pairs if old != new), len(written))
            self._matcher.rollback(len(known) - same)
            del known[same:]
            self._masks = {count: mask for count, mask in self._masks.items() if count <= same}
        if len(known) < len(written):
            rest = self._readable(written[len(known) :])
            known += rest[: self._matcher.try_consume_tokens(rest)]
            self._grammar.check(self._matcher)
        return len(known) == len(written)

    def _readable(self, tokens: Sequence[int]) -> list[int]:
        """Return the first of `tokens`, up to one that the tokenizer does not have."""
        beyond = (place for place, token in enumerate(tokens) if not 0 <= token < self._size)
        return list(tokens[: next(beyond, len(tokens))])


def read_mask(bits: Octets, size: int, width: int, ends: Collection[int]) -> TokenMask:
    """Return the mask of `width` tokens that the library's `bits` stand for.

    `size`: the number of the library's end token; what stands for it are the tokens `ends`.
    """
    may_end = bool(bits[size // BITS] & 1 << size % BITS)
    octets = np.zeros(-(-width // BITS), np.uint8)
    octets[: size // BITS] = bits[: size // BITS]
    if rest := size % BITS:
        octets[size // BITS] = bits[size // BITS] & (1 << rest) - 1
    finished = may_end and not np.count_nonzero(_with_ends(octets, ends, False))
    return TokenMask(_with_ends(octets, ends, may_end), finished)


def _with_ends(octets: Octets, ends: Collection[int], allowed: bool) -> Octets:
    """Allow or forbid the tokens `ends` in place; return `octets`."""
    for end in ends:
        bit = 1 << end % BITS
        octets[end // BITS] = int(octets[end // BITS]) & ~bit | bit * allowed
    return octets


def grammar_of(
    tokenizer: Tokenizer, schema: Mapping[str, Any] | bool | str | None, grammar: str | None, regex: str | None
) -> Grammar | None:
    """Compile the one of a JSON schema, a Lark grammar and a regular expression that is given; None without any.

    Raises `UsageError` for two of them, and as `Grammar` does.
    """
    named = {"--schema": schema, "--grammar": grammar, "--regex": regex}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are given, expected at most one. Leave one out.")
    if schema is not None:
        return Grammar.from_json_schema(schema, tokenizer)
    if grammar is not None:
        return Grammar.from_lark(grammar, tokenizer)
    return Grammar.from_regex(regex, tokenizer) if regex is not None else None


def _of_size(text: str, kind: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"the {kind} has {len(text)} characters, expected at most {MAX_CHARACTERS}. Shorten it.")
    return text


def _depth(value: object) -> int:
    """Return how deep objects and arrays are nested in a JSON value, or a number above `MAX_DEPTH`."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = [item for each in inner if isinstance(each, Collection) and not isinstance(each, str) for item in each]
        depth += 1
    return depth


def _cause(message: str, with_place: bool) -> str:
    """Return the cause in a message of the library, which shows the text around it on further lines.

    `with_place`: say where an invalid regular expression is, as line(column).
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["unknown"]
    if lines[0].startswith("NoExtension"):
        return "it matches no text that ends"
    cause = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    if cause is None:
        return one_line(ValueError(HINT.sub("", lines[0])), SHOWN).rstrip(".")
    place = lines[0].partition("invalid regex ")[0] if with_place and "invalid regex " in lines[0] else ""
    return one_line(ValueError(f"{place}invalid regular expression: {cause}"), SHOWN).rstrip(".")
