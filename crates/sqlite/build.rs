//! Builds the SQLite inside this crate: the pinned registry package's amalgamation, patched, with
//! Debian's compile-time options and onewrite registered when SQLite initialises.

#[path = "build/patch.rs"]
mod patch;

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Debian's compile-time options, in the order `PRAGMA compile_options` lists them. Debian's
/// `ENABLE_UPDATE_DELETE_LIMIT` is missing: it changes the parser, which an amalgamation has ready
/// made.
const OPTIONS: [(&str, Option<&str>); 27] = [
    ("SQLITE_ENABLE_COLUMN_METADATA", None),
    ("SQLITE_ENABLE_DBSTAT_VTAB", None),
    ("SQLITE_ENABLE_FTS3", None),
    ("SQLITE_ENABLE_FTS3_PARENTHESIS", None),
    ("SQLITE_ENABLE_FTS3_TOKENIZER", None),
    ("SQLITE_ENABLE_FTS4", None),
    ("SQLITE_ENABLE_FTS5", None),
    ("SQLITE_ENABLE_LOAD_EXTENSION", None),
    ("SQLITE_ENABLE_MATH_FUNCTIONS", None),
    ("SQLITE_ENABLE_PREUPDATE_HOOK", None),
    ("SQLITE_ENABLE_RTREE", None),
    ("SQLITE_ENABLE_SESSION", None),
    ("SQLITE_ENABLE_STMTVTAB", None),
    ("SQLITE_ENABLE_UNLOCK_NOTIFY", None),
    ("SQLITE_HAVE_ISNAN", None),
    ("SQLITE_LIKE_DOESNT_MATCH_BLOBS", None),
    ("SQLITE_MAX_DEFAULT_PAGE_SIZE", Some("32768")),
    ("SQLITE_MAX_SCHEMA_RETRY", Some("25")),
    ("SQLITE_MAX_VARIABLE_NUMBER", Some("250000")),
    ("SQLITE_OMIT_LOOKASIDE", None),
    ("SQLITE_SECURE_DELETE", None),
    ("SQLITE_SOUNDEX", None),
    ("SQLITE_TEMP_STORE", Some("1")),
    ("SQLITE_THREADSAFE", Some("1")),
    ("SQLITE_USE_URI", None),
    // onewrite is registered before the first connection can open.
    ("SQLITE_EXTRA_INIT_MUTEXED", Some("onewrite_sqlite_init")),
    // Its SQL functions, which cannot be registered at that moment.
    ("SQLITE_EXTRA_AUTOEXT", Some("onewrite_sqlite_connect")),
];

/// The findings of SQLite's configure script for mingw.
const WINDOWS: [&str; 2] = ["HAVE_INTTYPES_H", "HAVE_STDINT_H"];

/// The findings of SQLite's configure script on macOS.
const APPLE: [&str; 8] = [
    "HAVE_GMTIME_R",
    "HAVE_INTTYPES_H",
    "HAVE_ISNAN",
    "HAVE_LOCALTIME_R",
    "HAVE_STDINT_H",
    "HAVE_STRERROR_R",
    "HAVE_USLEEP",
    "_REENTRANT",
];

/// The findings of Debian's configure script on Linux.
const PLATFORM: [&str; 12] = [
    "HAVE_FDATASYNC",
    "HAVE_GMTIME_R",
    "HAVE_INTTYPES_H",
    "HAVE_ISNAN",
    "HAVE_LOCALTIME_R",
    "HAVE_MALLOC_USABLE_SIZE",
    "HAVE_MALLOC_H",
    "HAVE_POSIX_FALLOCATE",
    "HAVE_STDINT_H",
    "HAVE_STRERROR_R",
    "HAVE_USLEEP",
    "_REENTRANT",
];

/// The exports of the shared library: SQLite's API and `onewrite.h`. Not the entry points of the
/// loadable extension: a program looks those up in an extension and all it depends on, and would
/// find these.
const EXPORTS: &str = "{
  global: sqlite3_*; sqlite3changegroup_*; sqlite3changeset_*; sqlite3rebaser_*; sqlite3session_*; onewrite_*;
  local: sqlite3_extension_init; sqlite3_onewrite_init; sqlite3_onewrite_default_init; onewrite_sqlite_init; onewrite_sqlite_connect;
};
";

