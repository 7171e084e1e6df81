"""Language models for conversations: those of this repository, and a random one with a long context."""

from __future__ import annotations

import shutil
from pathlib import Path

from tiny_decoders import save_decoder, write_byte_tokenizer

from intaglio.exporters import export

# The format of Hermes and Qwen2.5 for conversations and calls; of the tools, it contains only the names.
TEMPLATE = """\
{%- for tool in tools or [] %}{{ 'tool ' + tool.function.name + '\n' }}{% endfor -%}
{%- for message in messages -%}
{{ message.role + ': ' + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{%- set called = {'name': call.function.name, 'arguments': call.function.arguments} -%}
{{ '\n<tool_call>\n' + (called | tojson) + '\n</tool_call>' }}
{%- endfor -%}
{{ '\n' }}
{%- endfor -%}
{{ 'assistant:' }}"""


def chat_bundle(checkpoint: Path, path: Path) -> None:
    """Export a trained language model with a chat template."""
    copy = path.parent / f"{path.name}-checkpoint"
    shutil.copytree(checkpoint, copy)
    (copy / "chat_template.jinja").write_text(TEMPLATE)
    export(str(copy), path, check=False)


# The ChatML format of conversations: a message after "assistant" is exactly the generated text.
CHATML = """\
{%- for message in messages -%}
{{ '<|' + message.role + '|>\n' + (message.content or '') + '<|end|>\n' }}
{%- endfor -%}
{{ '<|assistant|>\n' }}"""


def long_chat_bundle(path: Path, template: str = CHATML) -> None:
    """Export a small random decoder with a context of 8192 tokens, a token for each byte, and a chat template."""
    copy = path.parent / f"{path.name}-checkpoint"
    save_decoder(copy, "llama", max_position_embeddings=8192)
    write_byte_tokenizer(copy, template)
    export(str(copy), path, check=False)
