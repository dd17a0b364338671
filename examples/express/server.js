// Notes over HTTP with Express and better-sqlite3: `npm start`.
"use strict";

const Database = require("better-sqlite3");
const express = require("express");
const onewrite = require("onewrite");

const db = onewrite.open(Database, process.env.DATABASE ?? "notes.db", { timeout: 5000 });
db.exec("CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, text TEXT NOT NULL)");
const insert = db.prepare("INSERT INTO note (text) VALUES (?)");
const all = db.prepare("SELECT text FROM note ORDER BY id").pluck();
const status = db.prepare("SELECT onewrite_status()").pluck();

const app = express();
app.use(express.json());
app.get("/notes", (request, response) => response.json(all.all()));
app.post("/notes", (request, response) => {
  insert.run(request.body.text);
  response.status(201).json({});
});
app.get("/status", (request, response) => response.json({ onewrite: status.get() }));

const server = app.listen(process.env.PORT ?? 8000, "127.0.0.1");
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.on(signal, () => {
    server.closeAllConnections();
    server.close(() => db.close());
  });
}