fn main() {
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let sqlite = env::var("DEP_SQLITE3_INCLUDE").expect(
        "libsqlite3-sys did not say where its amalgamation is (DEP_SQLITE3_INCLUDE): see crates/sqlite/UPGRADE.md",
    );
    let sqlite = Path::new(&sqlite);
    let original = sqlite.join("sqlite3.c");
    println!("cargo:rerun-if-changed={}", original.display());
    for ours in ["build.rs", "build/patch.rs", "src/split.c", "../vfs/include/onewrite.h"] {
        println!("cargo:rerun-if-changed={ours}");
    }

    let source = fs::read_to_string(&original).unwrap_or_else(|e| panic!("{}: {e}", original.display()));
    let patched = patch::patch(&source, "split.c").unwrap_or_else(|changed| {
        panic!("{} cannot be patched: {changed}\nSee crates/sqlite/UPGRADE.md.", original.display())
    });
    let patched_path = out.join("sqlite3.c");
    fs::write(&patched_path, patched).expect("OUT_DIR is writable");
    for header in ["sqlite3.h", "sqlite3ext.h"] {
        fs::copy(sqlite.join(header), out.join(header)).expect("OUT_DIR is writable");
    }

    let mut cc = cc::Build::new();
    cc.file(&patched_path).include(&out).include(here.join("src")).include(here.join("../vfs/include"));
    // An unoptimised SQLite is several times slower, and its own assertions are tested elsewhere.
    // Level 1 compiles in half the time of 2.
    let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if !release {
        cc.debug(false);
    }
    cc.opt_level(if release { 2 } else { 1 }).flag("-fno-strict-aliasing").warnings(false).cargo_metadata(false);
    if release {
        // Else loops begin where the code before them happens to end, and no function that programs
        // may call becomes part of its callers: a scan took 11 % longer.
        for aligned in ["functions", "loops", "jumps"] {
            cc.flag_if_supported(format!("-falign-{aligned}=64"));
        }
        cc.flag_if_supported("-fno-semantic-interposition");
    }
    for (name, value) in OPTIONS {
        cc.define(name, value);
    }
    let is_windows = env::var("CARGO_CFG_WINDOWS").is_ok();
    let is_apple = env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor == "apple");
    let platform = if is_windows {
        // The library's exports, with those of Rust's functions that it has, too.
        cc.define("SQLITE_API", "__declspec(dllexport)");
        &WINDOWS[..]
    } else if is_apple {
        &APPLE[..]
    } else {
        // TMPDIR and SQLITE_TMPDIR, too, are the user's choice and not a privileged program's.
        cc.define("_GNU_SOURCE", None).define("getenv", "secure_getenv");
        &PLATFORM[..]
    };
    for name in platform {
        cc.define(name, "1");
    }
    cc.compile("onewrite_sqlite3_c");
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static:+whole-archive=onewrite_sqlite3_c");
    if is_apple {
        for names in ["sqlite3_*", "sqlite3changegroup_*", "sqlite3changeset_*", "sqlite3rebaser_*", "sqlite3session_*"]
        {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-exported_symbol,_{names}");
        }
        println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libsqlite3.dylib");
    }
    if is_windows || is_apple {
        return;
    }
    println!("cargo:rustc-link-lib=m");

    // rustc hides every symbol of C in a shared library with a version script of its own. lld adds
    // a second one to it, GNU ld refuses two.
    let exports = out.join("exports.map");
    fs::write(&exports, EXPORTS).expect("OUT_DIR is writable");
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", exports.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsqlite3.so.0");
    // Else SQLite calls its own functions through a table, as if a program could replace them.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    name_for_the_loader(&out);
}

/// Leaves `<target dir>/<profile>/drop-in/libsqlite3.so.0`, a link to the library: the directory to
/// put into `LD_LIBRARY_PATH`. Not beside the library, where cargo's own `LD_LIBRARY_PATH` would
/// give it to every program that tests start.
fn name_for_the_loader(out: &Path) {
    // OUT_DIR is <profile>/build/<package>/out.
    let Some(profile) = out.ancestors().nth(3) else { return };
    let dir = profile.join("drop-in");
    fs::create_dir_all(&dir).expect("the target directory is writable");
    for name in ["libsqlite3.so.0", "libsqlite3.so"] {
        let link = dir.join(name);
        if fs::symlink_metadata(&link).is_err() {
            #[cfg(unix)]
            std::os::unix::fs::symlink("../libsqlite3.so", &link).expect("the target directory is writable");
        }
    }
}
