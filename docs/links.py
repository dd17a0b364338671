#!/usr/bin/env python3
"""Links of the documents: `links.py check` tries them all, `links.py book` those of the book; without an argument it is mdBook's preprocessor for book.toml.

docs/SUMMARY.md names pages outside of docs/, too. In the book each gets a place below its root, links between pages lead to these
places, and links to other files lead into the repository.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
import sys
from html.parser import HTMLParser

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUMMARY = "docs/SUMMARY.md"
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^()\s]+)(\))")
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)


def prose(text: str) -> list[str]:
    """The text outside and inside of fences, in turn."""
    return FENCE.split(text)


def read(path: str) -> str:
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def target(page: str, link: str) -> str | None:
    """The file of the repository that a link on a page names; None for an address."""
    if re.match(r"[a-z]+:", link):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) if link else page
    readme = posixpath.join(path, "README.md")
    return readme if os.path.isdir(os.path.join(ROOT, path)) and os.path.exists(os.path.join(ROOT, readme)) else path


def place(page: str) -> str:
    """Where the book has a page of the repository."""
    if page == "README.md":
        return "introduction.md"
    path = re.sub(r"(?<=.)/README\.md$", ".md", page).lower()
    return path.removeprefix("docs/")


def pages() -> list[str]:
    links = [match[2] for match in LINK.finditer(read(SUMMARY))]
    return [target(SUMMARY, link) or link for link in links]


def anchors(text: str) -> set[str]:
    """As forges and mdBook name headings."""
    found: set[str] = set()
    for line in "".join(prose(text)[0::2]).splitlines():
        if heading := re.match(r"#+ (.*)", line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            found.add(name if name not in found else f"{name}-1")
    return found


def check() -> list[str]:
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    documents = [name for name in tracked.stdout.split() if not os.path.islink(os.path.join(ROOT, name)) and os.path.exists(os.path.join(ROOT, name))]
    wrong: list[str] = []
    links = 0
    for page in documents:
        for match in LINK.finditer("".join(prose(read(page))[0::2])):
            link, _, anchor = match[2].partition("#")
            path = target(page, link)
            if path is None:
                continue
            links += 1
            if not os.path.exists(os.path.join(ROOT, path)):
                wrong.append(f"{page}: there is no {link}")
            elif anchor and anchor not in anchors(read(path)):
                wrong.append(f"{page}: {path} has no heading {anchor}")
    in_book = pages()
    wrong += [f"{SUMMARY} does not name {page}" for page in documents
              if page.startswith(("docs/", "examples/")) and page != SUMMARY and page not in in_book]
    wrong += [f"{SUMMARY} names {page} twice" for page in in_book if in_book.count(page) > 1]
    if not wrong:
        print(f"ok: {links} links in {len(documents)} documents, {len(in_book)} pages of the book")
    return wrong


def rewritten(page: str, text: str, in_book: list[str], repository: str) -> str:
    def link(match: re.Match[str]) -> str:
        to, hash_, anchor = match[2].partition("#")
        path = target(page, to)
        if path is None or not to:
            return match[0]
        if path in in_book:
            to = posixpath.relpath(place(path), posixpath.dirname(place(page)) or ".")
        else:
            kind = "tree" if os.path.isdir(os.path.join(ROOT, path)) else "blob"
            to = f"{repository}/{kind}/main/{path}"
        return match[1] + to + hash_ + anchor + match[3]

    parts = prose(text)
    parts[0::2] = [LINK.sub(link, part) for part in parts[0::2]]
    return "".join(parts)


class Page(HTMLParser):
    """The addresses and the names of an HTML page."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for key, value in attributes:
            if key in ("href", "src") and value:
                self.links.append(value)
            if key == "id" and value:
                self.names.add(value)


def check_book() -> list[str]:
    """The links of the book as mdBook made it, and its search."""
    book = os.path.join(ROOT, "target", "book")
    # The page of errors names the place where the book is served, and the printed one has no anchors of single pages.
    found = {os.path.join(folder, name) for folder, _, names in os.walk(book) for name in names if name.endswith(".html")}
    made = {path: Page(path) for path in found if os.path.basename(path) not in ("404.html", "print.html", "toc.html")}
    wrong = [f"the book has no {place(page)}" for page in pages()
             if os.path.join(book, place(page).removesuffix(".md") + ".html") not in made]
    for path, page in made.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            to, _, anchor = link.partition("#")
            file = os.path.normpath(os.path.join(os.path.dirname(path), to)) if to else path
            if not os.path.exists(file) or anchor and file in made and anchor not in made[file].names:
                wrong.append(f"the book's {os.path.relpath(path, book)} leads to {link}, which is not there")
    if not any(name.startswith("searchindex") for name in os.listdir(book)):
        wrong.append("the book has no search")
    if not wrong:
        print(f"ok: {sum(len(page.links) for page in made.values())} links in the book's {len(made)} pages, target/book/index.html")
    return wrong


def preprocess() -> None:
    sys.path.insert(0, os.path.join(ROOT, "packages"))
    import facts

    _, book = json.load(sys.stdin)
    repository = str(facts.facts()["repository"])
    in_book = pages()

    def visit(items: list) -> None:
        for item in items:
            chapter = item.get("Chapter") if isinstance(item, dict) else None
            if chapter and chapter["path"]:
                page = posixpath.normpath(posixpath.join("docs", chapter["path"]))
                chapter["path"] = place(page)
                chapter["content"] = rewritten(page, chapter["content"], in_book, repository)
            if chapter:
                visit(chapter["sub_items"])

    visit(book.get("items") or book["sections"])
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check"]:
            if wrong := check():
                sys.exit("\n".join(wrong))
        case ["book"]:
            if wrong := check_book():
                sys.exit("\n".join(wrong))
        case ["supports", _]:
            pass
        case []:
            preprocess()
        case _:
            sys.exit(__doc__)
