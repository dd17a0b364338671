//! The tables `onewrite_stats` (name, value and unit of each counter) and `onewrite_who` (the
//! processes that use the database). They exist in every connection without being created, and take
//! a schema: `SELECT * FROM onewrite_stats('aux')`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use onewrite_core::Stats;

use super::library::{Sql, status_of};
use crate::sqlite::api::c_text;
use crate::sqlite::ffi::{IndexInfo, Module, Opaque, Vtab, VtabCursor, code, sql};

/// Methods of each table. Without `xCreate` there is no `CREATE VIRTUAL TABLE` of it.
pub(super) static MODULES: [(&CStr, Module); 2] =
    [(c"onewrite_stats", methods::<STATS>()), (c"onewrite_who", methods::<WHO>())];

const fn methods<const N: usize>() -> Module {
    Module {
        version: 1,
        create: None,
        connect: Some(connect::<N>),
        best_index: Some(best_index),
        disconnect: Some(disconnect),
        destroy: None,
        open: Some(open),
        close: Some(close),
        filter: Some(filter),
        next: Some(next),
        eof: Some(eof),
        column: Some(column),
        rowid: Some(rowid),
        unused: [None; 7],
    }
}

const STATS: usize = 0;
const WHO: usize = 1;

/// A table whose rows are the lines of a pragma's answer.
struct PragmaTable {
    /// Of table and pragma.
    name: &'static CStr,
    columns: &'static CStr,
    /// The number of the hidden column.
    schema: c_int,
    row: fn(&str) -> Option<Vec<TableCell>>,
}

static TABLES: [PragmaTable; 2] = [
    PragmaTable {
        name: c"onewrite_stats",
        columns: c"CREATE TABLE onewrite_stats(name TEXT, value NUMERIC, unit TEXT, schema TEXT HIDDEN)",
        schema: 3,
        row: counter,
    },
    PragmaTable {
        name: c"onewrite_who",
        columns: c"CREATE TABLE onewrite_who(pid INTEGER, command TEXT, state TEXT, activity TEXT, \
            attached_s INTEGER, writing_s REAL, snapshots INTEGER, snapshot_s INTEGER, behind INTEGER, \
            ships INTEGER, locks TEXT, schema TEXT HIDDEN)",
        schema: 11,
        row: process,
    },
];

enum TableCell {
    Text(String),
    /// NULL if empty.
    Number(String),
}

fn counter(line: &str) -> Option<Vec<TableCell>> {
    let (name, value) = line.split_once('=')?;
    let value = TableCell::Number(value.to_owned());
    Some(vec![TableCell::Text(name.to_owned()), value, TableCell::Text(Stats::unit(name).to_owned())])
}

/// The facts of a process, in the order of the columns.
fn process(line: &str) -> Option<Vec<TableCell>> {
    let fact = |fact: &str| {
        let (name, value) = fact.split_once('=')?;
        let value = value.to_owned();
        Some(if matches!(name, "command" | "state" | "activity" | "locks") && !value.is_empty() {
            TableCell::Text(value)
        } else {
            TableCell::Number(value)
        })
    };
    line.split('\t').map(fact).collect()
}

#[repr(C)]
struct TableInstance {
    base: Vtab,
    shown: &'static PragmaTable,
    sql: &'static Sql,
    db: *mut Opaque,
}

#[repr(C)]
struct TableCursor {
    base: VtabCursor,
    schema: String,
    rows: Vec<Vec<TableCell>>,
    at: usize,
}

// SQLite's promises for the callbacks below: `connect` and `open` made the tables and cursors, one
// thread at a time uses each, and pointers for answers are valid.

unsafe extern "C" fn connect<const N: usize>(
    db: *mut Opaque,
    data: *mut c_void,
    _: c_int,
    _: *const *const c_char,
    table: *mut *mut Vtab,
    _: *mut *mut c_char,
) -> c_int {
    // SAFETY: see above; the data is a leaked `Sql`.
    unsafe {
        let (Some(sql), Some(shown)) = (data.cast::<Sql>().as_ref(), TABLES.get(N)) else { return code::INTERNAL };
        let Some((_, module)) = MODULES.get(N) else { return code::INTERNAL };
        let rc = (sql.declare_vtab)(db, shown.columns.as_ptr());
        if rc == code::OK {
            let base = Vtab { module: std::ptr::from_ref(module), references: 0, error: std::ptr::null_mut() };
            table.write(Box::into_raw(Box::new(TableInstance { base, shown, sql, db })).cast());
        }
        rc
    }
}

unsafe extern "C" fn disconnect(table: *mut Vtab) -> c_int {
    // SAFETY: see above.
    drop(unsafe { Box::from_raw(table.cast::<TableInstance>()) });
    code::OK
}

