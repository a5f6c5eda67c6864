# SPDX-License-Identifier: Apache-2.0
"""What the package tells package indexes and pip about itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

FOR_USERS = {"jax", "torch", "analyzer", "demo", "metrics", "simulate", "topology"}
FOR_USERS |= {"tensorflow", "tensorflow-cpu"}
REPOSITORY = "https://github.com/someone/rdmatensor"
PREPARE = "import setuptools.build_meta as b, sys; b.prepare_metadata_for_build_wheel(sys.argv[1])"
LINK = re.compile(r"!?\[[^]]*\]\(([^)\s]+)\)")


def test_extras_are_what_users_are_told_of(root: Path) -> None:
    """Tests, linters and the like are dependency groups, which no index sees."""
    told = metadata.metadata("rdmatensor").get_all("Provides-Extra") or []
    assert set(told) == FOR_USERS
    files = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("rdmatensor/**/*.py")]
    named = {
        name for file in files for name in re.findall(r"\brdmatensor\[([\w-]+)\]", file.read_text())
    }
    assert named and named <= FOR_USERS


def prepared(root: Path, place: Path, **variables: str) -> Message:
    """The metadata of a wheel that would be built of a copy of the sources."""
    pytest.importorskip("setuptools", minversion="77")
    sources = place / "sources"
    sources.mkdir(parents=True)
    for name in ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(root / name, sources)
    for name in ("rdmatensor", "graph_analyzer", "csrc/include"):
        shutil.copytree(root / name, sources / name)
    kept = {name: value for name, value in os.environ.items() if name != "RDMATENSOR_REPOSITORY"}
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, place],
        cwd=sources,
        env=kept | variables,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (file,) = place.glob("*.dist-info/METADATA")
    return Parser().parsestr(file.read_text(encoding="utf-8"))


def test_readme_leads_to_the_repository(root: Path, tmp_path: Path) -> None:
    found = prepared(root, tmp_path, RDMATENSOR_REPOSITORY=REPOSITORY + "/")
    text, tag = str(found.get_payload()), f"v{found['Version']}"
    links = LINK.findall(text)
    assert len(links) == len(LINK.findall((root / "README.md").read_text())) > 30
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [link.removeprefix(REPOSITORY) for link in links if link.startswith(REPOSITORY)]
    for link in ours:
        kind, path = re.fullmatch(rf"/(blob|raw)/{tag}/([^#]+)(?:#.*)?", link).groups()  # type: ignore[union-attr]
        assert (root / path).is_file(), link
        assert (kind == "raw") == path.endswith((".svg", ".png")), link
    urls = dict(line.split(", ") for line in found.get_all("Project-URL") or [])
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} == set(urls)
    assert all(url.startswith(REPOSITORY) for url in urls.values())
    assert found["Author"] and found["Keywords"] and found["License-Expression"] == "Apache-2.0"


def test_readme_renders_as_an_index_shows_it(root: Path, tmp_path: Path) -> None:
    markdown = pytest.importorskip("readme_renderer.markdown", reason="no readme-renderer[md]")
    found = prepared(root, tmp_path, RDMATENSOR_REPOSITORY=REPOSITORY)
    assert found["Description-Content-Type"] == "text/markdown"
    page = markdown.render(str(found.get_payload()))
    assert page is not None
    assert page.count("<table>") == len(
        re.findall(r"^\|[-| ]+\|$", (root / "README.md").read_text(), re.MULTILINE)
    )
    assert 'src="https://' in page and "<pre" in page


def test_no_address_is_made_up(root: Path, tmp_path: Path) -> None:
    """A build that is not told where the sources are published names no place."""
    found = prepared(root, tmp_path)
    assert found.get_all("Project-URL") is None
    assert found.get_payload() == (root / "README.md").read_text()
