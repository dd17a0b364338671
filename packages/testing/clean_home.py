#!/usr/bin/env python3
"""Installs each package in a clean home directory, runs its README's first program, removes it, and looks what is left.

    packages/testing/clean_home.py [--seconds N] [PACKAGE]...

Root makes a new user for each package, who gets the system's tools alone; anyone else, and a tool that the system does not have, gets an
empty HOME and no other variable. The commands are those of the README, as packages/transcript types them. After the removal no file that
names onewrite may be left in the home directory or a directory for temporary files, but the log beside the database, and no process of the
user. A table has the result of each package. With --seconds, packages that would begin later are named and skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DIST = os.path.join(ROOT, "dist")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin"
TEMPORARY = ["/tmp", "/var/tmp", "/dev/shm"]
#: Where a package of the system puts files.
SYSTEM = ["/usr", "/etc", "/var/lib/dpkg/info"]
MARK = "\x1e"

_loader = importlib.machinery.SourceFileLoader("transcript", os.path.join(ROOT, "packages", "transcript"))
_spec = importlib.util.spec_from_loader("transcript", _loader)
assert _spec is not None
transcript = importlib.util.module_from_spec(_spec)
_loader.exec_module(transcript)


@dataclass
class Package:
    """What is typed after the README's program, and the tools that all of it needs."""

    remove: list[str]
    tools: list[str]
    #: Typed instead of the README's commands.
    instead: list[str] = field(default_factory=list)
    #: The directory of the README, where it is not the package's name.
    readme: str = ""
    as_root: bool = False


DEB = [
    'dpkg -i "$DIST"/onewrite_*_"$(dpkg --print-architecture)".deb',
    "onewrite --version",
    "sqlite3 app.db '.load libonewrite.so.0 sqlite3_onewrite_default_init' '.open app.db' 'CREATE TABLE note(text)' "
    "'SELECT onewrite_status()' | grep -x in_effect=yes",
    "onewrite check app.db",
]
GEM_HOME = "export GEM_HOME=$PWD/gems"
#: Those that take long come last.
PACKAGES = {
    "c": Package(['onewrite-*/install --remove "$PWD/prefix"', "rm -r onewrite-*"], ["cc", "pkg-config", "sqlite3"]),
    "deb": Package(["dpkg --purge onewrite", "! dpkg -s onewrite"], ["dpkg", "sqlite3"], instead=DEB, readme="c", as_root=True),
    "python": Package(["pip uninstall --quiet --yes onewrite", "! python -c 'import onewrite'"], ["python3"]),
    "php": Package(["rm -r onewrite"], ["php"]),
    "composer": Package(
        ["composer remove --quiet onewrite/onewrite", "rm -r onewrite"],
        ["php", "composer"],
        instead=[
            'mkdir onewrite && tar -C onewrite --strip-components=1 -xzf "$DIST"/onewrite-php-*-x86_64-gnu.tar.gz',
            "composer init --quiet --no-interaction --name=try/try",
            """composer config repositories.onewrite '{"type": "path", "url": "./onewrite", "options": {"symlink": false}}'""",
            "composer config repositories.packagist.org false",
            "composer require --quiet --no-interaction onewrite/onewrite",
            "sed -i 's|onewrite/src/Onewrite.php|vendor/autoload.php|' app.php",
            'php -d sqlite3.extension_dir="$PWD/vendor/onewrite/onewrite" app.php | grep -c in_effect=yes',
        ],
        readme="php",
    ),
    "ruby": Package(["gem uninstall --all --executables --silent onewrite"], ["ruby", "gem"]),
    "java": Package(["rm lib/onewrite-*.jar"], ["java", "javac", "mvn", "sqlite3"]),
    "go": Package(
        ["rm main.go && go mod edit -droprequire onewrite.invalid/onewrite/onewrite-go -dropreplace onewrite.invalid/onewrite/onewrite-go",
         "rm app"],
        ["go", "cc", "sqlite3"],
    ),
    "npm": Package(["npm uninstall --silent onewrite onewrite-linux-x64-gnu"], ["node", "npm"]),
    "rust": Package(["cargo clean --quiet && rm -r crates src Cargo.toml Cargo.lock"], ["cargo", "cc", "sqlite3"]),
}


@functools.cache
def of_machine() -> dict[str, str]:
    """The Rust toolchain, and the headers of Node that addons are compiled with: a user installs neither with a package."""
    variables = {}
    rustup = os.environ.get("RUSTUP_HOME", os.path.expanduser("~/.rustup"))
    if os.path.isdir(rustup):
        variables["RUSTUP_HOME"] = rustup
    if shutil.which("npm"):
        asked = subprocess.run(["npm", "config", "get", "nodedir"], stdout=subprocess.PIPE, text=True, check=False)
        if os.path.isdir(asked.stdout.strip()):
            variables["npm_config_nodedir"] = asked.stdout.strip()
    return variables


