"""Makes an XCFramework of the libraries for several targets, behind a look at the programs that were linked with them.

xcframework.py DIR OLDEST_IOS OLDEST_MACOS TARGET... reads DIR/TARGET/libonewrite.a and DIR/TARGET/links, and writes
DIR/onewrite.xcframework. Says the first thing that is wrong.
"""

import plistlib
import shutil
import sys
from pathlib import Path

from fat_macho import FatWriter
from macho import Wrong, look

ROOT = Path(__file__).parent.parent.parent
#: Platforms as LC_BUILD_VERSION has them.
PLATFORMS = {"ios": "IOS", "ios-simulator": "IOS_SIMULATOR", "macos": "MACOS"}


def slice_of(target):
    """The directory, and the processor as Apple names it."""
    cpu = "arm64" if target.startswith("aarch64") else "x86_64"
    if target.endswith("darwin"):
        return "macos", cpu
    return ("ios-simulator" if target.endswith("-sim") or cpu == "x86_64" else "ios"), cpu


def look_at(program, directory, cpu, oldest):
    binary = look(program, "EXECUTE", cpu.upper(), PLATFORMS[directory], oldest)
    if not binary.has_build_version:
        raise Wrong(f"{program} does not say for which platform it is")
    defined = {symbol.name for symbol in binary.symbols if symbol.value}
    if "_sqlite3_onewrite_init" not in defined or any(name.startswith("_sqlite3_open") for name in defined):
        raise Wrong(f"{program} has not onewrite, or has a SQLite")


def main(work, oldest_ios, oldest_macos, *targets):
    work = Path(work)
    framework = work / "onewrite.xcframework"
    cpus = {}
    for target in targets:
        directory, cpu = slice_of(target)
        cpus.setdefault(directory, {})[cpu] = (work / target / "libonewrite.a").read_bytes()
        look_at(work / target / "links", directory, cpu, oldest_macos if directory == "macos" else oldest_ios)
    libraries = []
    for directory, architectures in cpus.items():
        headers = framework / directory / "Headers"
        headers.mkdir(parents=True)
        for header in ("crates/vfs/include/onewrite.h", "packages/swift/module.modulemap"):
            shutil.copy(ROOT / header, headers)
        # One library has all processors of a system.
        fat = FatWriter()
        for library in architectures.values():
            fat.add(library)
        fat.write_to(str(framework / directory / "libonewrite.a"))
        system, _, variant = directory.partition("-")
        libraries.append(
            {
                "LibraryIdentifier": directory,
                "LibraryPath": "libonewrite.a",
                "HeadersPath": "Headers",
                "SupportedArchitectures": sorted(architectures),
                "SupportedPlatform": system,
                **({"SupportedPlatformVariant": variant} if variant else {}),
            }
        )
    about = {"AvailableLibraries": libraries, "CFBundlePackageType": "XFWK", "XCFrameworkFormatVersion": "1.0"}
    (framework / "Info.plist").write_bytes(plistlib.dumps(about))
    for library in libraries:
        print(f"{library['LibraryIdentifier']}: {', '.join(library['SupportedArchitectures'])}")


try:
    main(*sys.argv[1:])
except Wrong as why:
    sys.exit(f"packages/xcframework: {why}")
