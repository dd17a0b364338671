#!/usr/bin/env python3
"""Compares the manifests in dist/ with the project's facts: `manifests.py PACKAGE...`; `manifests.py crates` lists the crates to publish.

Each package must state version, licence, author and the addresses as Cargo.toml does, and hold both licences, its README and the changelog.
"""

from __future__ import annotations

import email
import fnmatch
import glob
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
import zipfile
from typing import Iterator, Union

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import facts as project  # noqa: E402

DIST = os.path.join(project.ROOT, "dist")
FACTS = project.facts()
VERSION = str(FACTS["version"])
PAPERS = ("LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md", "README.md")

Stated = dict[str, Union[str, list[str], None]]


class Artifact:
    """An archive: the names in it, and the bytes of one."""

    def __init__(self, path: str) -> None:
        self.name = os.path.basename(path)
        self.files: dict[str, bytes] = {}
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                self.files = {name: archive.read(name) for name in archive.namelist()}
        else:
            with tarfile.open(path) as archive:
                self.add(archive)

    def add(self, archive: tarfile.TarFile) -> None:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)):
                self.files[member.name.removeprefix("./")] = file.read()

    def one(self, pattern: str) -> bytes:
        found = [name for name in self.files if fnmatch.fnmatch(name, pattern)]
        if not found:
            raise SystemExit(f"FAILED: {self.name} has no {pattern}")
        return self.files[found[0]]

    def has(self, papers: tuple[str, ...]) -> None:
        for paper in papers:
            if not any(name == paper or name.endswith("/" + paper) for name in self.files):
                raise SystemExit(f"FAILED: {self.name} has no {paper}")


def artifacts(pattern: str) -> list[str]:
    found = sorted(glob.glob(os.path.join(DIST, pattern)))
    if not found:
        raise SystemExit(f"FAILED: dist has no {pattern}")
    return found


def python() -> Iterator[tuple[str, Stated]]:
    for path in artifacts(f"onewrite-{VERSION}-*.whl"):
        wheel = Artifact(path)
        wheel.has(PAPERS[:3])
        stated = email.message_from_bytes(wheel.one("*.dist-info/METADATA"))
        urls = dict(entry.split(", ", 1) for entry in stated.get_all("Project-URL"))
        yield wheel.name, {
            "name": stated["Name"], "version": stated["Version"], "license": stated["License-Expression"],
            "author": stated["Author-email"], "homepage": urls["Homepage"], "repository": urls["Repository"],
            "issues": urls["Issues"], "changelog": urls["Changelog"], "documentation": urls["Documentation"],
            "keywords": stated["Keywords"].split(","), "description": stated["Summary"],
        }
        if not stated.get_all("Classifier") or not stated.get_payload().strip():
            raise SystemExit(f"FAILED: {wheel.name} has no classifiers or no description")


def npm() -> Iterator[tuple[str, Stated]]:
    others = [path for system in ("darwin", "win32") for path in sorted(glob.glob(os.path.join(DIST, f"onewrite-{system}-*-{VERSION}.tgz")))]
    for path in artifacts(f"onewrite-{VERSION}.tgz") + artifacts(f"onewrite-linux-*-{VERSION}.tgz") + others:
        package = Artifact(path)
        package.has(PAPERS)
        stated = json.loads(package.one("package/package.json"))
        is_main = stated["name"] == FACTS["name"]
        if is_main:
            package.has((stated["types"], stated["main"]))
            wrong = {name: of for name, of in stated["optionalDependencies"].items() if of != VERSION}
            if wrong:
                raise SystemExit(f"FAILED: {package.name} asks for {wrong}")
        yield package.name, {
            "name": stated["name"] if is_main else None, "version": stated["version"], "license": stated["license"],
            "author": stated["author"], "homepage": stated["homepage"], "issues": stated["bugs"],
            "repository": stated["repository"]["url"].removeprefix("git+").removesuffix(".git"), "keywords": stated["keywords"],
            "description": stated["description"] if is_main else None,
        }


