"""The shipped language models as models for conversations."""

from __future__ import annotations

import shutil
from pathlib import Path

from intaglio.exporters import export

# As the templates of Hermes and Qwen2.5 write conversations and calls; of the tools, it has the names alone.
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
