#!/usr/bin/env python3
"""Moves the tree to a version: `versions.py set VERSION`. Changelog, Cargo.toml, and the texts that name a file by its version.

`versions.py try` does so with texts of its own and checks what comes out.
"""

from __future__ import annotations

import datetime
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import facts as project  # noqa: E402

UNRELEASED = "## Unreleased\n"
#: Texts that name crates by their version.
NAMING = ["packages/rust/README.md", "examples/go/go.mod", "examples/express/package.json", "examples/rust/Cargo.toml"]


class Refused(Exception):
    """The version cannot be released."""


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def changelog(text: str, version: str, day: str) -> str:
    head, found, rest = text.partition(UNRELEASED)
    if f"## {version} " in rest:
        raise Refused(f"the changelog has {version} already")
    if not found or not re.match(r"\s*(?!## )\S", rest):
        raise Refused("the changelog has nothing under Unreleased")
    return f"{head}{UNRELEASED}\n## {version} ({day})\n{rest}"


def manifest(text: str, old: str, new: str) -> str:
    """The version of the workspace, and the one that its crates ask of each other."""
    text, count = re.subn(rf'^version = "{re.escape(old)}"$', f'version = "{new}"', text, count=1, flags=re.M)
    if count != 1:
        raise Refused(f"Cargo.toml does not state {old}")
    return re.sub(rf'(path = "crates/[^"]*", version = "){re.escape(old)}"', rf'\g<1>{new}"', text)


def naming(text: str, old: str, new: str) -> str:
    """`onewrite-0.1.0`, `onewrite = "0.1"`, `"onewrite": "^0.1.0"`, `onewrite-go v0.1.0`."""
    short = ".".join(old.split(".")[:2]), ".".join(new.split(".")[:2])
    text = re.sub(rf"((?:onewrite[\w-]*|[\w-]+-go)(?:-| v|\": \"\^)){re.escape(old)}\b", rf"\g<1>{new}", text)
    return re.sub(rf'^(onewrite = (?:\{{ version = )?"){re.escape(short[0])}"', rf'\g<1>{short[1]}"', text, flags=re.M)


def edit(path: str, change) -> None:
    path = os.path.join(project.ROOT, path)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(change(text))


def move(new: str) -> None:
    old = str(project.facts()["version"])
    # The first release has the version that the tree was begun with.
    if numbers(new) < numbers(old):
        raise Refused(f"{new} is older than {old}")
    day = datetime.date.today().isoformat()
    edit("CHANGELOG.md", lambda text: changelog(text, new, day))
    edit("Cargo.toml", lambda text: manifest(text, old, new))
    for path in NAMING:
        edit(path, lambda text: naming(text, old, new))
    print(f"ok: {old} became {new}")


def trial() -> None:
    def refused(*arguments: str) -> bool:
        try:
            changelog(*arguments)
        except Refused:
            return True
        return False

    made = changelog("# Changelog\n\n## Unreleased\n\n- It is faster.\n\n## 0.1.0 (2026-01-01)\n", "0.2.0", "2026-02-02")
    assert made == "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-02-02)\n\n- It is faster.\n\n## 0.1.0 (2026-01-01)\n", made
    assert refused(made, "0.3.0", "2026-03-03"), "nothing is under Unreleased"
    assert refused("## Unreleased\n\n- More.\n\n## 0.2.0 (2026-02-02)\n", "0.2.0", "2026-03-03"), "it was released"
    workspace = '[workspace.package]\nversion = "0.1.0"\na = { path = "crates/a", version = "0.1.0" }\nlog = { version = "0.1.0" }\n'
    assert manifest(workspace, "0.1.0", "0.2.0") == workspace.replace("0.1.0", "0.2.0", 2)
    for old in ('onewrite = "0.1"', 'path = "crates/onewrite-core-0.1.0"', '"onewrite": "^0.1.0"', "example.com/onewrite-go v0.1.0",
                'onewrite = { version = "0.1", path = "a" }'):
        new = naming(old, "0.1.0", "0.2.0")
        assert new == old.replace("0.1", "0.2"), new
    assert naming("onewrite-0.1.01", "0.1.0", "0.2.0") == "onewrite-0.1.01"
    assert numbers("0.10.0") > numbers("0.9.1")
    # Every text still names what is replaced in it.
    version = str(project.facts()["version"])
    for path in NAMING:
        with open(os.path.join(project.ROOT, path), encoding="utf-8") as file:
            text = file.read()
        assert naming(text, version, "9.8.7") != text, f"{path} names no version"
    print("ok: versions")


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["set", version]:
                move(version)
            case ["try"]:
                trial()
            case _:
                sys.exit(__doc__)
    except Refused as why:
        sys.exit(f"packages/release: {why}")
