// sqlite3, worker threads, knex and drizzle, each over onewrite.
"use strict";
const assert = require("node:assert");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { Worker, isMainThread, workerData } = require("node:worker_threads");
const onewrite = require("onewrite");
const Database = require("better-sqlite3");

if (!isMainThread) {
  const db = new Database(workerData.file, { timeout: 60000 });
  for (let n = 0; n < 100; n++) db.prepare("INSERT INTO t VALUES (?)").run(n);
  assert.match(db.prepare("SELECT onewrite_status()").pluck().get(), /^in_effect=yes/);
  db.close();
} else main();

function optional(name) {
  try {
    return require(name);
  } catch (e) {
    console.log(`${name}: skipped, ${e.code || e.message}`);
    return null;
  }
}

async function main() {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), "onewrite-npm-"));
  const at = (name) => path.join(dir, name);
  try {
    const sqlite3 = optional("sqlite3");
    if (sqlite3) {
      await onewrite.load(await new Promise((done) => { const db = new sqlite3.Database(":memory:", () => done(db)); }));
      const flags = sqlite3.OPEN_URI | sqlite3.OPEN_READWRITE | sqlite3.OPEN_CREATE;
      const db = new sqlite3.Database(onewrite.uri(at("s 3.db"), { log_size: "8m" }), flags);
      const row = await new Promise((done, fail) => db.get("SELECT onewrite_status() AS s", (e, r) => (e ? fail(e) : done(r))));
      assert.match(row.s, /^in_effect=yes/);
      await new Promise((done) => db.close(done));
      assert.ok(fs.existsSync(at("s 3.db")));
      console.log("ok: sqlite3");
    }
    onewrite.load(new Database(":memory:"), { default: true });
    const db = new Database(at("threads.db"));
    db.exec("CREATE TABLE t(n)");
    const threads = [1, 2].map(() => new Promise((done, fail) => {
      new Worker(__filename, { workerData: { file: at("threads.db") } }).on("error", fail).on("exit", done);
    }));
    await Promise.all(threads);
    assert.strictEqual(db.prepare("SELECT count(*) FROM t").pluck().get(), 200);
    db.close();
    console.log("ok: worker threads");

    const withReason = (reason) => (error) => {
      assert.ok(error.message.includes(reason), error.message);
      assert.match(error.code, /^(ERR_)?SQLITE/);
      return true;
    };
    fs.mkdirSync(at("folder"));
    const classes = [Database];
    const [major, minor] = process.versions.node.split(".").map(Number);
    if (major > 23 || (major === 23 && minor >= 10)) classes.push(require("node:sqlite").DatabaseSync);
    for (const Class of classes) {
      const one = onewrite.open(Class, at("settings.db"), {}, { log_size: "8m" });
      assert.strictEqual(String(Object.values(one.prepare("PRAGMA onewrite_log_size").get())[0]), "8388608");
      assert.throws(() => onewrite.open(Class, at("folder")), withReason("Is a directory"));
      assert.throws(() => onewrite.explain(Class, () => one.exec("SELECT no_such")), (e) => e.message === "no such column: no_such");
      one.close();
      assert.match(onewrite.lastError(Class), /Is a directory/);
      assert.throws(() => onewrite.open(Class, at("new.db"), {}, { scheme: "fast" }), withReason("the choices are"));
    }
    console.log("ok: errors with their reasons");

    const knex = optional("knex");
    if (knex) {
      const k = knex({ client: "better-sqlite3", connection: { filename: at("knex.db") }, useNullAsDefault: true });
      await k.schema.createTable("note", (t) => t.string("text"));
      await k("note").insert({ text: "durable" });
      assert.match((await k.raw("SELECT onewrite_status() AS s"))[0].s, /^in_effect=yes/);
      assert.strictEqual((await k("note"))[0].text, "durable");
      await k.destroy();
      console.log("ok: knex");
    }
    const drizzle = optional("drizzle-orm/better-sqlite3");
    if (drizzle) {
      const { sqliteTable, text } = require("drizzle-orm/sqlite-core");
      const client = new Database(at("drizzle.db"));
      client.exec("CREATE TABLE note(text TEXT)");
      const note = sqliteTable("note", { text: text("text") });
      const d = drizzle.drizzle(client);
      d.insert(note).values({ text: "durable" }).run();
      assert.deepStrictEqual(d.select().from(note).all(), [{ text: "durable" }]);
      assert.match(client.prepare("SELECT onewrite_status()").pluck().get(), /^in_effect=yes/);
      client.close();
      console.log("ok: drizzle");
    }
  } finally {
    fs.rmSync(dir, { recursive: true });
  }
}
