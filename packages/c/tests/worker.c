/* The worker of packages/testing/drill.py, in C. */
#include <onewrite.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(sqlite3 *db){
  const char *why = onewrite_last_error();
  fprintf(stderr, "%s (%s)\n", db ? sqlite3_errmsg(db) : "", why ? why : "");
  exit(1);
}

static int print(void *unused, int columns, char **values, char **names){
  (void)unused; (void)names;
  for(int i=0; i<columns; i++) printf("%s%s", values[i], i+1<columns ? " " : "\n");
  return 0;
}

static void run(sqlite3 *db, const char *sql){
  if( sqlite3_exec(db, sql, print, 0, 0)!=SQLITE_OK ) fail(db);
}

int main(int argc, char **argv){
  const char *what = argv[1];
  int stock = strcmp(what, "stock")==0;
  sqlite3 *db = 0;
  char uri[4096];
  if( argc<3 ) return 2;
  if( onewrite_register(0)!=SQLITE_OK ) fail(0);
  snprintf(uri, sizeof(uri), "file:%s%s", argv[2], strcmp(what, "wrong") ? "" : "?vfs=onewrite&logsize=8m");
  int flags = SQLITE_OPEN_READWRITE|SQLITE_OPEN_CREATE|SQLITE_OPEN_URI;
  int rc = sqlite3_open_v2(uri, &db, flags, stock ? 0 : "onewrite");
  if( strcmp(what, "wrong")==0 ) return rc==SQLITE_OK || printf("%s\n", onewrite_last_error())<0;
  if( rc!=SQLITE_OK ) fail(db);
  sqlite3_busy_timeout(db, 60000);
  if( stock ){
    run(db, "PRAGMA integrity_check; SELECT count(*) FROM t");
  }else if( strcmp(what, "read")==0 ){
    run(db, "SELECT writer, count(*), max(n) FROM t GROUP BY writer");
  }else{
    run(db, "CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)");
    if( strcmp(what, "status")==0 ){
      sqlite3_exec(db, "PRAGMA journal_mode=WAL", 0, 0, 0);
      run(db, "INSERT INTO t VALUES('status', 0); SELECT onewrite_status();"
              "SELECT name||'='||value FROM onewrite_stats WHERE name='commits'");
    }else{
      for(int n=0; n<atoi(argv[4]); n++){
        char *sql = sqlite3_mprintf("INSERT INTO t VALUES(%Q, %d)", argv[3], n);
        run(db, sql);
        sqlite3_free(sql);
        printf("%d\n", n);
        fflush(stdout);
      }
    }
  }
  return sqlite3_close(db)!=SQLITE_OK;
}