/// The schema is an argument of `filter`, if there is one.
unsafe extern "C" fn best_index(table: *mut Vtab, info: *mut IndexInfo) -> c_int {
    // SAFETY: see above; both arrays have as many elements as there are constraints, and are null
    // if there are none.
    unsafe {
        let info = &mut *info;
        let schema = (*table.cast::<TableInstance>()).shown.schema;
        let count = usize::try_from(info.constraint_count).unwrap_or(0);
        info.index_number = 0;
        info.estimated_cost = 20.0;
        if count == 0 {
            return code::OK;
        }
        let constraints = slice::from_raw_parts(info.constraints, count);
        let usage = slice::from_raw_parts_mut(info.usage, count);
        for (constraint, usage) in constraints.iter().zip(usage) {
            if constraint.column != schema || constraint.op != sql::INDEX_CONSTRAINT_EQ || info.index_number != 0 {
                continue;
            }
            if constraint.usable == 0 {
                return code::CONSTRAINT;
            }
            (usage.argv_index, usage.omit, info.index_number) = (1, 1, 1);
        }
    }
    code::OK
}

unsafe extern "C" fn open(table: *mut Vtab, cursor: *mut *mut VtabCursor) -> c_int {
    let fresh = TableCursor { base: VtabCursor { vtab: table }, schema: String::new(), rows: Vec::new(), at: 0 };
    // SAFETY: see above.
    unsafe { cursor.write(Box::into_raw(Box::new(fresh)).cast()) };
    code::OK
}

unsafe extern "C" fn close(cursor: *mut VtabCursor) -> c_int {
    // SAFETY: see above.
    drop(unsafe { Box::from_raw(cursor.cast::<TableCursor>()) });
    code::OK
}

unsafe extern "C" fn filter(
    cursor: *mut VtabCursor,
    given: c_int,
    _: *const c_char,
    _: c_int,
    arguments: *mut *mut Opaque,
) -> c_int {
    // SAFETY: see above; there is an argument if `best_index` asked for it.
    let (cursor, table, schema) = unsafe {
        let cursor = &mut *cursor.cast::<TableCursor>();
        let table = &mut *cursor.base.vtab.cast::<TableInstance>();
        let schema = if given != 0 { table.sql.text_of(arguments.read()) } else { None };
        (cursor, table, schema.unwrap_or_else(|| "main".to_owned()))
    };
    let name = c_text(&schema);
    // SAFETY: the connection that the table belongs to is open.
    let outcome = catch_unwind(AssertUnwindSafe(|| unsafe {
        match table.sql.pragma(table.db, &name, table.shown.name) {
            Some(answer) => answer,
            None => Err(status_of(table.sql, table.db, &name)),
        }
    }));
    match outcome.unwrap_or_else(|_| Err("internal error".to_owned())) {
        Ok(text) => {
            cursor.rows = text.lines().filter_map(table.shown.row).collect();
            (cursor.schema, cursor.at) = (schema, 0);
            code::OK
        }
        Err(why) => {
            // SQLite frees it, and has freed the text before it.
            table.base.error = table.sql.copy(&format!("{}: {why}", table.shown.name.to_string_lossy()));
            code::ERROR
        }
    }
}

unsafe extern "C" fn next(cursor: *mut VtabCursor) -> c_int {
    // SAFETY: see above.
    unsafe { (*cursor.cast::<TableCursor>()).at += 1 };
    code::OK
}

unsafe extern "C" fn eof(cursor: *mut VtabCursor) -> c_int {
    // SAFETY: see above.
    let cursor = unsafe { &*cursor.cast::<TableCursor>() };
    c_int::from(cursor.at >= cursor.rows.len())
}

unsafe extern "C" fn column(cursor: *mut VtabCursor, context: *mut Opaque, column: c_int) -> c_int {
    // SAFETY: see above; the context is that of this call.
    unsafe {
        let cursor = &*cursor.cast::<TableCursor>();
        let sql = (*cursor.base.vtab.cast::<TableInstance>()).sql;
        let Some(row) = cursor.rows.get(cursor.at) else { return code::OK };
        match usize::try_from(column).ok().and_then(|column| row.get(column)) {
            Some(TableCell::Text(text)) => sql.answer(context, text),
            Some(TableCell::Number(text)) => match (text.parse::<i64>(), text.parse::<f64>()) {
                (Ok(number), _) => (sql.result_int64)(context, number),
                (_, Ok(number)) => (sql.result_double)(context, number),
                _ if text.is_empty() => (sql.result_null)(context),
                _ => sql.answer(context, text),
            },
            None => sql.answer(context, &cursor.schema),
        }
    }
    code::OK
}

unsafe extern "C" fn rowid(cursor: *mut VtabCursor, rowid: *mut i64) -> c_int {
    // SAFETY: see above.
    unsafe { rowid.write(i64::try_from((*cursor.cast::<TableCursor>()).at).unwrap_or(i64::MAX)) };
    code::OK
}
