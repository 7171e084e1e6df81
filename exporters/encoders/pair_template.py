"""The template of a model that reads a query and a document as one conversation, by its chat template.

A chat template is a program, and this one is run here only: what it writes around the two texts is recorded, if it
writes the same around any texts, and each text once, unchanged. It is tried on texts that programs treat differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intaglio.bundle.text_records import PairTemplate
from intaglio.errors import SourceError, UsageError
from intaglio.runtime.generation.requests.chat import ChatTemplate
from intaglio.runtime.text.pair_texts import filled

ROLES = ("query", "document")  # of the messages that sentence-transformers makes of a pair
STRUCTURED = "structured"  # the format of messages whose content is a list of typed parts
MARKS = ("first0mark", "second0mark")  # texts that no template has
TRIALS = (
    ("who wrote it", "she did"),
    ("0", "1 2 3 4"),
    (" spaces around \n", "\n\ttabs and lines\n\n"),
    ("<b>\"quotes\" & 'more'</b>", "{{ messages }} {% if a %} \\n <|im_end|></think>\n\nafter"),
    ("\u00e9\u4e16\U0001f600", "a\u0301 \u2028"),
    ("A" * 300, "word " * 1000),
    ("system", "user"),
)
CLOCK = "strftime_now"


class PairTemplates:
    """The chat template of a tokenizer (of transformers) as templates of pairs, one for each instruction."""

    def __init__(self, tokenizer: Any, structured: bool, options: Mapping[str, Any], where: str):
        """`options`: variables of the template; `where` names its folder. Raises `SourceError`."""
        source = tokenizer.chat_template
        if not isinstance(source, str):
            has = "several chat templates" if source else "no chat template"
            raise SourceError(f"{where}: has {has}, expected one, for the roles query and document. Add it.")
        if CLOCK in source:
            raise SourceError(f"{where}: the chat template writes the time ({CLOCK}), which is not supported.")
        self._structured, self._where = structured, where
        tokens = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        self._variables = {"tools": None, "add_generation_prompt": False, **tokens, **options}
        self._template = ChatTemplate(source, {}, where)

    def of(self, instruction: str) -> PairTemplate:
        """The template of pairs under `instruction`, a system message; "" for none.

        Raises `SourceError` for a chat template that rejects pairs, leaves a text out, or changes it.
        """
        text = self._text(instruction, *MARKS)
        places = [text.find(mark) for mark in MARKS]
        if any(text.count(mark) != 1 for mark in MARKS):
            raise self._refusal(f"expected the texts of the roles {' and '.join(ROLES)} once each")
        first, last = sorted(zip(places, MARKS, strict=True))
        between = text[first[0] + len(first[1]) : last[0]]
        found = PairTemplate(text[: first[0]], between, text[last[0] + len(last[1]) :], places[1] < places[0])
        for query, document in TRIALS:
            if self._text(instruction, query, document) != filled(found, query, document):
                raise self._refusal(f"expected each text unchanged, and it changes {query[:20]!r} or {document[:20]!r}")
        return found

    def _text(self, instruction: str, query: str, document: str) -> str:
        texts = {"system": instruction} if instruction else {}
        texts |= dict(zip(ROLES, (query, document), strict=True))
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if self._structured else text}
            for role, text in texts.items()
        ]
        try:
            return self._template.fill({**self._variables, "messages": messages})
        except UsageError as error:
            raise self._refusal(f"it fails ({error})") from error

    def _refusal(self, reason: str) -> SourceError:
        return SourceError(
            f"{self._where}: the chat template does not write a query and a document as one text: {reason}. Put one "
            "that does into chat_template.jinja."
        )
