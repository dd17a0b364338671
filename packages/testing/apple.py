"""Looks at what was linked for macOS: apple.py TARGET OLDEST EXTENSION DROP_IN COMMAND, `-` for none. Says the first thing that is wrong."""

import re
import sys
from pathlib import Path

from macho import Wrong, look

ROOT = Path(__file__).parent.parent.parent
# Rust exports all functions with a C name, and macOS has no way to take some back.
OF_RUST = {
    "onewrite_sqlite_connect",
    "onewrite_sqlite_init",
    "sqlite3_extension_init",
    "sqlite3_onewrite_default_init",
    "sqlite3_onewrite_init",
}


def expected(pattern_file, names):
    """The names that Linux's library of these names exports, by its version script."""
    text = Path(pattern_file).read_text()
    parts = re.search(r"global:(.*?)local:(.*?)\}", text, re.S)
    lists = [re.findall(r"[A-Za-z0-9_*]+", part) for part in parts.groups()]
    shown, hidden = [[re.compile(name.replace("*", ".*") + "$") for name in part if name != "*"] for part in lists]
    return {name for name in names if any(p.match(name) for p in shown) and not any(p.match(name) for p in hidden)}


def main(target, oldest, extension, drop_in, command):
    cpu = "ARM64" if target.startswith("aarch64") else "X86_64"
    for path, kind, name, script in (
        (extension, "DYLIB", "@rpath/libonewrite.dylib", "packages/c/onewrite.map"),
        (drop_in, "DYLIB", "@rpath/libsqlite3.dylib", "crates/sqlite/build.rs"),
        (command, "EXECUTE", None, None),
    ):
        if path == "-":
            continue
        binary = look(path, kind, cpu, "MACOS", oldest, name)
        exports = {symbol.name.removeprefix("_") for symbol in binary.exported_symbols}
        if script:
            wanted = expected(ROOT / script, exports)
            if exports - wanted - OF_RUST or len(wanted) < 5:
                raise Wrong(f"{path} exports {sorted(exports - wanted - OF_RUST)[:20]}, which Linux's does not")
        print(f"{path}: {kind} for {cpu}, macOS {oldest}, {len(exports)} exports, {', '.join(library.name for library in binary.libraries)}")


try:
    main(*sys.argv[1:])
except Wrong as why:
    sys.exit(f"packages/apple: {why}")
