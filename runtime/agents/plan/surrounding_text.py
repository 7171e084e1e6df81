"""What models write around a plan or an answer: reasoning, marks of chat templates, decoration, spaces of all kinds."""

from __future__ import annotations

import re

_TAG = "think|thinking|thought|thoughts|reasoning|reason|reflection|analysis|scratchpad"
# Reasoning of DeepSeek, Qwen and others; of Magistral; of Kimi; of gpt-oss, whose answer is in the channel "final".
OPENING = re.compile(
    rf"<(?:{_TAG})>|\[think\]|◁think▷|<\|channel\|>(?:analysis|commentary)<\|message\|>", re.IGNORECASE
)
CLOSING = re.compile(rf"</(?:{_TAG})>|\[/think\]|◁/think▷|<\|channel\|>final<\|message\|>", re.IGNORECASE)
LAST_CHARACTERS = ">]▷"  # of a tag
LONGEST_TAG = 48
# Tokens that end a turn, where a server leaves them in the text.
MARK = re.compile(r"<\|[^|<>\n]{1,40}\|>|<｜[^｜\n]{1,40}｜>|</?s>|<(?:end_of_turn|eos)>|<END_OF_\w{1,20}>|\[/?INST\]")
BLANK = r"[^\S\n]|[\u200b-\u200d\u2060\ufeff]"  # spaces of all kinds but line breaks, and those without a width


def without_reasoning(text: str) -> tuple[str, str]:
    """Return `text` without its reasoning and the marks of chat templates, and what is before an orphaned closing tag.

    A template may write the opening tag of a model's reasoning, so that the text has the closing one alone.
    """
    parts, place, depth = list[str](), 0, 0
    before = ""
    for match in re.finditer(f"(?P<open>{OPENING.pattern})|{CLOSING.pattern}", text, re.IGNORECASE):
        if not depth:
            parts.append(text[place : match.start()])
        place = match.end()
        if match["open"]:
            depth += 1
        elif depth:
            depth -= 1
        else:
            before, parts = before + "".join(parts), []
    if not depth:
        parts.append(text[place:])
    return MARK.sub("", "".join(parts)), before


def encodable(text: str) -> str:
    """Return a text with "?" for halves of surrogate pairs, as a tool may return, which no encoding has."""
    return text.encode("utf-8", "replace").decode()
