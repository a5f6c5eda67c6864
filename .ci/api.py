# SPDX-License-Identifier: Apache-2.0
"""Writes the signatures and docstrings of public names into docs/api.md; without --write, checks them.

The page has a line `<!-- api: NAME -->` for each class, function or module. What follows the line, up to
`<!-- end -->`, is generated. Sources are read, not imported, so nothing has to be built.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/api.md"
_BLOCK = re.compile(r"<!-- api: ([\w.]+) -->\n.*?<!-- end -->", re.DOTALL)


def _is_public(name: str, found: griffe.Object | griffe.Alias) -> bool:
    return not name.startswith("_") and found.has_docstring


def _members(
    of: griffe.Object | griffe.Alias,
) -> Iterator[tuple[str, griffe.Object | griffe.Alias]]:
    """Yield what a module exports, or the public members of a class, in the order of the source.

    Members that override documented ones of a base are left out, unless they have another signature.
    """
    names = of.exports if of.is_module and of.exports is not None else None
    if names is not None:
        for name in sorted(str(each) for each in names):
            if of[name].has_docstring:
                yield name, of[name]
        return
    bases = [] if of.is_module else of.mro()
    known = {
        _signature(*each) for base in bases for each in base.members.items() if _is_public(*each)
    }
    for name, member in of.members.items():
        if of.is_module and member.is_alias:
            continue
        if _is_public(name, member) and _signature(name, member) not in known:
            yield name, member


def _signature(name: str, found: griffe.Object | griffe.Alias) -> str:
    if isinstance(found, griffe.Alias):
        found = found.final_target
    if isinstance(found, griffe.Class):
        return f"class {found.signature(name=name) or name}"
    if isinstance(found, griffe.Function):
        return ("async def " if "async" in found.labels else "") + str(found.signature(name=name))
    if isinstance(found, griffe.Attribute) and str(found.value).startswith("awaitable("):
        method = found.parent[str(found.value.arguments[0])]
        return f"async def {method.signature(name=name)}"
    if isinstance(found, griffe.Attribute) and found.annotation is not None:
        return f"{name}: {found.annotation}"
    return name


def _entry(level: int, name: str, found: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Yield the paragraphs about an object and its members."""
    yield f"{'#' * level} {name}"
    yield f"```text\n{_signature(name, found)}\n```"
    if found.docstring is not None:
        yield found.docstring.value
    if found.is_class:
        for member, inner in _members(found):
            yield from _entry(min(level + 1, 5), f"{name}.{member}", inner)


def _block(match: re.Match[str], packages: dict[str, griffe.Object | griffe.Alias]) -> str:
    path = match[1]
    package, _, rest = path.partition(".")
    found = packages[package][rest]
    if found.is_module:
        entries = [part for name, member in _members(found) for part in _entry(3, name, member)]
    else:
        entries = list(_entry(3, path.rpartition(".")[2], found))
    return "\n\n".join([f"<!-- api: {path} -->", *entries, "<!-- end -->"])


def main() -> int:
    """Write or check the page. Return the exit status."""
    logging.getLogger("griffe").setLevel(logging.ERROR)
    loader = griffe.GriffeLoader(search_paths=[ROOT], allow_inspection=False)
    packages = {name: loader.load(name) for name in ("rdmatensor", "graph_analyzer")}
    loader.resolve_aliases(implicit=True)
    old = PAGE.read_text()
    new = _BLOCK.sub(lambda match: _block(match, packages), old)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(new)
    elif new != old:
        print("docs/api.md is outdated: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
