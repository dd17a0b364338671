//! The table `onewrite_stats`: name, value and unit of each counter. It exists in every connection
//! without being created, and takes a schema: `SELECT * FROM onewrite_stats('aux')`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use onewrite_core::Stats;

use super::library::{Sql, status_of};
use crate::sqlite::api::c_text;
use crate::sqlite::ffi::{IndexInfo, Module, Opaque, Vtab, VtabCursor, code, sql};

/// Its methods. Without `xCreate` there is no `CREATE VIRTUAL TABLE` of it.
pub(crate) static MODULE: Module = Module {
    version: 1,
    create: None,
    connect: Some(connect),
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
};

const COLUMNS: &CStr = c"CREATE TABLE onewrite_stats(name TEXT, value NUMERIC, unit TEXT, schema TEXT HIDDEN)";
const SCHEMA: c_int = 3;

#[repr(C)]
struct StatsTable {
    base: Vtab,
    sql: &'static Sql,
    db: *mut Opaque,
}

#[repr(C)]
struct StatsCursor {
    base: VtabCursor,
    schema: String,
    rows: Vec<(String, String)>,
    at: usize,
}

// SQLite's promises for the callbacks below: `connect` and `open` made the tables and cursors, one
// thread at a time uses each, and pointers for answers are valid.

unsafe extern "C" fn connect(
    db: *mut Opaque,
    data: *mut c_void,
    _: c_int,
    _: *const *const c_char,
    table: *mut *mut Vtab,
    _: *mut *mut c_char,
) -> c_int {
    // SAFETY: see above; the data is a leaked `Sql`.
    unsafe {
        let Some(sql) = data.cast::<Sql>().as_ref() else { return code::INTERNAL };
        let rc = (sql.declare_vtab)(db, COLUMNS.as_ptr());
        if rc == code::OK {
            let base = Vtab { module: &raw const MODULE, references: 0, error: std::ptr::null_mut() };
            table.write(Box::into_raw(Box::new(StatsTable { base, sql, db })).cast());
        }
        rc
    }
}

unsafe extern "C" fn disconnect(table: *mut Vtab) -> c_int {
    // SAFETY: see above.
    drop(unsafe { Box::from_raw(table.cast::<StatsTable>()) });
    code::OK
}

/// The schema is an argument of `filter`, if there is one.
unsafe extern "C" fn best_index(_: *mut Vtab, info: *mut IndexInfo) -> c_int {
    // SAFETY: see above; both arrays have as many elements as there are constraints, and are null
    // if there are none.
    unsafe {
        let info = &mut *info;
        let count = usize::try_from(info.constraint_count).unwrap_or(0);
        info.index_number = 0;
        info.estimated_cost = 20.0;
        if count == 0 {
            return code::OK;
        }
        let constraints = slice::from_raw_parts(info.constraints, count);
        let usage = slice::from_raw_parts_mut(info.usage, count);
        for (constraint, usage) in constraints.iter().zip(usage) {
            if constraint.column != SCHEMA || constraint.op != sql::INDEX_CONSTRAINT_EQ || info.index_number != 0 {
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
    let fresh = StatsCursor { base: VtabCursor { vtab: table }, schema: String::new(), rows: Vec::new(), at: 0 };
    // SAFETY: see above.
    unsafe { cursor.write(Box::into_raw(Box::new(fresh)).cast()) };
    code::OK
}

unsafe extern "C" fn close(cursor: *mut VtabCursor) -> c_int {
    // SAFETY: see above.
    drop(unsafe { Box::from_raw(cursor.cast::<StatsCursor>()) });
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
        let cursor = &mut *cursor.cast::<StatsCursor>();
        let table = &mut *cursor.base.vtab.cast::<StatsTable>();
        let schema = if given != 0 { table.sql.text_of(arguments.read()) } else { None };
        (cursor, table, schema.unwrap_or_else(|| "main".to_owned()))
    };
    let name = c_text(&schema);
    // SAFETY: the connection that the table belongs to is open.
    let outcome = catch_unwind(AssertUnwindSafe(|| unsafe {
        match table.sql.pragma(table.db, &name, c"onewrite_stats") {
            Some(answer) => answer,
            None => Err(status_of(table.sql, table.db, &name)),
        }
    }));
    match outcome.unwrap_or_else(|_| Err("internal error".to_owned())) {
        Ok(text) => {
            let row = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
            cursor.rows = text.lines().filter_map(row).collect();
            (cursor.schema, cursor.at) = (schema, 0);
            code::OK
        }
        Err(why) => {
            // SQLite frees it, and has freed the text before it.
            table.base.error = table.sql.copy(&format!("onewrite_stats: {why}"));
            code::ERROR
        }
    }
}

unsafe extern "C" fn next(cursor: *mut VtabCursor) -> c_int {
    // SAFETY: see above.
    unsafe { (*cursor.cast::<StatsCursor>()).at += 1 };
    code::OK
}

unsafe extern "C" fn eof(cursor: *mut VtabCursor) -> c_int {
    // SAFETY: see above.
    let cursor = unsafe { &*cursor.cast::<StatsCursor>() };
    c_int::from(cursor.at >= cursor.rows.len())
}

unsafe extern "C" fn column(cursor: *mut VtabCursor, context: *mut Opaque, column: c_int) -> c_int {
    // SAFETY: see above; the context is that of this call.
    unsafe {
        let cursor = &*cursor.cast::<StatsCursor>();
        let sql = (*cursor.base.vtab.cast::<StatsTable>()).sql;
        let Some((name, value)) = cursor.rows.get(cursor.at) else { return code::OK };
        match (column, value.parse::<i64>(), value.parse::<f64>()) {
            (0, ..) => sql.answer(context, name),
            (1, Ok(number), _) => (sql.result_int64)(context, number),
            (1, _, Ok(number)) => (sql.result_double)(context, number),
            (1, ..) => sql.answer(context, value),
            (2, ..) => sql.answer(context, Stats::unit(name)),
            _ => sql.answer(context, &cursor.schema),
        }
    }
    code::OK
}

unsafe extern "C" fn rowid(cursor: *mut VtabCursor, rowid: *mut i64) -> c_int {
    // SAFETY: see above.
    unsafe { rowid.write(i64::try_from((*cursor.cast::<StatsCursor>()).at).unwrap_or(i64::MAX)) };
    code::OK
}
