// Notes over HTTP with net/http and go-sqlite3: `go run .`
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/mattn/go-sqlite3"
	onewrite "onewrite.invalid/onewrite/onewrite-go"
)

type server struct{ db *sql.DB }

func (s server) index(w http.ResponseWriter, r *http.Request) {
	rows, err := s.db.QueryContext(r.Context(), "SELECT text FROM note ORDER BY id")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer rows.Close()
	notes := []string{}
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		notes = append(notes, text)
	}
	if err := rows.Err(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	json.NewEncoder(w).Encode(notes)
}

func (s server) create(w http.ResponseWriter, r *http.Request) {
	var note struct{ Text string }
	if err := json.NewDecoder(r.Body).Decode(&note); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if _, err := s.db.ExecContext(r.Context(), "INSERT INTO note (text) VALUES (?)", note.Text); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func (s server) status(w http.ResponseWriter, r *http.Request) {
	var status string
	if err := s.db.QueryRowContext(r.Context(), "SELECT onewrite_status()").Scan(&status); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	json.NewEncoder(w).Encode(map[string]string{"onewrite": status})
}

func variable(name, otherwise string) string {
	if value, ok := os.LookupEnv(name); ok {
		return value
	}
	return otherwise
}

func main() {
	if err := onewrite.Register(); err != nil {
		log.Fatal(err)
	}
	dsn := onewrite.DSN(variable("DATABASE", "notes.db"), map[string]string{"_busy_timeout": "5000"})
	db, err := sql.Open("sqlite3", dsn)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, text TEXT NOT NULL)"); err != nil {
		log.Fatal(err)
	}

	s := server{db}
	mux := http.NewServeMux()
	mux.HandleFunc("/notes", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			s.create(w, r)
		} else {
			s.index(w, r)
		}
	})
	mux.HandleFunc("/status", s.status)
	web := &http.Server{Addr: "127.0.0.1:" + variable("PORT", "8000"), Handler: mux}
	stop, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	go func() {
		<-stop.Done()
		web.Shutdown(context.Background())
	}()
	if err := web.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}
