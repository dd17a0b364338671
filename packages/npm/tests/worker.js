// The worker of packages/testing/drill.py, over better-sqlite3 or (ONEWRITE_BINDING=node:sqlite) node:sqlite.
"use strict";
const onewrite = require("onewrite");
const [what, file, writer, count] = process.argv.slice(2);
const node = process.env.ONEWRITE_BINDING === "node:sqlite";
const Database = node ? require("node:sqlite").DatabaseSync : require("better-sqlite3");

function open(settings) {
  if (what === "stock") return new Database(file);
  const loader = new Database(":memory:", node ? { allowExtension: true } : {});
  onewrite.load(loader, { default: !node });
  const name = node ? onewrite.uri(file, settings) : file;
  const db = new Database(name, node ? {} : { timeout: 60000 });
  db.exec("PRAGMA busy_timeout=60000");
  return db;
}

if (what === "wrong") {
  try {
    if (node) open({ logsize: "8m" });
    else open().pragma("onewrite_logsize='8m'");
  } catch (e) {
    const asks = new Database(":memory:");
    console.log(e.message, "", Object.values(asks.prepare("SELECT onewrite_last_error()").get())[0]);
  }
} else {
  const db = open({});
  const all = (sql) => db.prepare(sql).all().map((row) => Object.values(row).join(" ")).join("\n");
  if (what === "stock") console.log(all("PRAGMA integrity_check"), all("SELECT count(*) FROM t"));
  else if (what === "read") console.log(all("SELECT writer, count(*), max(n) FROM t GROUP BY writer"));
  else {
    db.exec("CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)");
    if (what === "status") {
      db.exec("PRAGMA journal_mode=WAL");
      db.exec("INSERT INTO t VALUES ('status', 0)");
      console.log(all("SELECT onewrite_status()"));
      console.log(all("SELECT name || '=' || value FROM onewrite_stats WHERE name = 'commits'"));
    } else {
      const insert = db.prepare("INSERT INTO t VALUES (?, ?)");
      for (let n = 0; n < Number(count); n++) {
        insert.run(writer, n);
        require("node:fs").writeSync(1, n + "\n");
      }
    }
  }
  db.close();
}