def binstall(archive: Artifact) -> None:
    """`cargo binstall` finds the archive, and the program in it, by the templates of crates/cli/Cargo.toml."""
    with open(os.path.join(project.ROOT, "crates", "cli", "Cargo.toml"), "rb") as file:
        manifest = project.tomllib.load(file)
    metadata, programs = manifest["package"]["metadata"]["binstall"], [program["name"] for program in manifest["bin"]]
    arch, libc = re.fullmatch(rf"onewrite-{re.escape(VERSION)}-(\w+)-linux-(\w+)\.tar\.gz", archive.name).groups()
    known = {"repo": str(FACTS["repository"]), "version": VERSION, "target-arch": arch, "target-libc": libc}

    def filled(template: str, **more: str) -> str:
        return re.sub(r"\{ ([a-z-]+) \}", lambda match: {**known, **more}[match[1]], template)

    url = filled(metadata["pkg-url"])
    if url != f"{FACTS['repository']}/releases/download/v{VERSION}/{archive.name}" or metadata["pkg-fmt"] != "tgz":
        raise SystemExit(f"FAILED: cargo binstall would look for {url}, not for {archive.name}")
    for program in programs:
        path = filled(metadata["bin-dir"], bin=program)
        if path not in archive.files:
            raise SystemExit(f"FAILED: cargo binstall would look for {path} in {archive.name}")


def c() -> Iterator[tuple[str, Stated]]:
    for path in artifacts(f"onewrite-{VERSION}-*-linux-*.tar.gz"):
        archive = Artifact(path)
        archive.has(PAPERS)
        lines = archive.one("*/onewrite.pc.in").decode().splitlines()
        stated = dict(line.split(": ", 1) for line in lines if ": " in line)
        yield archive.name, {
            "name": stated["Name"], "version": stated["Version"], "homepage": stated["URL"], "license": stated["License"],
            "description": stated["Description"],
        }
        binstall(archive)
    for path in glob.glob(os.path.join(DIST, f"onewrite_{VERSION}_*.deb")):
        fields = subprocess.run(["dpkg-deb", "--field", path], stdout=subprocess.PIPE, check=True).stdout
        stated = email.message_from_bytes(fields)
        tree = Artifact.__new__(Artifact)
        tree.name, tree.files = os.path.basename(path), {}
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE, check=True).stdout
        tree.add(tarfile.open(fileobj=io.BytesIO(data)))
        tree.has(("copyright", "changelog.gz", "changelog.Debian.gz", "onewrite.1.gz"))
        newest = gzip.decompress(tree.one("*/changelog.Debian.gz")).decode().split("(", 1)[1].split(")", 1)[0]
        yield tree.name, {
            "name": stated["Package"], "version": stated["Version"], "author": stated["Maintainer"], "homepage": stated["Homepage"],
            "description": str(FACTS["description"])[0] + stated["Description"].splitlines()[0][1:],
        }
        if newest != VERSION:
            raise SystemExit(f"FAILED: {tree.name}'s changelog is of {newest}")


def java() -> Iterator[tuple[str, Stated]]:
    for kind in ("", "-sources", "-javadoc"):
        jar = Artifact(artifacts(f"onewrite-{VERSION}{kind}.jar")[0])
        jar.has(PAPERS)
    maven = "{http://maven.apache.org/POM/4.0.0}"
    with open(artifacts(f"onewrite-{VERSION}.pom")[0], "rb") as file:
        text = file.read()
    if Artifact(artifacts(f"onewrite-{VERSION}.jar")[0]).one("META-INF/maven/*/pom.xml") != text:
        raise SystemExit("FAILED: the jar's pom is not the one beside it")
    pom = ElementTree.fromstring(text)

    def at(path: str) -> str:
        element = pom.find("/".join(maven + part for part in path.split("/")))
        return (element.text if element is not None else None) or ""

    names = pom.findall(f"{maven}licenses/{maven}license/{maven}name")
    yield f"onewrite-{VERSION}.pom", {
        "name": at("artifactId"), "maven_group": at("groupId"), "version": at("version"), "homepage": at("url"),
        "licenses": [name.text or "" for name in names], "repository": at("scm/url"), "issues": at("issueManagement/url"),
        "author_name": at("developers/developer/name"), "author_email": at("developers/developer/email"), "description": at("description"),
    }
    if at("dependencies/dependency/artifactId") != "sqlite-jdbc":
        raise SystemExit("FAILED: the pom does not ask for sqlite-jdbc")


def nuget() -> Iterator[tuple[str, Stated]]:
    for path in artifacts(f"onewrite.{VERSION}.nupkg"):
        package = Artifact(path)
        package.has((*PAPERS, "[Content_Types].xml", "_rels/.rels", "contentFiles/cs/any/Onewrite.cs"))
        if not any(fnmatch.fnmatch(name, "runtimes/*/native/*onewrite.*") for name in package.files):
            raise SystemExit(f"FAILED: {package.name} has no library")
        schema = "{http://schemas.microsoft.com/packaging/2013/05/nuspec.xsd}"
        stated = {element.tag.removeprefix(schema): element for element in ElementTree.fromstring(package.one("*.nuspec"))[0]}
        text = {name: element.text or "" for name, element in stated.items()}
        yield package.name, {
            "name": text["id"], "version": text["version"], "license": text["license"], "homepage": text["projectUrl"],
            "repository": stated["repository"].get("url"), "author_name": text["authors"], "description": text["description"],
        }


