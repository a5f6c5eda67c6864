# SPDX-License-Identifier: Apache-2.0
"""mkdocs hooks that turn the repository's pages into the site (mkdocs.yml).

README, CONTRIBUTING, CHANGELOG and SECURITY become pages. A link to a source file leads to a page that
shows the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent

# Pages outside docs/.
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security_policy.md",
}
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
_FETCHED = re.compile(r'<(?:script|img|link|iframe)[^>]* (?:src|href)="https?:[^"]*"')


def _source(uri: str) -> Path:
    """The source file of a page, relative to the repository."""
    for name, page in ELSEWHERE.items():
        if page == uri:
            return Path(name)
    return Path("docs") / uri


def _target(link: str, page: str) -> Path | None:
    """The file in the repository that a link on this page points to, if any."""
    path = Path(os.path.normpath(_source(page).parent / link))
    return path if (ROOT / path).is_file() else None


def _place(path: Path) -> str:
    """The place of a repository file on the site."""
    if str(path) in ELSEWHERE:
        return ELSEWHERE[str(path)]
    inside = path.parts[:1] == ("docs",)
    return "/".join(path.parts[1:]) if inside else f"source/{path}.md"


def _shown(path: Path) -> str:
    """A source file as a page."""
    kind = {".py": "python", ".h": "c", ".c": "c", ".yaml": "yaml"}.get(path.suffix, "text")
    return f"# {path}\n\n`````{kind}\n{(ROOT / path).read_text()}\n`````\n"


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages outside docs/ and one page for each linked source file."""
    for name, page in ELSEWHERE.items():
        if (ROOT / name).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    linked = {
        path
        for page in files.documentation_pages()
        for link in _LINK.findall((ROOT / _source(page.src_uri)).read_text())
        if (path := _target(link, page.src_uri)) and _place(path).startswith("source/")
    }
    for path in sorted(linked):
        files.append(File.generated(config, _place(path), content=_shown(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links for the site."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown

    def lead(match: re.Match[str]) -> str:
        path = _target(match[1], uri)
        return os.path.relpath(_place(path), Path(uri).parent) if path else match[1]

    return _LINK.sub(lead, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Fails the build if a page fetches anything from another host."""
    if found := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} fetches {found[0]}")
    return output
