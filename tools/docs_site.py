"""What mkdocs needs to know of this repository: pages and files that lie beside docs/.

Pages link to `../results/...` and `../examples/...`, which works where the repository is read. The
site takes these files in under the same names, and the links follow.
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
# Beside docs/: what pages link to. Everything else stays out of the site.
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "results/**/*", "examples/**/*")
KEPT = {".md", ".svg", ".csv", ".toml", ".py", ".yaml", ".ipynb", ""}
_LINK = re.compile(
    r"(?:(?<=\]\()|(?<=\]: ))(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\)|$)", re.MULTILINE
)


class NoRawHtml(Extension):  # type: ignore[misc]
    """Formulas such as <b, z> are text, as they are for GitHub."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Take out what would read them as tags."""
        md.preprocessors.deregister("html_block")
        md.inlinePatterns.deregister("html")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read pages as GitHub does."""
    extensions: list[Any] = config.markdown_extensions
    extensions.append(NoRawHtml())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files beside docs/."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and path.suffix in KEPT and "__pycache__" not in name:
                files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, "examples/README.md", content=_examples()))
    return files


def _examples() -> str:
    """A list of the examples, each with the first words of its file."""
    rows = ["# Examples", "", "| file | what |", "|---|---|"]
    for path in sorted((ROOT / "examples").glob("*.*")):
        if path.suffix in {".py", ".toml"}:
            words = path.read_text().splitlines()[0].strip('# "')
            rows.append(f"| [{path.name}]({path.name}) | {words} |")
    return "\n".join(rows) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between places in the repository into links between places on the site."""
    uri = page.file.src_uri
    in_docs = (Path(config.docs_dir) / uri).is_file()
    here = PurePosixPath("docs", uri).parent if in_docs else PurePosixPath(uri).parent

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[1]))
        if target == "README.md":  # its place on the site is the front page
            return posixpath.relpath("index.md", posixpath.dirname(uri))
        if (ROOT / target).is_dir():
            target = posixpath.join(target, "README.md")
        on_site = target.removeprefix("docs/")
        if files.get_file_from_path(on_site) is None:
            return link[0]  # mkdocs says what is wrong with it
        return posixpath.relpath(on_site, posixpath.dirname(uri)) + (link[2] or "")

    return _LINK.sub(moved, markdown)
