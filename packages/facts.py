#!/usr/bin/env python3
"""The project's facts, from Cargo.toml: `facts.py get KEY`, `facts.py fill TEMPLATE [FILE]`, `facts.py owner`, `facts.py keys`,
`facts.py addresses`.

In a template `@key@` stands for a fact. A list is written as JSON has it, which TOML and Ruby read, too. `owner` fails while
an address or an author is not set: names below `.invalid` belong to no owner. `addresses` writes the address that was set into the
sources that name it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from typing import Union
from xml.sax.saxutils import escape

try:
    import tomllib
except ImportError:  # Python 3.10 and older
    from pip._vendor import tomli as tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: What the registries call the owner of a well-known host.
GROUPS = {"github.com": "io.github", "gitlab.com": "io.gitlab", "bitbucket.org": "io.bitbucket"}

Facts = dict[str, Union[str, list[str]]]


def group(path: str) -> str:
    """Host and owner of an address as Maven writes them: github.com/owner/name is io.github.owner."""
    host, owner, *_ = path.split("/")
    return GROUPS.get(host, ".".join(reversed(host.split(".")))) + "." + owner.lower()


def facts(manifest: str = os.path.join(ROOT, "Cargo.toml")) -> Facts:
    with open(manifest, "rb") as file:
        workspace = tomllib.load(file)["workspace"]
    found = {key.replace("-", "_"): value for key, value in workspace["package"].items()}
    path = found["repository"].removeprefix("https://")
    places = {"repository": found["repository"], "path": path, "group": group(path)}
    for key, value in workspace["metadata"]["facts"].items():
        found[key] = value.format(**places)
    found["licenses"] = found["license"].split(" OR ")
    found["author"] = found["authors"][0]
    name, address = re.fullmatch(r"(.*) <(.*)>", found["author"]).groups()
    found.update(author_name=name, author_email=address)
    return found


def fill(text: str, known: Facts, is_xml: bool = False) -> str:
    def fact(match: re.Match[str]) -> str:
        value = known[match[1]]
        if not isinstance(value, str):
            return json.dumps(value)
        return escape(value) if is_xml else value

    return re.sub(r"@([a-z]+(?:_[a-z]+)*)@", fact, text)


def unset(known: Facts) -> list[str]:
    """The facts that only the owner knows, and has not set."""
    return [key for key in ("repository", "author") if re.search(r"\.invalid\b", str(known[key]))]


#: The address that sources name until the owner has set one.
NO_ADDRESS = "onewrite.invalid/onewrite/onewrite"


def write_addresses(path: str) -> list[str]:
    """Puts the owner's address into each file that names the one of no owner."""
    listed = subprocess.run(["git", "grep", "-lF", NO_ADDRESS], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    changed = [name for name in listed.stdout.split() if os.path.join(ROOT, name) != os.path.abspath(__file__)]
    for name in changed:
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            text = file.read()
        with open(os.path.join(ROOT, name), "w", encoding="utf-8") as file:
            file.write(text.replace(NO_ADDRESS, path))
    return changed


def main() -> None:
    known = facts()
    match sys.argv[1:]:
        case ["get", key]:
            value = known[key]
            print(value if isinstance(value, str) else "\n".join(value))
        case ["keys"]:
            print("\n".join(sorted(known)))
        case ["fill", template, *made] if len(made) < 2:
            with open(template, encoding="utf-8") as file:
                text = fill(file.read(), known, is_xml=".xml" in template)
            with open(made[0], "w", encoding="utf-8") if made else contextlib.nullcontext(sys.stdout) as file:
                file.write(text)
        case ["addresses"]:
            path = str(known["repository"]).removeprefix("https://")
            print("\n".join(write_addresses(path)) if path != NO_ADDRESS else "Cargo.toml has no other address yet")
        case ["owner"]:
            if missing := unset(known):
                sys.exit(f"Cargo.toml names no owner: set {' and '.join(missing)} of [workspace.package]")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
