"""Make README's links absolute and set the project's addresses before a release is built: ``links.py ADDRESS REF``.

A package index shows README by itself, where links into the repository would lead nowhere. ADDRESS is where the repository is published
(``https://host/owner/name``); REF is the tag. Changes README.md and pyproject.toml in the checkout that holds this script.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")


def absolute(text: str, address: str, ref: str) -> str:
    """Return the text of a page in the repository's root, with its links leading to the files at `ref`."""
    return _LINK.sub(lambda link: f"]({address}/blob/{ref}/{link[1]})", text)


def with_urls(pyproject: str, address: str, ref: str) -> str:
    """Return the metadata with the project's addresses inserted."""
    pages = {"Repository": "", "Documentation": f"/blob/{ref}/docs/index.md", "Changelog": f"/blob/{ref}/CHANGELOG.md"}
    urls = "".join(f'{name} = "{address}{path}"\n' for name, path in pages.items())
    head, mark, tail = pyproject.partition("[project.scripts]\n")
    if not mark:
        sys.exit("links: pyproject.toml has no [project.scripts], before which [project.urls] would go")
    return f"{head}[project.urls]\n{urls}\n{mark}{tail}"


def main(address: str, ref: str) -> None:
    """Change both files."""
    for name, change in (("README.md", absolute), ("pyproject.toml", with_urls)):
        path = ROOT / name
        path.write_text(change(path.read_text(encoding="utf-8"), address.rstrip("/"), ref), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
