"""Check that every link inside a built site leads somewhere: ``check_site.py FOLDER``. Nothing is fetched."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the anchors and links of one tag."""
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src", "data"):
                self.links.add(value)


def broken(folder: Path) -> list[str]:
    """Return the links without a target, each with its page."""
    # Links in the theme's own files, and from source listings back to pages, are not written by us.
    listings = {"_static", "_modules"}
    pages = {path: Page(path) for path in sorted(folder.resolve().rglob("*.html"))}
    ours = {path: page for path, page in pages.items() if listings.isdisjoint(path.parts)}
    found = []
    for path, page in ours.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else None
            lost = parts.fragment and anchors is not None and unquote(parts.fragment) not in anchors
            if not target.exists() or lost:
                found.append(f"{path.relative_to(folder.resolve())}: {link}")
    if not ours:
        found.append(f"{folder} holds no page")
    print(f"{len(ours)} pages, {sum(len(page.links) for page in ours.values())} links")
    return found


if __name__ == "__main__":
    if lost := broken(Path(sys.argv[1])):
        sys.exit("check_site: broken links\n" + "\n".join(lost))
