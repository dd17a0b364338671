"""Looks at the libraries of an Android package: android.py TREE. Says the first thing that is wrong."""

import sys
from pathlib import Path

import lief

#: What every Android has had since API 21, and applications may link to.
OF_THE_SYSTEM = {"libc.so", "libdl.so", "libm.so"}
EXPORTS = set((Path(__file__).parent.parent / "c" / "onewrite.def").read_text().split()[1:])
MACHINES = {"arm64-v8a": "AARCH64", "armeabi-v7a": "ARM", "x86_64": "X86_64"}
#: The size of a page that Android 15 may have.
PAGE_BYTES = 16384


def look(abi: str, path: Path) -> str:
    binary = lief.parse(str(path))
    machine = binary.header.machine_type.name
    needed = set(binary.libraries)
    exports = {symbol.name for symbol in binary.exported_symbols}
    loads = [segment for segment in binary.segments if segment.type == lief.ELF.Segment.TYPE.LOAD]
    dynamic = {entry.tag.name for entry in binary.dynamic_entries}
    if machine != MACHINES[abi]:
        sys.exit(f"packages/android: {path} is for {machine}")
    if needed - OF_THE_SYSTEM:
        sys.exit(f"packages/android: {path} is linked to {sorted(needed - OF_THE_SYSTEM)}")
    if exports != EXPORTS:
        sys.exit(f"packages/android: {path} exports {sorted(exports ^ EXPORTS)} more or less than Linux's")
    if any(segment.alignment < PAGE_BYTES for segment in loads):
        sys.exit(f"packages/android: {path} cannot be mapped in pages of {PAGE_BYTES} bytes")
    if "TEXTREL" in dynamic or binary.get(lief.ELF.DynamicEntry.TAG.SONAME).name != "libonewrite.so":
        sys.exit(f"packages/android: {path} changes its code while it is loaded, or has another name")
    return f"{path}: {path.stat().st_size >> 10} KiB, {machine}, {len(exports)} exports, {', '.join(sorted(needed))}"


for abi in MACHINES:
    print(look(abi, Path(sys.argv[1]) / "jni" / abi / "libonewrite.so"))
