// onewrite for Node: getting the library into the SQLite of a binding, and names that open through it.
"use strict";

const path = require("node:path");

const ENTRY = "sqlite3_onewrite_init";
const DEFAULT_ENTRY = "sqlite3_onewrite_default_init";

const LIBRARY = { win32: "onewrite.dll", darwin: "libonewrite.dylib" }[process.platform] ?? "libonewrite.so";

function platform() {
  const machine = `${process.platform}-${process.arch}`;
  if (process.platform !== "linux") return machine;
  return `${machine}-${process.report.getReport().header.glibcVersionRuntime ? "gnu" : "musl"}`;
}

/** The file that SQLite loads. */
function loadablePath() {
  const name = `onewrite-${platform()}`;
  try {
    return path.join(path.dirname(require.resolve(`${name}/package.json`)), LIBRARY);
  } catch {
    throw new Error(`onewrite: there is no package ${name} beside this one: npm install ${name}`);
  }
}

/**
 * Loads the library into the SQLite behind an open connection; it stays for the life of the process, and serves connections
 * that open afterwards. With `default: true` (or ONEWRITE_DEFAULT=1) every database that names no VFS is opened through it.
 */
function load(db, options = {}) {
  const file = loadablePath();
  const entry = options.default ? DEFAULT_ENTRY : ENTRY;
  if (typeof db.loadExtension !== "function") throw new TypeError("onewrite: this connection has no loadExtension");
  if (typeof db.pragma === "function") return void db.loadExtension(file, entry); // better-sqlite3
  if (typeof db.serialize === "function" && typeof db.configure === "function") {
    // sqlite3: the entry point cannot be named, but SQL can.
    return new Promise((resolve, reject) => {
      db.loadExtension(file, (error) => {
        if (error || !options.default) return error ? reject(error) : resolve();
        db.all("SELECT load_extension(?, ?)", [file, entry], (failed) => (failed ? reject(failed) : resolve()));
      });
    });
  }
  db.loadExtension(file); // node:sqlite
  if (options.default) db.prepare("SELECT load_extension(?, ?)").all(file, entry);
}

/** The URI that opens a file through onewrite: `uri("app.db", { log_size: "8m" })`. */
function uri(name, settings = {}) {
  const file = name.startsWith("file:") ? name : "file:" + encodeURI(name.replace(/^\/+/, "/")).replace(/[?#]/g, encodeURIComponent);
  const query = new URLSearchParams({ vfs: "onewrite", ...settings });
  return file + (file.includes("?") ? "&" : "?") + query;
}

/** What went wrong in onewrite's last failed call on this thread; null if the last error was not onewrite's. */
function lastError(Database) {
  const db = new Database(":memory:");
  try {
    return Object.values(db.prepare("SELECT onewrite_last_error()").get())[0];
  } catch {
    return null; // the library is not loaded into this SQLite
  } finally {
    db.close();
  }
}

/** Whether an error is of a kind that files have. Of others, as of wrong SQL, SQLite's message tells all, and the last reason is an older one's. */
function isOfAFile(error) {
  const kinds = { BUSY: 5, READONLY: 8, IOERR: 10, CORRUPT: 11, FULL: 13, CANTOPEN: 14, NOTADB: 26 };
  if (typeof error?.errcode === "number") return Object.values(kinds).includes(error.errcode & 0xff); // node:sqlite
  return typeof error?.code === "string" && Object.keys(kinds).includes(error.code.split("_")[1]); // better-sqlite3
}

/** Runs `action`, and adds onewrite's reason to the message of the error that it ends with: `explain(Database, () => db.exec(sql))`. */
function explain(Database, action) {
  try {
    return action();
  } catch (error) {
    const why = isOfAFile(error) ? lastError(Database) : null;
    if (why && !error.message.includes(why)) error.message += `: ${why}`;
    throw error;
  }
}

/** Classes whose SQLite has the library. */
const loaded = new WeakSet();

/**
 * Opens a database through onewrite: `open(Database, "app.db", { timeout: 5000 }, { log_size: "8m" })`, with the class of better-sqlite3
 * or `DatabaseSync` of node:sqlite. The error of an open that fails has onewrite's reason. better-sqlite3 cannot name a VFS, so that
 * onewrite becomes its default one.
 */
function open(Database, name, options = {}, settings = {}) {
  const takesUris = typeof Database.prototype.pragma !== "function"; // node:sqlite
  if (!loaded.has(Database)) {
    const loader = new Database(":memory:", takesUris ? { allowExtension: true } : {});
    try {
      load(loader, { default: !takesUris });
    } finally {
      loader.close();
    }
    loaded.add(Database);
  }
  return explain(Database, () => {
    if (takesUris) return new Database(uri(name, settings), options);
    const db = new Database(name, options);
    try {
      for (const [key, value] of Object.entries(settings)) db.pragma(`onewrite_${key}='${String(value).replace(/'/g, "''")}'`);
      db.pragma("schema_version"); // opens the file, which better-sqlite3 does not by itself
      return db;
    } catch (error) {
      db.close();
      throw error;
    }
  });
}

module.exports = { explain, lastError, load, loadablePath, open, uri };
