// The worker of packages/testing/drill.py, in Go.
package main

import (
	"database/sql"
	"fmt"
	"log"
	"os"
	"strconv"

	_ "github.com/mattn/go-sqlite3"
	onewrite "onewrite.invalid/onewrite/onewrite-go"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func lines(db *sql.DB, query string) {
	rows, err := db.Query(query)
	check(err)
	defer rows.Close()
	columns, _ := rows.Columns()
	for rows.Next() {
		values := make([]string, len(columns))
		places := make([]any, len(columns))
		for i := range values {
			places[i] = &values[i]
		}
		check(rows.Scan(places...))
		for i, value := range values {
			if i > 0 {
				fmt.Print(" ")
			}
			fmt.Print(value)
		}
		fmt.Println()
	}
	check(rows.Err())
}

func main() {
	what, file := os.Args[1], os.Args[2]
	check(onewrite.Register())
	settings := map[string]string{"_busy_timeout": "60000"}
	if what == "wrong" {
		settings["logsize"] = "8m"
	}
	dsn := onewrite.DSN(file, settings)
	if what == "stock" {
		dsn = file
	}
	db, err := sql.Open("sqlite3", dsn)
	check(err)
	defer db.Close()
	switch what {
	case "wrong":
		fmt.Println(onewrite.Open(func() error { return db.Ping() }))
	case "stock":
		lines(db, "PRAGMA integrity_check")
		lines(db, "SELECT count(*) FROM t")
	case "read":
		lines(db, "SELECT writer, count(*), max(n) FROM t GROUP BY writer")
	default:
		_, err = db.Exec("CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)")
		check(err)
		if what == "status" {
			_, err = db.Exec("PRAGMA journal_mode=WAL; INSERT INTO t VALUES ('status', 0)")
			check(err)
			lines(db, "SELECT onewrite_status()")
			lines(db, "SELECT name || '=' || value FROM onewrite_stats WHERE name = 'commits'")
			return
		}
		count, _ := strconv.Atoi(os.Args[4])
		for n := 0; n < count; n++ {
			_, err = db.Exec("INSERT INTO t VALUES (?, ?)", os.Args[3], n)
			check(err)
			fmt.Println(n)
		}
	}
}
