//! The replacement under SQLite's own assertions (`proof.c`). Random operations run on two
//! databases, with and without faults. One splits by onewrite's policy, the other as stock SQLite
//! does, and both must hold the same rows.
//!
//! The long run, with `ONEWRITE_PROOF_OPERATIONS=100000` in the environment, is
//! `cargo test -p onewrite-sqlite --test suite -- proof --nocapture`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// Operations per combination where the environment does not say.
const SMOKE_OPERATIONS: u64 = 600;

const PAGE_SIZES: [u32; 8] = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];

const UNANSWERED: i32 = -1;
const STOCK: i32 = 0;
const LAZY: i32 = 1;
const LEGACY: i32 = 2;

fn operations() -> u64 {
    std::env::var("ONEWRITE_PROOF_OPERATIONS").map_or(SMOKE_OPERATIONS, |n| n.parse().unwrap())
}

/// The program, compiled from the patched source with `SQLITE_DEBUG`.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PROGRAM.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("proof");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-D_GNU_SOURCE", "-DSQLITE_DEBUG", "-DSQLITE_THREADSAFE=0", "-DSQLITE_OMIT_LOAD_EXTENSION"]);
        cc.arg("-I").arg(env!("OUT_DIR")).arg("-I").arg(here.join("src")).arg("-I").arg(here.join("../vfs/include"));
        cc.arg(here.join("tests/proof.c")).arg("-o").arg(&path).arg("-lm");
        let compiled = cc.output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        (dir, path)
    });
    path
}

/// One combination.
struct Case {
    page_bytes: u32,
    auto_vacuum: u32,
    secure_delete: &'static str,
    policy: i32,
    reserve_cells: u32,
    beside: bool,
    operations: u64,
    faults: bool,
}

/// Runs it, and adds how often each way was taken.
fn run(case: &Case, seed: u64, went: &mut BTreeMap<String, u64>) {
    let arguments = [
        case.page_bytes.to_string(),
        case.auto_vacuum.to_string(),
        case.secure_delete.to_owned(),
        case.policy.to_string(),
        case.reserve_cells.to_string(),
        u32::from(case.beside).to_string(),
        case.operations.to_string(),
        u32::from(case.faults).to_string(),
        seed.to_string(),
    ];
    let done = Command::new(program()).args(&arguments).output().unwrap();
    let out = String::from_utf8_lossy(&done.stdout).into_owned();
    let command = format!("proof {}", arguments.join(" "));
    assert!(done.status.success(), "{command}\n{out}{}", String::from_utf8_lossy(&done.stderr));
    println!("{command}: {}", out.trim());
    for (way, count) in out.split_whitespace().filter_map(|pair| pair.split_once('=')) {
        *went.entry(way.to_owned()).or_default() += count.parse().unwrap_or(0);
    }
}

fn assert_went(went: &BTreeMap<String, u64>, ways: &[&str]) {
    for way in ways {
        assert!(went.get(*way).is_some_and(|n| *n > 0), "no run took the way {way}: {went:?}");
    }
}

/// Every page size, auto-vacuum mode and secure-delete setting.
fn sweep(policy: i32, beside: bool, operations: u64, faults: bool) -> BTreeMap<String, u64> {
    let mut went = BTreeMap::new();
    let mut seed = 1;
    for page_bytes in PAGE_SIZES {
        for auto_vacuum in 0..3 {
            for secure_delete in ["off", "on"] {
                let reserve_cells = seed as u32 % 3;
                // Small pages make trees in which interior pages split, too.
                let operations = if page_bytes == PAGE_SIZES[0] { 5 * operations } else { operations };
                let case =
                    Case { page_bytes, auto_vacuum, secure_delete, policy, reserve_cells, beside, operations, faults };
                run(&case, seed, &mut went);
                seed += 1;
            }
        }
    }
    went
}

#[test]
fn lazy_splits_keep_the_tree_sound_and_the_rows_the_same() {
    let went = sweep(LAZY, false, operations(), false);
    assert_went(
        &went,
        &["table_leaf", "index_leaf", "table_inner", "index_inner", "left_sparse", "child_empty", "no_cut"],
    );
}

#[test]
fn records_beside_the_old_ones_keep_the_tree_sound_and_the_rows_the_same() {
    let went = sweep(LAZY, true, operations(), false);
    assert_went(&went, &["table_leaf", "index_leaf", "index_inner", "beside", "crowded", "defragmented"]);
    let went = sweep(STOCK, true, operations(), false);
    assert_went(&went, &["beside", "crowded", "defragmented"]);
}

#[test]
fn legacy_splits_keep_the_tree_sound_and_the_rows_the_same() {
    let went = sweep(LEGACY, false, operations(), false);
    assert_went(&went, &["table_leaf", "index_leaf", "table_inner", "index_inner", "sparse", "child_empty", "no_cut"]);
}

#[test]
fn a_failure_of_memory_or_disk_in_a_split_does_no_harm() {
    for (policy, beside) in [(LAZY, false), (LAZY, true), (LEGACY, false)] {
        let went = sweep(policy, beside, operations(), true);
        assert_went(&went, &["table_leaf", "index_leaf", "index_inner", "faults"]);
    }
}

#[test]
fn without_an_answer_the_file_is_stock_sqlites_to_the_byte() {
    for (seed, page_bytes) in PAGE_SIZES.into_iter().enumerate() {
        let mut went = BTreeMap::new();
        let case = Case {
            page_bytes,
            auto_vacuum: seed as u32 % 3,
            secure_delete: "off",
            policy: UNANSWERED,
            reserve_cells: 0,
            beside: false,
            operations: operations(),
            faults: false,
        };
        run(&case, seed as u64, &mut went);
        assert!(went.iter().all(|(way, n)| way == "pages" || *n == 0), "{went:?}");
    }
}
