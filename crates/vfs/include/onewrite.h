/*
** onewrite: durable SQLite commits with one block write and one flush.
**
** The C interface of libonewrite. Include it where <sqlite3.h> can be found, call
** onewrite_register() once, and open databases through the VFS "onewrite":
**
**     #include <onewrite.h>
**
**     if( onewrite_register(0)!=SQLITE_OK ) fprintf(stderr, "%s\n", onewrite_last_error());
**     sqlite3_open_v2("app.db", &db, SQLITE_OPEN_READWRITE|SQLITE_OPEN_CREATE, "onewrite");
**
** or with settings: "file:app.db?vfs=onewrite&scheme=log" and SQLITE_OPEN_URI.
**
** libonewrite.a and libonewrite.so are linked to no SQLite: they use the one this header is compiled
** with, 3.37 or newer. That library must stay loaded for the life of the process. Every connection that
** opens after onewrite_register() has the SQL functions onewrite_version(), onewrite_status([SCHEMA]) and
** onewrite_last_error(), and the tables onewrite_stats and onewrite_who, which may take a schema:
** onewrite_stats('aux').
**
** As a loadable extension the library has two entry points: sqlite3_onewrite_init, which registers the VFS,
** and sqlite3_onewrite_default_init, which also makes it the default VFS. The environment variable
** ONEWRITE_DEFAULT=1 makes the first do what the second does. ONEWRITE_LOG=stderr, or the name of a file,
** takes a line for every error of onewrite's. In a privileged program (setuid, for one) neither counts.
*/
#ifndef ONEWRITE_H
#define ONEWRITE_H

#include <stddef.h>
#include <sqlite3.h>

#if SQLITE_VERSION_NUMBER < 3037000
# error "onewrite needs SQLite 3.37 or newer"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of SQLite that onewrite calls. Filled by onewrite_register(); new ones are only
** ever added at the end. */
typedef struct onewrite_api {
  size_t struct_bytes;           /* sizeof(onewrite_api) */
  int (*libversion_number)(void);
  sqlite3_vfs *(*vfs_find)(const char *name);
  int (*vfs_register)(sqlite3_vfs *vfs, int make_default);
  void *(*malloc64)(sqlite3_uint64 bytes);
  void (*log)(int code, const char *format, ...);
  const char *(*uri_parameter)(const char *name, const char *parameter);
  int (*uri_boolean)(const char *name, const char *parameter, int otherwise);
  const char *(*uri_key)(const char *name, int index);
  const char *(*filename_journal)(const char *name);
  const char *(*filename_wal)(const char *name);
  int (*auto_extension)(void (*entry)(void));
  int (*get_autocommit)(sqlite3 *connection);
  int (*txn_state)(sqlite3 *connection, const char *schema);
} onewrite_api;

/* Registers the VFS "onewrite" with the SQLite these functions belong to. make_default other than 0
** makes it the VFS of every database opened without naming one. Registering again changes nothing,
** except that it may make it the default. Returns SQLITE_OK or an error code. Use
** onewrite_register(), which fills the structure. */
int onewrite_register_api(const onewrite_api *api, int make_default);

/* Version of the library, "major.minor.patch". Stays valid. */
const char *onewrite_version(void);

/* What went wrong in onewrite's last failed call on this thread, or NULL if the last error was not
** onewrite's. sqlite3_open_v2() can only say "unable to open database file"; this says why. Valid until
** this thread calls SQLite or onewrite again. */
const char *onewrite_last_error(void);

/* A file control that tells how the database's pages are to be split. onewrite's own libsqlite3 asks it;
** any other SQLite splits its own way whatever the answer. SQLITE_NOTFOUND where the database is read
** past onewrite's engine. */
#define ONEWRITE_FCNTL_SPLIT 0x6f770001
typedef struct onewrite_split {
  int policy;                    /* One of ONEWRITE_SPLIT_... */
  unsigned int reserve_cells;    /* Cells that both halves of a split page keep room for */
  int beside;                    /* 1: a transaction writes no record over what was there when it began */
} onewrite_split;
#define ONEWRITE_SPLIT_STOCK 0   /* With up to two siblings, as SQLite does */
#define ONEWRITE_SPLIT_LAZY 1    /* Into itself and one new page */
#define ONEWRITE_SPLIT_LEGACY 2  /* Into two new pages; the old one is freed */

/* A file control that tells whether some bytes of a page were in use when the transaction began. onewrite's own
** libsqlite3 asks it where records are written beside the old ones. */
#define ONEWRITE_FCNTL_IN_USE 0x6f770002
typedef struct onewrite_in_use {
  unsigned int page;             /* Page number */
  unsigned int offset;           /* First byte */
  unsigned int bytes;            /* How many */
  int in_use;                    /* The answer */
} onewrite_in_use;

/* A file control that tells which pages of the cache are not those of the transaction that has just begun: whoever keeps the
** others need not read them again. Page 1 is old in any case. Asked under SHARED, before anything but the change counter is read;
** the list is valid until the next call. SQLITE_NOTFOUND: any may be old. onewrite's own libsqlite3 asks it. */
#define ONEWRITE_FCNTL_CHANGED 0x6f770003
typedef struct onewrite_changed {
  const unsigned int *pages;     /* Page numbers, some of them perhaps more than once */
  size_t count;                  /* How many */
} onewrite_changed;

/* Registers the VFS "onewrite" with the SQLite this code is linked to: see onewrite_register_api(). */
static inline int onewrite_register(int make_default){
  onewrite_api api;
  api.struct_bytes = sizeof(api);
  api.libversion_number = sqlite3_libversion_number;
  api.vfs_find = sqlite3_vfs_find;
  api.vfs_register = sqlite3_vfs_register;
  api.malloc64 = sqlite3_malloc64;
  api.log = sqlite3_log;
  api.uri_parameter = sqlite3_uri_parameter;
  api.uri_boolean = sqlite3_uri_boolean;
  api.uri_key = sqlite3_uri_key;
  api.filename_journal = sqlite3_filename_journal;
  api.filename_wal = sqlite3_filename_wal;
  api.auto_extension = sqlite3_auto_extension;
  api.get_autocommit = sqlite3_get_autocommit;
  api.txn_state = sqlite3_txn_state;
  return onewrite_register_api(&api, make_default);
}

#ifdef __cplusplus
}
#endif
#endif /* ONEWRITE_H */
