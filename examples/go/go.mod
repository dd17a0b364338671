module example/notes

go 1.21

require (
	github.com/mattn/go-sqlite3 v1.14.53
	onewrite.invalid/onewrite/onewrite-go v0.1.0
)
