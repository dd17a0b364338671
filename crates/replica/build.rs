//! Keeps the entry points of the extension `onewrite`, which is linked in for its declarations, out
//! of this library's exports: SQLite would find them first.

use std::path::PathBuf;
use std::{env, fs};

/// rustc's own list of exports, which zig's linker leaves out, would have each of these.
const EXPORTS: &str = "{
  global: sqlite3_onewritereplica_init;
  local: sqlite3_extension_init; sqlite3_onewrite_init; sqlite3_onewrite_default_init; onewrite_last_error;
         onewrite_register_api; onewrite_version; *;
};
";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
        let map = out.join("exports.map");
        fs::write(&map, EXPORTS).expect("OUT_DIR is writable");
        // rustc has a version script of its own. lld adds a second one to it, GNU ld refuses two.
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
        println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    }
}
