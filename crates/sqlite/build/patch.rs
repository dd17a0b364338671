//! Patches SQLite's amalgamation. `balance_nonroot` gets another name, with onewrite's replacement
//! behind it. `sqlite3BtreeInsert` asks that before it writes a record, `sqlite3PagerSharedLock`
//! before it empties the cache. `sqlite3Pragma` names the column of an answer by the VFS after the
//! pragma. A source that is not as expected is refused, with the difference.

/// The definition as the replacement implements it, spaces and comments aside.
const DEFINITION: &str =
    "static int balance_nonroot(MemPage*pParent,int iParentIdx,u8*aOvflSpace,int isRoot,int bBulk){";

/// The one call, in `balance()`.
const CALL: &str = "rc=balance_nonroot(pParent,iIdx,pSpace,iPage==1,pCur->hints&BTREE_BULKLOAD);";

/// First line of the definition.
const START: &str = "static int balance_nonroot(";

/// First line of the function that begins a read transaction.
const BEGIN: &str = "SQLITE_PRIVATE int sqlite3PagerSharedLock(Pager *pPager){";

/// Its lines that change, each of which is there once: before and after.
pub const BEGIN_LINES: [(&str, &str); 2] = [
    (BEGIN, "static int owKeepsCache(Pager*);\nSQLITE_PRIVATE int sqlite3PagerSharedLock(Pager *pPager){"),
    ("        pager_reset(pPager);", "        if( !owKeepsCache(pPager) ) pager_reset(pPager);"),
];

/// First line of the function that writes records.
const INSERT: &str = "SQLITE_PRIVATE int sqlite3BtreeInsert(";

/// As [`BEGIN_LINES`].
pub const INSERT_LINES: [(&str, &str); 5] = [
    (
        "        return btreeOverwriteCell(pCur, pX);",
        "        if( owOverwrites(pCur) ) return btreeOverwriteCell(pCur, pX);",
    ),
    (
        "        return btreeOverwriteCell(pCur, &x2);",
        "        if( owOverwrites(pCur) ) return btreeOverwriteCell(pCur, &x2);",
    ),
    (
        "    if( info.nSize==szNew && info.nLocal==info.nPayload",
        "    if( info.nSize==szNew && info.nLocal==info.nPayload && owOverwrites(pCur)",
    ),
    (
        "    dropCell(pPage, idx, info.nSize, &rc);",
        "    if( owReplaceCell(pPage, idx, newCell, szNew, info.nSize, &rc) ) goto end_insert;\n    dropCell(pPage, idx, info.nSize, &rc);",
    ),
    ("  rc = insertCellFast(pPage, idx, newCell, szNew);", "  rc = owInsertCell(pPage, idx, newCell, szNew);"),
];

/// First line of the function that compiles pragmas.
const PRAGMA: &str = "SQLITE_PRIVATE void sqlite3Pragma(";

/// As [`BEGIN_LINES`]. SQLite names the column of an answer by a VFS after the answer.
pub const PRAGMA_LINES: [(&str, &str); 1] = [(
    "    sqlite3VdbeSetColName(v, 0, COLNAME_NAME, aFcntl[0], SQLITE_TRANSIENT);",
    "    pPragma = pragmaLocate(zLeft);\n    sqlite3VdbeSetColName(v, 0, COLNAME_NAME, pPragma ? pPragma->zName : aFcntl[0], SQLITE_TRANSIENT);",
)];

/// Name of SQLite's function in the patched source.
pub const STOCK: &str = "balance_nonroot_stock";

/// The patched source, which includes the file `include` behind SQLite's own function.
pub fn patch(source: &str, include: &str) -> Result<String, String> {
    let starts: Vec<usize> = lines(source).filter(|(_, line)| line.starts_with(START)).map(|(at, _)| at).collect();
    let [start] = starts[..] else {
        return Err(format!("expected one line that starts with `{START}`, found {}", starts.len()));
    };
    let rest = &source[start..];
    let head = &rest[..rest.find('{').ok_or("the definition of balance_nonroot has no body")? + 1];
    let found = squeeze(head);
    if found != squeeze(DEFINITION) {
        return Err(format!("balance_nonroot is defined as\n  {found}\nand not as\n  {}", squeeze(DEFINITION)));
    }
    let end = lines(rest).find(|(_, line)| *line == "}").ok_or("the definition of balance_nonroot does not end")?.0;
    let end = start + end + "}\n".len();

    let calls: Vec<&str> = calls(&source[end..]);
    let [call] = calls[..] else {
        return Err(format!("expected one call of balance_nonroot behind its definition, found {}", calls.len()));
    };
    if squeeze(call) != squeeze(CALL) {
        return Err(format!("balance_nonroot is called as\n  {}\nand not as\n  {}", squeeze(call), squeeze(CALL)));
    }
    if source.contains(STOCK) {
        return Err(format!("the source has a {STOCK} of its own"));
    }

    let renamed = rest[..end - start].replacen("balance_nonroot(", &format!("{STOCK}("), 1);
    let before = with_lines(&source[..start], BEGIN, &BEGIN_LINES)?;
    let behind = with_lines(&source[end..], INSERT, &INSERT_LINES)?;
    let behind = with_lines(&behind, PRAGMA, &PRAGMA_LINES)?;
    Ok(format!("{before}{renamed}#include \"{include}\"\n{behind}"))
}

/// The source, in which lines of the function that begins with the line `head` are others.
fn with_lines(source: &str, head: &str, changes: &[(&str, &str)]) -> Result<String, String> {
    let starts: Vec<usize> = lines(source).filter(|(_, line)| *line == head).map(|(at, _)| at).collect();
    let [start] = starts[..] else {
        return Err(format!("expected one line `{head}`, found {}", starts.len()));
    };
    let end = lines(&source[start..]).find(|(_, line)| *line == "}").ok_or_else(|| format!("`{head}` does not end"))?.0;
    let mut function = source[start..start + end].to_owned();
    for (before, after) in changes {
        let found: Vec<usize> = lines(&function).filter(|(_, line)| line == before).map(|(at, _)| at).collect();
        let [at] = found[..] else {
            return Err(format!("expected one line `{before}` in `{head}`, found {}", found.len()));
        };
        function.replace_range(at..at + before.len(), after);
    }
    Ok(format!("{}{function}{}", &source[..start], &source[start + end..]))
}

/// The lines with their offsets.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    text.split_inclusive('\n').map(move |line| {
        let here = at;
        at += line.len();
        (here, line.trim_end_matches(['\n', '\r']))
    })
}

/// The statements that call the function, comments aside.
fn calls(text: &str) -> Vec<&str> {
    let statements = lines(text).filter(|(_, line)| line.trim_start().starts_with("rc = balance_nonroot("));
    statements.map(|(at, _)| text[at..].split_inclusive(';').next().unwrap_or_default()).collect()
}

/// Without comments, and without spaces except between words.
fn squeeze(code: &str) -> String {
    let mut plain = String::new();
    let mut rest = code;
    while let Some(open) = rest.find("/*") {
        plain.push_str(&rest[..open]);
        plain.push(' ');
        rest = rest[open..].find("*/").map_or("", |close| &rest[open + close + 2..]);
    }
    plain.push_str(rest);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::new();
    for token in plain.split_whitespace() {
        if out.ends_with(is_word) && token.starts_with(is_word) {
            out.push(' ');
        }
        out.push_str(token);
    }
    out
}
