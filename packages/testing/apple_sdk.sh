# Read by packages/apple and packages/xcframework, which have `fail` and `root`: what links for Apple's systems on Linux. LLVM's
# linker comes with Rust, C is compiled by zig (from PyPI), and the system's symbols are those that zig knows of macOS, for iOS as well.
# Leaves `tools`, and `dir` with a linker, `dir/link`.

sysroot=$(rustc --print sysroot)
LLD=$(ls "$sysroot"/lib/rustlib/*/bin/gcc-ld/ld64.lld 2>/dev/null | head -1) || true
[ -n "$LLD" ] || fail 'this Rust toolchain has no ld64.lld: rustup brings it along'
tools=target/packages/apple
if [ ! -x "$tools/bin/cargo-zigbuild" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet ziglang cargo-zigbuild lief
fi
dir=$root/$tools/sdk
mkdir -p "$dir/usr/lib"

# LLVM's linker knows neither the newest processors nor Mac Catalyst.
"$tools/bin/python" - "$dir/usr/lib" <<'PY'
import pathlib, re, sys, ziglang
lib = pathlib.Path(sys.argv[1])
text = (pathlib.Path(ziglang.__file__).parent / "lib/libc/darwin/libSystem.tbd").read_text()
def known(match):
    targets = {target.strip().replace("arm64e-", "arm64-") for target in match[2].split(",")}
    targets = targets & {"arm64-macos", "x86_64-macos"} or {"x86_64-macos"}
    for mac in sorted(targets):
        targets |= {mac.replace("macos", system) for system in ("ios", "ios-simulator")}
    return f"{match[1]}[ {', '.join(sorted(targets))} ]"
(lib / "libSystem.tbd").write_text(re.sub(r"(targets:\s*)\[([^\]]*)\]", known, text))
for name in ("libc", "libm"):
    (lib / f"{name}.tbd").unlink(missing_ok=True)
    (lib / f"{name}.tbd").symlink_to("libSystem.tbd")
# Crates ask for these on every Mac, and nothing here uses them.
frameworks = lib.parent.parent / "System/Library/Frameworks/Foundation.framework"
frameworks.mkdir(parents=True, exist_ok=True)
for file, name in (
    (lib / "libiconv.tbd", "/usr/lib/libiconv.2.dylib"),
    (lib / "libobjc.tbd", "/usr/lib/libobjc.A.dylib"),
    (frameworks / "Foundation.tbd", "/System/Library/Frameworks/Foundation.framework/Versions/C/Foundation"),
):
    file.write_text(f"--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos, x86_64-macos ]\ninstall-name: {name}\n...\n")
PY

# The options of a compiler that links, as LLVM's linker has them.
cat >"$dir/link" <<'SH'
#!/usr/bin/env bash
arguments=(-dead_strip_dylibs)
for argument; do
    case $argument in
    -Wl,*) IFS=, read -ra parts <<<"${argument#-Wl,}"; arguments+=("${parts[@]}") ;;
    -mmacosx-version-min=*) arguments+=(-platform_version macos "${argument#*=}" "${argument#*=}") ;;
    -dynamiclib) arguments+=(-dylib) ;;
    -nodefaultlibs) ;;
    *) arguments+=("$argument") ;;
    esac
done
exec "$LLD" "${arguments[@]}" -syslibroot "$SDKROOT" -lSystem
SH
chmod +x "$dir/link"
export LLD SDKROOT=$dir PATH=$root/$tools/bin:$PATH

