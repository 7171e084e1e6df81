"""Pages of the site that are not Markdown in docs/: the README, commands, the Python API, notebooks, other files.

MkDocs calls the functions `on_...` by their names.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from python_page import python  # beside this file

import intaglio
from intaglio.cli import cli

ROOT = Path(__file__).parents[2]
START = "README.md"
NOTEBOOK = ".ipynb"
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)]*)?\))")


@event_priority(100)  # before mkdocstrings reads its settings
def on_config(config: MkDocsConfig) -> None:
    """Let mkdocstrings read the package as it is installed: in the checkout the stages lie beside it."""
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(Path(intaglio.__file__).parents[1])]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated, and the files of the checkout that pages link to."""
    made = {"commands.md": commands(), "python.md": python()}
    made |= {
        address(f"docs/{name}"): notebook(ROOT / "docs" / name) for name in files.src_uris if name.endswith(NOTEBOOK)
    }
    made |= {address(name): (ROOT / name).read_text(encoding="utf-8") for name in (START, "CHANGELOG.md")}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    waiting = [(page.src_uri, page.content_string) for page in files.documentation_pages()]
    seen = {path for path, _ in waiting}
    while waiting:
        path, text = waiting.pop()
        for target in outside(path, text):
            place = address(target)
            if place in seen:
                continue
            seen.add(place)
            source = ROOT / target
            if source.suffix == ".md":
                text = source.read_text(encoding="utf-8")
                waiting.append((place, text))
                files.append(File.generated(config, place, content=text))
            else:
                files.append(File.generated(config, place, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the places that files outside of docs/ have on the site."""
    here = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        target = resolved(here, match[2])
        if target is None:
            return match[0]
        return match[1] + posixpath.relpath(address(target), posixpath.dirname(here) or ".") + match[3]

    return LINK.sub(moved, markdown)


def outside(page: str, text: str) -> Iterator[str]:
    """Paths from the checkout's root of the files that a page links to, without the pages of docs/."""
    for match in LINK.finditer(text):
        target = resolved(page, match[2])
        if target is not None and target != START and not target.startswith("docs/"):
            yield target


def resolved(page: str, link: str) -> str | None:
    """The path from the checkout's root that a page's link means; None if there is no such file."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source_of(page)), link))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md") if (ROOT / path / "README.md").is_file() else path
    return path if (ROOT / path).is_file() else None


def source_of(page: str) -> str:
    """Where the file of a page is in the checkout."""
    if page == "index.md":
        return START
    return page.removeprefix("checkout/") if page.startswith("checkout/") else f"docs/{page}"


def address(path: str) -> str:
    """The page of a file of the checkout."""
    if path == START:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/").replace(NOTEBOOK, ".md")
    return f"checkout/{path}"


def notebook(path: Path) -> str:
    """The text and the code of a notebook, and the file to download."""
    text, _ = MarkdownExporter().from_filename(str(path))
    return f'{text}\nDownload: <a href="../{path.name}" download>{path.name}</a>\n'


def commands() -> str:
    """Every verb's `--help`, as the terminal shows it."""
    parts = ["# Commands\n\nThe text of `--help` of every verb. [reference.md](reference.md) has the overview.\n"]
    for words, command in verbs(cli, ["intaglio"]):
        context = click.Context(command, info_name=" ".join(words), max_content_width=100, show_default=True)
        parts.append(f"## {' '.join(words[1:])}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def verbs(group: click.Group, words: list[str]) -> Iterator[tuple[list[str], click.Command]]:
    """The commands of a group and its groups, with the words that call them."""
    context = click.Context(group, info_name=words[-1])
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from verbs(command, [*words, name])
        else:
            yield [*words, name], command