@dataclass
class Stranger:
    """A user, or no more than an empty home directory."""

    home: str
    user: str
    path: str

    def run(self, script: str, as_root: bool) -> subprocess.CompletedProcess[str]:
        variables = {"HOME": self.home, "PATH": self.path, "DIST": os.path.join(os.path.dirname(self.home), "dist"), "LANG": "C.UTF-8"}
        if not self.user:
            variables["TMPDIR"] = os.path.join(self.home, "tmp")
        variables |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "CARGO_TERM_COLOR": "never", "CGO_CFLAGS": "-O0"}
        # What reaches the registries from here is the machine's, not the user's.
        for name, value in os.environ.items():
            if name.lower().endswith(("_proxy", "goproxy", "_index_url", "gosumdb", "_cert_file", "_extra_ca_certs")):
                variables[name] = value
        variables |= of_machine()
        command = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), "bash", "-c", script]
        if self.user and not as_root:
            command = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups", *command]
        return subprocess.run(
            command, cwd=os.path.join(self.home, "project"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=900,
        )


@contextlib.contextmanager
def stranger(package: str, tools: list[str]) -> Iterator[Stranger]:
    directory = tempfile.mkdtemp(prefix="try-", dir="/var/tmp")
    os.chmod(directory, 0o755)
    shutil.copytree(DIST, os.path.join(directory, "dist"))
    home = os.path.join(directory, "home")
    has_all = all(shutil.which(tool, path=SYSTEM_PATH) for tool in tools)
    user = f"try-{package}-{os.getpid()}" if os.geteuid() == 0 and has_all and shutil.which("useradd") else ""
    try:
        if user:
            subprocess.run(["useradd", "--create-home", "--home-dir", home, "--user-group", user], check=True)
        os.makedirs(os.path.join(home, "project"))
        os.makedirs(os.path.join(home, "tmp"))
        if user:
            shutil.chown(os.path.join(home, "project"), user, user)
        yield Stranger(home, user, SYSTEM_PATH if has_all else os.environ["PATH"])
    finally:
        if user:
            subprocess.run(["userdel", user], check=True)
        shutil.rmtree(directory)


def names(directories: list[str], owner: str = "") -> set[str]:
    """The files below that name onewrite, of this owner or of all."""
    found = set()
    for directory in directories:
        for at, folders, files in os.walk(directory):
            for name in [*folders, *files]:
                path = os.path.join(at, name)
                if "onewrite" not in os.path.relpath(path, directory).lower():
                    continue
                with contextlib.suppress(OSError):
                    if not owner or os.lstat(path).st_uid == pwd.getpwnam(owner).pw_uid:
                        found.add(path)
    return found


def typed(package: Package, name: str, who: Stranger) -> list[str]:
    """The README's files are written, and its commands returned."""
    with open(os.path.join(ROOT, "packages", package.readme or name, "README.md"), encoding="utf-8") as file:
        text = file.read()
    commands = []
    for block in transcript.FENCE.finditer(text):
        if named := transcript.NAMED.search(text, 0, block.start()):
            path = os.path.join(who.home, "project", named[1])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(block[2])
            if who.user:
                for made in (path, os.path.dirname(path)):
                    shutil.chown(made, who.user, who.user)
        elif block[1] == "console":
            commands += [command for command, _ in transcript.parse(block[2])]
    return [transcript.here(command) for command in package.instead or commands]


def left(package: Package, who: Stranger, before: set[str]) -> list[str]:
    kept = os.path.join(who.home, "project", "app.db-onewrite")
    found = names([who.home]) - {kept}
    if who.user:
        # Others use these directories, too.
        found |= {path for path in names(TEMPORARY, who.user) - before if not path.startswith(who.home)}
    if package.as_root:
        found |= names(SYSTEM) - before
    if who.user:
        alive = subprocess.run(["ps", "-o", "pid=,args=", "-u", who.user], stdout=subprocess.PIPE, text=True, check=False).stdout
        found |= {f"process {line.strip()}" for line in alive.splitlines()}
    return sorted(found)


def attempt(name: str, package: Package) -> tuple[str, str]:
    """Whose home it was, and what went wrong, if anything did."""
    with stranger(name, package.tools) as who:
        before = names(SYSTEM if package.as_root else [])
        if who.user:
            # An earlier user had the same number.
            before |= names(TEMPORARY, who.user)
        commands = typed(package, name, who)
        script = "".join(f"{command}\nprintf '{MARK}%d{MARK}' $?\n" for command in [*commands, *package.remove])
        done = who.run(script, package.as_root)
        parts = done.stdout.split(MARK)
        for command, out, status in zip([*commands, *package.remove], parts[0::2], [*parts[1::2], "none"]):
            if status != "0":
                return "new user" if who.user else "empty HOME", f"$ {command}: status {status}: {out.strip()[-600:]}"
        found = left(package, who, before)
        return "new user" if who.user else "empty HOME", "left: " + ", ".join(found) if found else ""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=float("inf"))
    options.add_argument("packages", nargs="*", metavar="PACKAGE")
    given = options.parse_args()
    if unknown := set(given.packages) - set(PACKAGES):
        sys.exit(f"clean_home.py: no such package {', '.join(sorted(unknown))}; the packages are {' '.join(PACKAGES)}")
    # A signal ends it as an error does: users and directories go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    start = time.monotonic()
    bad = False

    def row(name: str, whose: str, result: str, seconds: float) -> None:
        print(f"{name:10}{whose:12}{seconds:5.0f}  {result}", flush=True)

    print(f"{'package':10}{'in':12}{'s':>5}  result", flush=True)
    for name in given.packages or PACKAGES:
        package = PACKAGES[name]
        missing = [tool for tool in package.tools if not shutil.which(tool, path=f"{SYSTEM_PATH}:{os.environ['PATH']}")]
        begun = time.monotonic()
        if begun - start > given.seconds:
            row(name, "", "skipped: no time is left", 0.0)
        elif missing:
            row(name, "", f"skipped: no {', '.join(missing)}", 0.0)
        elif package.as_root and os.geteuid() != 0:
            row(name, "", "skipped: only root installs it", 0.0)
        else:
            whose, wrong = attempt(name, package)
            bad |= bool(wrong)
            row(name, whose, f"FAILED: {wrong}" if wrong else "installed, ran, removed; nothing left", time.monotonic() - begun)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