def ruby() -> Iterator[tuple[str, Stated]]:
    show = """require "json"; spec = Gem::Package.new(ARGV[0]).spec
puts JSON.generate(name: spec.name, version: spec.version, licenses: spec.licenses, homepage: spec.homepage, description: spec.summary,
  author_name: spec.author, author_email: spec.email.first, repository: spec.metadata["source_code_uri"],
  issues: spec.metadata["bug_tracker_uri"], changelog: spec.metadata["changelog_uri"],
  documentation: spec.metadata["documentation_uri"], files: spec.files)"""
    for path in artifacts(f"onewrite-{VERSION}-*.gem"):
        answer = subprocess.run(["ruby", "-r", "rubygems/package", "-e", show, path], stdout=subprocess.PIPE, check=True).stdout
        stated = json.loads(answer)
        if missing := {*PAPERS, "lib/libonewrite.so"} - set(stated.pop("files")):
            raise SystemExit(f"FAILED: {os.path.basename(path)} has no {missing}")
        yield os.path.basename(path), stated


def php() -> Iterator[tuple[str, Stated]]:
    for path in artifacts(f"onewrite-php-{VERSION}-*.tar.gz"):
        archive = Artifact(path)
        archive.has(PAPERS)
        stated = json.loads(archive.one("*/composer.json"))
        yield archive.name, {
            "name": stated["name"].split("/")[1], "version": stated["version"], "licenses": stated["license"],
            "homepage": stated["homepage"], "issues": stated["support"]["issues"], "repository": stated["support"]["source"],
            "documentation": stated["support"]["docs"], "keywords": stated["keywords"], "author_name": stated["authors"][0]["name"],
            "author_email": stated["authors"][0]["email"], "description": stated["description"],
        }


def go() -> Iterator[tuple[str, Stated]]:
    module = os.path.join(DIST, "go")
    for paper in PAPERS:
        if not os.path.exists(os.path.join(module, paper)):
            raise SystemExit(f"FAILED: the Go module has no {paper}")
    with open(os.path.join(module, "go.mod"), encoding="utf-8") as file:
        stated = file.readline().split()[1]
    if "." not in stated.split("/")[0]:
        raise SystemExit(f"FAILED: no one can fetch the Go module {stated}")
    for name in ("README.md", "onewrite.go"):
        with open(os.path.join(module, name), encoding="utf-8") as file:
            if f'"{stated}"' not in file.read():
                raise SystemExit(f"FAILED: {name} of the Go module does not import it as {stated}")
    yield "go.mod", {"go_module": stated}


def crates() -> list[str]:
    """In the order in which they have to be published."""
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1", "--manifest-path", os.path.join(project.ROOT, "Cargo.toml")]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["packages"]
    # `publish = false` is an empty list of registries.
    needs = {package["name"]: {of["name"] for of in package["dependencies"] if of["kind"] != "dev"}
             for package in found if package["publish"] != []}
    order: list[str] = []
    while left := sorted(set(needs) - set(order)):
        ready = [name for name in left if not needs[name] & set(left)]
        if not ready:
            raise SystemExit(f"FAILED: {left} depend on each other")
        order += ready
    return order


def rust() -> Iterator[tuple[str, Stated]]:
    for crate in crates():
        archive = Artifact(artifacts(f"{crate}-{VERSION}.crate")[0])
        archive.has(PAPERS)
        stated = project.tomllib.loads(archive.one("*/Cargo.toml").decode())["package"]
        yield archive.name, {
            "version": stated["version"], "license": stated["license"], "authors": stated["authors"], "keywords": stated["keywords"],
            "categories": stated["categories"], "repository": stated["repository"], "rust_version": stated["rust-version"],
        }
        if "docs" not in stated.get("metadata", {}):
            raise SystemExit(f"FAILED: {archive.name} says nothing to docs.rs")


def main() -> None:
    if sys.argv[1:] == ["crates"]:
        print("\n".join(crates()))
        return
    for package in sys.argv[1:]:
        for name, stated in globals()[package]():
            for key, value in stated.items():
                fact = FACTS[key]
                # A description goes on with the language's bindings.
                fits = str(value).startswith(str(fact)) if key == "description" else value == fact
                if value is not None and not fits:
                    raise SystemExit(f"FAILED: {name} states {key} {value!r}, Cargo.toml {fact!r}")
            print(f"ok: {name} states the project's facts")


if __name__ == "__main__":
    main()
