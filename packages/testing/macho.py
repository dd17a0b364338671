"""Looks at what was linked for Apple's systems."""

import lief

SYSTEM = "/usr/lib/libSystem.B.dylib"


class Wrong(Exception):
    """A file is not what it should be."""


def look(path, kind, cpu, platform, oldest, name=None):
    """The file, if it is a `kind` for this processor and this oldest system, and needs libSystem alone; `name` is a library's own."""
    binary = lief.MachO.parse(str(path)).at(0)
    header = binary.header
    if header.cpu_type.name != cpu or header.file_type.name != kind:
        raise Wrong(f"{path} is a {header.file_type.name} for {header.cpu_type.name}, not a {kind} for {cpu}")
    # Older systems than LC_BUILD_VERSION have a command without a platform.
    has_platform = binary.has_build_version
    version = binary.build_version.minos if has_platform else binary.version_min.version
    if version[:2] != [int(part) for part in oldest.split(".")] or (has_platform and binary.build_version.platform.name != platform):
        raise Wrong(f"{path} is not for {platform} {oldest}: it says {version}")
    # macOS ends a program for ARM that has no signature.
    if cpu == "ARM64" and platform == "MACOS" and not binary.has_code_signature:
        raise Wrong(f"{path} is not signed")
    libraries = [library.name for library in binary.libraries]
    if libraries != ([name] if name else []) + [SYSTEM]:
        raise Wrong(f"{path} has the libraries {libraries}")
    return binary
