from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from speech_corpus.prose import MOST, sentences, texts, unique

EXAMPLES = Path(__file__).parents[3] / "examples"
MARKDOWN = """# A heading is no sentence

A **bundle** is a directory that has
everything. See [the page](docs/page.md) for more.

| a table | has no sentences |
| --- | --- |

```python
this is code and no sentence
```

- The first item is short.
- Call `x = f(1)` in the code here.
- It takes 12 seconds.
- Too short.
- The GPU is left out here, etc. is too.
"""


def test_markup_code_tables_and_abbreviations_are_removed() -> None:
    assert list(sentences(MARKDOWN)) == [
        "a bundle is a directory that has everything",
        "see the page for more",
        "the first item is short",
        "it takes twelve seconds",
    ]


def test_long_sentence_is_split_at_its_punctuation() -> None:
    long = (
        "When the statement contains several clauses, separated by commas, the steps are carried out for each clause "
        "(in the order in which they stand); nothing else happens."
    )
    assert list(sentences(long)) == [
        "when the statement contains several clauses",
        "separated by commas",
        "the steps are carried out for each clause",
        "in the order in which they stand",
        "nothing else happens",
    ]


def test_long_clause_is_dropped() -> None:
    assert list(sentences(" ".join(["word"] * (MOST + 1)))) == []
    assert list(sentences(" ".join(["word"] * MOST))) == [" ".join(["word"] * MOST)]


PYTHON = '''"""The module's own words stand here."""

LIMIT = 3  # a comment is no text
MESSAGE = "a short string is none either"
MANUAL = {
    "topic": """
The manual has more to say about it.
"""
}


class Kind:
    async def method(self, name="value of a default"):
        """What the method does.

        The second paragraph of its docstring.
        """
        return f"a message is left out {name}"
'''


def test_docstrings_and_long_strings_of_python_files_are_extracted(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(PYTHON)
    (tmp_path / "page.md").write_text(MARKDOWN)
    assert set(unique(texts(tmp_path / "code.py"))) == {
        "the module's own words stand here",
        "the manual has more to say about it",
        "what the method does",
        "the second paragraph of its docstring",
    }
    assert list(texts(tmp_path / "page.md")) == [MARKDOWN]


def test_sentences_are_unique() -> None:
    assert unique(["It is here now.", "It is here, now."]) == ["it is here now"]


def test_command_prints_the_sentences_of_the_function(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(MARKDOWN)
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES)}
    command = [sys.executable, "-m", "speech_corpus.prose", str(tmp_path / "page.md")]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == unique([MARKDOWN])
