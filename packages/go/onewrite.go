// Package onewrite makes the VFS "onewrite" known to the SQLite that go-sqlite3 brings: durable commits with one block
// write and one flush. The library is linked in; nothing has to be shipped beside the program.
//
//	import (
//		"database/sql"
//
//		_ "github.com/mattn/go-sqlite3"
//		onewrite "onewrite.invalid/onewrite/onewrite-go"
//	)
//
//	onewrite.Register()
//	db, err := sql.Open("sqlite3", onewrite.DSN("app.db", nil))
package onewrite

/*
#cgo CFLAGS: -I${SRCDIR}/lib
#include <stddef.h>

// As <sqlite3.h> declares them: go-sqlite3 brings its own header, which is not on every machine.
typedef struct sqlite3_vfs sqlite3_vfs;
extern int sqlite3_libversion_number(void);
extern sqlite3_vfs *sqlite3_vfs_find(const char*);
extern int sqlite3_vfs_register(sqlite3_vfs*, int);
extern void *sqlite3_malloc64(unsigned long long);
extern void sqlite3_log(int, const char*, ...);
extern const char *sqlite3_uri_parameter(const char*, const char*);
extern int sqlite3_uri_boolean(const char*, const char*, int);
extern const char *sqlite3_uri_key(const char*, int);
extern const char *sqlite3_filename_journal(const char*);
extern const char *sqlite3_filename_wal(const char*);
extern int sqlite3_auto_extension(void(*)(void));
extern int sqlite3_get_autocommit(void*);
extern int sqlite3_txn_state(void*, const char*);

// onewrite_api of onewrite.h.
typedef struct {
	size_t struct_bytes;
	int (*libversion_number)(void);
	sqlite3_vfs *(*vfs_find)(const char*);
	int (*vfs_register)(sqlite3_vfs*, int);
	void *(*malloc64)(unsigned long long);
	void (*log)(int, const char*, ...);
	const char *(*uri_parameter)(const char*, const char*);
	int (*uri_boolean)(const char*, const char*, int);
	const char *(*uri_key)(const char*, int);
	const char *(*filename_journal)(const char*);
	const char *(*filename_wal)(const char*);
	int (*auto_extension)(void(*)(void));
	int (*get_autocommit)(void*);
	int (*txn_state)(void*, const char*);
} onewrite_api;
extern int onewrite_register_api(const onewrite_api*, int);
extern const char *onewrite_version(void);
extern const char *onewrite_last_error(void);

static int register_here(int make_default) {
	onewrite_api api = {
		sizeof(api), sqlite3_libversion_number, sqlite3_vfs_find, sqlite3_vfs_register, sqlite3_malloc64, sqlite3_log,
		sqlite3_uri_parameter, sqlite3_uri_boolean, sqlite3_uri_key, sqlite3_filename_journal, sqlite3_filename_wal,
		sqlite3_auto_extension, sqlite3_get_autocommit, sqlite3_txn_state,
	};
	return onewrite_register_api(&api, make_default);
}
*/
import "C"

import (
	"errors"
	"net/url"
	"runtime"
	"strings"
)

// Register makes the VFS "onewrite" known. Doing so again changes nothing.
func Register() error { return register(0) }

// RegisterDefault also makes it the VFS of every database whose DSN names none.
func RegisterDefault() error { return register(1) }

func register(makeDefault C.int) error {
	// The last error is a thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if C.register_here(makeDefault) == 0 {
		return nil
	}
	return errors.New(C.GoString(C.onewrite_last_error()))
}

// DSN names a database to be opened through onewrite, with settings of onewrite's ("log_size": "8m") and of the driver's
// ("_busy_timeout": "5000").
func DSN(path string, settings map[string]string) string {
	values := url.Values{"vfs": {"onewrite"}}
	for key, value := range settings {
		values.Set(key, value)
	}
	if strings.HasPrefix(path, "file:") {
		return path + "?" + values.Encode()
	}
	// Relative paths stay relative; what a URI gives a meaning is escaped.
	escaped := (&url.URL{Path: path}).EscapedPath()
	return "file:" + escaped + "?" + values.Encode()
}

// Version of the library that is linked in.
func Version() string { return C.GoString(C.onewrite_version()) }

// Open runs open and, if it fails, adds what onewrite says about it: database/sql opens on whatever thread it likes.
func Open(open func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := open()
	if err == nil {
		return nil
	}
	if why := C.onewrite_last_error(); why != nil {
		return errors.Join(err, errors.New(C.GoString(why)))
	}
	return err
}
