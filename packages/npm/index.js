// onewrite for Node: getting the library into the SQLite of a binding, and names that open through it.
"use strict";

const path = require("node:path");

const ENTRY = "sqlite3_onewrite_init";
const DEFAULT_ENTRY = "sqlite3_onewrite_default_init";

function platform() {
  const musl = process.platform === "linux" && !process.report.getReport().header.glibcVersionRuntime;
  return `${process.platform}-${process.arch}-${musl ? "musl" : "gnu"}`;
}

/** The file that SQLite loads. */
function loadablePath() {
  const name = `onewrite-${platform()}`;
  try {
    return path.join(path.dirname(require.resolve(`${name}/package.json`)), "libonewrite.so");
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

module.exports = { load, loadablePath, uri };
