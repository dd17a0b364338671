//! The build patches SQLite's source, or names the change in it.

#[path = "../../build/patch.rs"]
mod patch;

use std::fs;
use std::path::Path;

/// The least source with all that the patch looks for.
const SOURCE: &str = "
static int other(void){
  return 0; /* balance_nonroot() */
}
SQLITE_PRIVATE int sqlite3PagerSharedLock(Pager *pPager){
        pager_reset(pPager);
}
/* About it. */
static int balance_nonroot(
  MemPage *pParent,               /* Parent page of siblings being balanced */
  int iParentIdx,                 /* Index of \"the page\" in pParent */
  u8 *aOvflSpace,                 /* page-size bytes of space for parent ovfl */
  int isRoot,                     /* True if pParent is a root-page */
  int bBulk                       /* True if this call is part of a bulk load */
){
  if( bBulk ){
    return 1;
  }
  return 0;
}
static int balance(BtCursor *pCur){
  rc = balance_nonroot(pParent, iIdx, pSpace, iPage==1,
                       pCur->hints&BTREE_BULKLOAD);
  return rc;
}
SQLITE_PRIVATE int sqlite3BtreeInsert(
  BtCursor *pCur
){
        return btreeOverwriteCell(pCur, pX);
        return btreeOverwriteCell(pCur, &x2);
    if( info.nSize==szNew && info.nLocal==info.nPayload
    dropCell(pPage, idx, info.nSize, &rc);
  rc = insertCellFast(pPage, idx, newCell, szNew);
}
SQLITE_PRIVATE void sqlite3Pragma(
  Parse *pParse
){
    sqlite3VdbeSetColName(v, 0, COLNAME_NAME, aFcntl[0], SQLITE_TRANSIENT);
}
";

/// The source the library was built from, as patched.
fn built_source() -> String {
    fs::read_to_string(Path::new(env!("OUT_DIR")).join("sqlite3.c")).unwrap()
}

#[test]
fn the_function_is_renamed_and_the_replacement_follows_it() {
    let patched = patch::patch(SOURCE, "split.c").unwrap();
    let stock = patched.find("static int balance_nonroot_stock(").unwrap();
    let include = patched.find("}\n#include \"split.c\"\nstatic int balance(").unwrap();
    assert!(stock < include);
    assert_eq!(patched.matches("balance_nonroot(").count(), 2, "the call and the comment are untouched");
    let mut undone = patched.replace("_stock(", "(").replace("#include \"split.c\"\n", "");
    for (before, after) in patch::INSERT_LINES.into_iter().chain(patch::BEGIN_LINES).chain(patch::PRAGMA_LINES) {
        assert_eq!(undone.matches(after).count(), 1, "{after}");
        undone = undone.replace(after, before);
    }
    assert_eq!(undone, SOURCE, "nothing else changed");
}

#[test]
fn the_pinned_source_was_patched_once() {
    let source = built_source();
    assert_eq!(source.matches("static int balance_nonroot_stock(").count(), 1);
    assert_eq!(source.matches("#include \"split.c\"").count(), 1);
    let refused = patch::patch(&source, "split.c").unwrap_err();
    assert!(refused.contains("found 0"), "{refused}");
}

#[test]
fn a_source_that_changed_is_refused_with_the_change() {
    let twice = format!("{SOURCE}{SOURCE}");
    let cases = [
        (SOURCE.replace("static int balance_nonroot(", "int balance_nonroot("), "found 0"),
        (SOURCE.replace("static int balance_nonroot(", "static int balance_nonroot2("), "found 0"),
        (twice, "found 2"),
        (SOURCE.replace("int isRoot, ", "u8 isRoot, "), "u8 isRoot"),
        (SOURCE.replace("  int bBulk  ", "  int bBulk, int bMore  "), "int bMore"),
        (SOURCE.replace("pCur->hints&BTREE_BULKLOAD", "pCur->hints"), "pCur->hints)"),
        (SOURCE.replace("rc = balance_nonroot(", "rc = balance_all("), "found 0"),
        (SOURCE.replace("  return rc;", "  rc = balance_nonroot(0, 0, 0, 0, 0);"), "found 2"),
        (SOURCE.replace("\n}\n", "\n }\n"), "does not end"),
        (SOURCE.replace("int other", "int balance_nonroot_stock"), "of its own"),
        (SOURCE.replace("int sqlite3BtreeInsert", "int sqlite3BtreeInsert2"), "found 0"),
        (SOURCE.replace("int sqlite3PagerSharedLock", "int sqlite3PagerShared"), "found 0"),
        (SOURCE.replace("  pager_reset(pPager);", "  pager_reset(pPager, 0);"), "pager_reset"),
        (SOURCE.replace("nPayload\n", "nPayload )\n"), "found 0"),
        (SOURCE.replace("  rc = insertCellFast(", "  rc = insertCell("), "insertCellFast"),
        (SOURCE.replace("void sqlite3Pragma", "int sqlite3Pragma"), "found 0"),
        (SOURCE.replace("COLNAME_NAME, aFcntl[0]", "COLNAME_NAME, zLeft"), "aFcntl[0]"),
    ];
    for (source, says) in cases {
        assert_ne!(source, SOURCE);
        let refused = patch::patch(&source, "split.c").unwrap_err();
        assert!(refused.contains(says), "{refused}\nshould say {says}");
    }
}

#[test]
fn a_mutilated_copy_of_the_pinned_source_is_refused() {
    let original = built_source().replace("balance_nonroot_stock(", "balance_nonroot(");
    let mut original = original.replace("#include \"split.c\"\n", "");
    for (before, after) in patch::INSERT_LINES.into_iter().chain(patch::BEGIN_LINES).chain(patch::PRAGMA_LINES) {
        original = original.replace(after, before);
    }
    assert!(patch::patch(&original, "split.c").is_ok());
    let mutilated = original.replace("  int isRoot,                     /* True", "  /* True");
    assert_ne!(mutilated, original);
    let refused = patch::patch(&mutilated, "split.c").unwrap_err();
    assert!(refused.contains("u8*aOvflSpace,int bBulk"), "{refused}");
}
