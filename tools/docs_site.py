"""Hooks of mkdocs: pages and files of the repository that are outside docs/.

Pages link to `../results/...` and `../examples/...`, which works in the repository. The site
includes these files under the same names, and the links are rewritten.
"""

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from markdown import Extension, Markdown  # type: ignore[import-untyped]
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# Files outside docs/ that pages link to; all other files stay out of the site.
OUTSIDE_DOCS = ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "results/**/*", "examples/**/*")
KEPT = {".md", ".svg", ".csv", ".toml", ".py", ".yaml", ".ipynb", ""}
_LINK = re.compile(
    r"(?:(?<=\]\()|(?<=\]: ))(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\)|$)", re.MULTILINE
)


class NoRawHtml(Extension):  # type: ignore[misc]
    """An extension that keeps formulas such as <b, z> as text, as GitHub does."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Remove the parsers that would read them as tags."""
        md.preprocessors.deregister("html_block")
        md.inlinePatterns.deregister("html")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read pages as GitHub does."""
    extensions: list[Any] = config.markdown_extensions
    extensions.append(NoRawHtml())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that are outside docs/."""
    for pattern in OUTSIDE_DOCS:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and path.suffix in KEPT and "__pycache__" not in name:
                files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, "examples/README.md", content=_examples()))
    return files


def _examples() -> str:
    """Return a list of the examples, each with the first line of its file."""
    rows = ["# Examples", "", "| file | what |", "|---|---|"]
    for path in sorted((ROOT / "examples").glob("*.*")):
        if path.suffix in {".py", ".toml"}:
            words = path.read_text().splitlines()[0].strip('# "')
            rows.append(f"| [{path.name}]({path.name}) | {words} |")
    return "\n".join(rows) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between files of the repository as links between pages of the site."""
    uri = page.file.src_uri
    in_docs = (Path(config.docs_dir) / uri).is_file()
    here = PurePosixPath("docs", uri).parent if in_docs else PurePosixPath(uri).parent

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[1]))
        if target == "README.md":  # It is the front page of the site.
            return posixpath.relpath("index.md", posixpath.dirname(uri))
        if (ROOT / target).is_dir():
            target = posixpath.join(target, "README.md")
        on_site = target.removeprefix("docs/")
        if files.get_file_from_path(on_site) is None:
            return link[0]  # mkdocs reports what is wrong.
        return posixpath.relpath(on_site, posixpath.dirname(uri)) + (link[2] or "")

    return _LINK.sub(moved, markdown)
