/*
** Random operations on two databases in memory, with SQLite's own assertions on: one splits pages by
** onewrite's policy, the other as stock SQLite does. Both must hold the same rows after each
** transaction that is compared, and pass integrity_check. Optionally memory and disk fail now and then.
**
** Usage: proof PAGE_SIZE AUTO_VACUUM SECURE_DELETE POLICY RESERVE_CELLS BESIDE OPERATIONS FAULTS SEED
** POLICY -1 leaves SQLite's question unanswered; then the files must be the same to the byte.
** BESIDE 1: records beside the old ones; what was in use is drawn, for the answer must not matter to the tree.
** Prints how often each way through balance_nonroot() was taken, or what is wrong, and exits with 1.
*/
#include <stdio.h>
#include <stdlib.h>

enum Way {
  TABLE_LEAF, INDEX_LEAF, TABLE_INNER, INDEX_INNER,
  LEFT_SPARSE, LEFT_SPARSE_BELOW_OVERFULL, SPARSE, CHILD_EMPTY, BOTH_OVERFULL, NO_CUT,
  BESIDE, CROWDED, DEFRAGMENTED, WAYS
};
static const char *const zWay[WAYS] = {
  "table_leaf", "index_leaf", "table_inner", "index_inner",
  "left_sparse", "left_sparse_below_overfull", "sparse", "child_empty", "both_overfull", "no_cut",
  "beside", "crowded", "defragmented"
};
static long aWent[WAYS];
#define OW_WENT(way) aWent[way]++
#include "sqlite3.c"

/* ---- Faults: the n-th allocation, read or write from now fails, once. 0: none. */
static long nUntilMalloc, nUntilIo, nFaults;
static sqlite3_mem_methods realMem;

static int faultNow(long *pn){
  if( *pn==0 || --*pn>0 ) return 0;
  nFaults++;
  return 1;
}
static void *memMalloc(int n){ return faultNow(&nUntilMalloc) ? 0 : realMem.xMalloc(n); }
static void *memRealloc(void *p, int n){ return faultNow(&nUntilMalloc) ? 0 : realMem.xRealloc(p, n); }

/* ---- Files in memory, two at most. */
typedef struct Content { u8 *a; i64 n, nAlloc; onewrite_split policy; int bAnswers; } Content;
typedef struct Handle { sqlite3_file base; Content *p; } Handle;
static Content aContent[2];

static int fClose(sqlite3_file *f){ (void)f; return SQLITE_OK; }
static int fRead(sqlite3_file *f, void *a, int n, sqlite3_int64 at){
  Content *p = ((Handle*)f)->p;
  if( faultNow(&nUntilIo) ) return SQLITE_IOERR_READ;
  if( at+n<=p->n ){ memcpy(a, p->a+at, n); return SQLITE_OK; }
  memset(a, 0, n);
  if( at<p->n ) memcpy(a, p->a+at, p->n-at);
  return SQLITE_IOERR_SHORT_READ;
}
static int fWrite(sqlite3_file *f, const void *a, int n, sqlite3_int64 at){
  Content *p = ((Handle*)f)->p;
  if( faultNow(&nUntilIo) ) return SQLITE_IOERR_WRITE;
  if( at+n>p->nAlloc ){
    p->nAlloc = 2*(at+n);
    p->a = realloc(p->a, p->nAlloc);
    if( p->a==0 ) abort();
  }
  if( at>p->n ) memset(p->a+p->n, 0, at-p->n);
  memcpy(p->a+at, a, n);
  p->n = MAX(p->n, at+n);
  return SQLITE_OK;
}
static int fTruncate(sqlite3_file *f, sqlite3_int64 n){ Content *p = ((Handle*)f)->p; p->n = MIN(p->n, n); return SQLITE_OK; }
static int fSync(sqlite3_file *f, int flags){ (void)f; (void)flags; return SQLITE_OK; }
static int fSize(sqlite3_file *f, sqlite3_int64 *pn){ *pn = ((Handle*)f)->p->n; return SQLITE_OK; }
static int fLock(sqlite3_file *f, int level){ (void)f; (void)level; return SQLITE_OK; }
static int fReserved(sqlite3_file *f, int *p){ (void)f; *p = 0; return SQLITE_OK; }
static int fControl(sqlite3_file *f, int op, void *pArg){
  Content *p = ((Handle*)f)->p;
  if( !p->bAnswers ) return SQLITE_NOTFOUND;
  if( op==ONEWRITE_FCNTL_IN_USE ){
    static u32 drawn = 1;
    drawn = drawn*1103515245 + 12345;
    ((onewrite_in_use*)pArg)->in_use = (drawn>>16) & 1;
    return SQLITE_OK;
  }
  if( op!=ONEWRITE_FCNTL_SPLIT ) return SQLITE_NOTFOUND;
  *(onewrite_split*)pArg = p->policy;
  return SQLITE_OK;
}
static int fSector(sqlite3_file *f){ (void)f; return 512; }
static int fTraits(sqlite3_file *f){ (void)f; return 0; }
static const sqlite3_io_methods methods = {
  1, fClose, fRead, fWrite, fTruncate, fSync, fSize, fLock, fLock, fReserved, fControl, fSector, fTraits,
  0, 0, 0, 0, 0, 0
};
static int vOpen(sqlite3_vfs *v, const char *zName, sqlite3_file *f, int flags, int *pOut){
  (void)v;
  f->pMethods = 0;
  if( (flags & SQLITE_OPEN_MAIN_DB)==0 ) return SQLITE_CANTOPEN;  /* Journals and temporary files: in memory */
  ((Handle*)f)->p = &aContent[zName[0]=='s'];
  f->pMethods = &methods;
  if( pOut ) *pOut = flags;
  return SQLITE_OK;
}
static int vDelete(sqlite3_vfs *v, const char *z, int b){ (void)v; (void)z; (void)b; return SQLITE_OK; }
static int vAccess(sqlite3_vfs *v, const char *z, int f, int *p){ (void)v; (void)z; (void)f; *p = 0; return SQLITE_OK; }
static int vFull(sqlite3_vfs *v, const char *z, int n, char *zOut){ (void)v; sqlite3_snprintf(n, zOut, "%s", z); return SQLITE_OK; }

/* ---- Random numbers. */
static u64 seed;
static u32 rnd(u32 n){
  seed ^= seed<<13; seed ^= seed>>7; seed ^= seed<<17;
  return (u32)((seed>>16) % n);
}
static u8 aNoise[1<<19];

/* ---- The two databases. */
static sqlite3 *aDb[2];
static const char *zWhere = "start";
static long iOp;

static void fail(const char *zWhat, const char *zDetail){
  printf("FAILED at operation %ld (%s): %s: %s\n", iOp, zWhere, zWhat, zDetail ? zDetail : "");
  exit(1);
}
static void must(int iDb, const char *zSql){
  if( sqlite3_exec(aDb[iDb], zSql, 0, 0, 0)!=SQLITE_OK ) fail(zSql, sqlite3_errmsg(aDb[iDb]));
}
static void mustBoth(const char *zSql){ must(0, zSql); must(1, zSql); }
static sqlite3_stmt *prepare(int iDb, const char *zSql){
  sqlite3_stmt *p = 0;
  if( sqlite3_prepare_v2(aDb[iDb], zSql, -1, &p, 0)!=SQLITE_OK ) fail(zSql, sqlite3_errmsg(aDb[iDb]));
  return p;
}

static void checkIntegrity(void){
  int i;
  for(i=0; i<2; i++){
    sqlite3_stmt *p = prepare(i, "PRAGMA integrity_check");
    const char *z;
    if( sqlite3_step(p)!=SQLITE_ROW ) fail("integrity_check", sqlite3_errmsg(aDb[i]));
    z = (const char*)sqlite3_column_text(p, 0);
    if( strcmp(z, "ok")!=0 ) fail(i ? "stock" : "onewrite", z);
    sqlite3_finalize(p);
  }
}

static void checkSame(const char *zSql){
  sqlite3_stmt *a = prepare(0, zSql), *b = prepare(1, zSql);
  for(;;){
    int ra = sqlite3_step(a), rb = sqlite3_step(b), i;
    if( ra!=rb ) fail("another number of rows", zSql);
    if( ra==SQLITE_DONE ) break;
    if( ra!=SQLITE_ROW ) fail(zSql, sqlite3_errmsg(aDb[0]));
    for(i=0; i<sqlite3_column_count(a); i++){
      int n = sqlite3_column_bytes(a, i);
      if( n!=sqlite3_column_bytes(b, i) || sqlite3_column_type(a, i)!=sqlite3_column_type(b, i)
       || (n && memcmp(sqlite3_column_blob(a, i), sqlite3_column_blob(b, i), n)!=0)
      ) fail("another value", zSql);
    }
  }
  sqlite3_finalize(a);
  sqlite3_finalize(b);
}
static void compare(void){
  checkSame("SELECT name FROM sqlite_schema ORDER BY name");
  checkSame("SELECT * FROM t ORDER BY id");
  checkSame("SELECT a, id FROM t INDEXED BY ta ORDER BY a, id");
  checkSame("SELECT * FROM w ORDER BY k, n");
  checkSame("SELECT * FROM o ORDER BY k");
  checkSame("SELECT x, y FROM u ORDER BY x");
}

/* Runs a statement on onewrite's database, perhaps with a fault, and if it did not fail on the other. */
static int bFaults;
static void both(const char *zSql, i64 iKey, int iBlob, int nBlob, i64 iOther){
  static struct { const char *zSql; sqlite3_stmt *a[2]; } aCache[32];
  int i, iDb;
  zWhere = zSql;
  for(i=0; aCache[i].zSql && aCache[i].zSql!=zSql; i++){}
  if( i>=ArraySize(aCache)-1 ) fail("more statements than the cache has room for", 0);
  for(iDb=0; iDb<2; iDb++){
    sqlite3_stmt *p = aCache[i].a[iDb];
    int rc;
    if( p==0 ) p = aCache[i].a[iDb] = prepare(iDb, zSql);
    aCache[i].zSql = zSql;
    sqlite3_bind_int64(p, 1, iKey);
    if( iBlob>=0 ) sqlite3_bind_blob(p, 2, aNoise+iBlob, nBlob, SQLITE_STATIC);
    sqlite3_bind_int64(p, 3, iOther);
    if( iDb==0 && bFaults && rnd(8)==0 ){
      if( rnd(2) ) nUntilMalloc = 1+rnd(rnd(4) ? 40 : 400); else nUntilIo = 1+rnd(20);
    }
    while( (rc = sqlite3_step(p))==SQLITE_ROW ){}
    nUntilMalloc = nUntilIo = 0;
    sqlite3_reset(p);
    sqlite3_clear_bindings(p);
    if( rc!=SQLITE_DONE && (rc&0xff)!=SQLITE_CONSTRAINT ){
      if( iDb==1 || !bFaults || ((rc&0xff)!=SQLITE_NOMEM && (rc&0xff)!=SQLITE_IOERR) ){
        fail(zSql, sqlite3_errmsg(aDb[iDb]));
      }
      /* What it did is undone, or the whole transaction is. */
      if( sqlite3_get_autocommit(aDb[0]) && !sqlite3_get_autocommit(aDb[1]) ) must(1, "ROLLBACK");
      return;
    }
  }
}

static int nPage, nRowsMax, iAutoVacuum;

/* Mostly cells that many of fit a page, some that none fit. */
static int blobSize(void){
  u32 r = rnd(100);
  if( r<60 ) return rnd(nPage/16+8);
  if( r<85 ) return rnd(nPage/4+8);
  if( r<97 ) return rnd(nPage+8);
  return rnd(4*nPage < (int)sizeof(aNoise)/2 ? 4*nPage : (int)sizeof(aNoise)/2);
}

static void operation(void){
  i64 iKey = rnd(nRowsMax);
  int n = blobSize();
  int iBlob = rnd(sizeof(aNoise)-n);
  u32 r = rnd(1000);
  if( r<150 )      both("INSERT OR IGNORE INTO t VALUES(?1*2654435761 % 4294967291, ?2, ?3)", iKey, iBlob, n, rnd(50));
  else if( r<220 ) both("REPLACE INTO t VALUES(?1*2654435761 % 4294967291, ?2, ?3)", iKey, iBlob, n, rnd(50));
  else if( r<270 ) both("UPDATE t SET a=?2, b=?3 WHERE id=?1*2654435761 % 4294967291", iKey, iBlob, n, rnd(50));
  else if( r<350 ) both("DELETE FROM t WHERE id=?1*2654435761 % 4294967291", iKey, -1, 0, 0);
  else if( r<470 ) both("REPLACE INTO w VALUES(?2, ?1, ?3)", iKey, iBlob, MIN(n, nPage), rnd(9));
  else if( r<520 ) both("DELETE FROM w WHERE n=?1", iKey, -1, 0, 0);
  else if( r<540 ) both("UPDATE w SET k=?2 WHERE n=?1", iKey, iBlob, n, 0);
  else if( r<640 ) both("INSERT OR IGNORE INTO o VALUES(?1)", iKey, -1, 0, 0);
  else if( r<690 ) both("DELETE FROM o WHERE k=?1", iKey, -1, 0, 0);
  else if( r<820 ) both("INSERT INTO u SELECT coalesce(max(x),0)+1, ?2 FROM u", 0, iBlob, n, 0);
  else if( r<850 ) both("DELETE FROM u WHERE x=(SELECT min(x) FROM u)+?1%40", iKey, -1, 0, 0);
  else if( r<880 ) both("REPLACE INTO u VALUES(-?1, ?2)", iKey, iBlob, n, 0);
  else if( r<900 ) both("DELETE FROM w WHERE n BETWEEN ?1 AND ?1+?3", iKey, -1, 0, rnd(nRowsMax/8));
  else if( r<915 ) both("DELETE FROM t WHERE a>=?2 AND b=?3", 0, iBlob, n, rnd(50));
  else if( r<930 ) both("DELETE FROM u WHERE x BETWEEN ?1 AND ?1+?3", iKey, -1, 0, rnd(nRowsMax/8));
  else if( r<945 ) both("DELETE FROM o WHERE k BETWEEN ?1 AND ?1+?3", iKey, -1, 0, rnd(nRowsMax/8));
  else if( r<960 ) both("INSERT OR IGNORE INTO o SELECT n+?3 FROM w WHERE n>?1 LIMIT 200", iKey, -1, 0, rnd(3));
  else if( r<966 && iAutoVacuum==2 ) both("PRAGMA incremental_vacuum(3)", 0, -1, 0, 0);
}

/* Tables come and go, so that page 1, the root of the schema, splits too. */
static void schemaChange(void){
  char zSql[400];
  int i = rnd(40), j;
  zWhere = "schema";
  for(j=0; j<2; j++){
    sqlite3_snprintf(sizeof(zSql), zSql, rnd(2) || j ? "CREATE TABLE IF NOT EXISTS extra_%d(%.*c)" : "DROP TABLE IF EXISTS extra_%d",
                     i, 1+rnd(200), 'c');
    mustBoth(zSql);
  }
}

int main(int argc, char **argv){
  static sqlite3_vfs vfs;
  sqlite3_mem_methods mem;
  long nOps;
  int i;
  char zSql[300];

  if( argc!=10 ) return 2;
  nPage = atoi(argv[1]);
  iAutoVacuum = atoi(argv[2]);
  nOps = atol(argv[7]);
  bFaults = atoi(argv[8]);
  seed = 0x9e3779b97f4a7c15ull ^ (u64)atoll(argv[9])*1000003;
  for(i=0; i<(int)sizeof(aNoise); i++) aNoise[i] = (u8)rnd(256);
  nRowsMax = nPage<=1024 ? 1500 : nPage<=8192 ? 1000 : 600;

  sqlite3_config(SQLITE_CONFIG_GETMALLOC, &realMem);
  mem = realMem;
  mem.xMalloc = memMalloc;
  mem.xRealloc = memRealloc;
  sqlite3_config(SQLITE_CONFIG_MALLOC, &mem);
  sqlite3_initialize();
  vfs = *sqlite3_vfs_find(0);
  vfs.szOsFile = sizeof(Handle);
  vfs.pNext = 0;
  vfs.zName = "proof";
  vfs.xOpen = vOpen;
  vfs.xDelete = vDelete;
  vfs.xAccess = vAccess;
  vfs.xFullPathname = vFull;
  sqlite3_vfs_register(&vfs, 1);

  aContent[0].bAnswers = atoi(argv[4])>=0;
  aContent[0].policy.policy = atoi(argv[4]);
  aContent[0].policy.reserve_cells = atoi(argv[5]);
  aContent[0].policy.beside = atoi(argv[6]);
  for(i=0; i<2; i++){
    if( sqlite3_open_v2(i ? "s" : "o", &aDb[i], SQLITE_OPEN_READWRITE|SQLITE_OPEN_CREATE, "proof") ) fail("open", 0);
    sqlite3_snprintf(sizeof(zSql), zSql,
      "PRAGMA journal_mode=MEMORY; PRAGMA temp_store=MEMORY; PRAGMA locking_mode=EXCLUSIVE; PRAGMA page_size=%d;"
      "PRAGMA auto_vacuum=%d; PRAGMA secure_delete=%s; PRAGMA cache_size=%d;",
      nPage, iAutoVacuum, argv[3], bFaults ? 20 : 1000);
    must(i, zSql);
    must(i,
      "CREATE TABLE t(id INTEGER PRIMARY KEY, a BLOB, b INT); CREATE INDEX ta ON t(a); CREATE INDEX tb ON t(b);"
      "CREATE TABLE w(k BLOB, n INT, m INT, PRIMARY KEY(k, n)) WITHOUT ROWID; CREATE UNIQUE INDEX wn ON w(n);"
      "CREATE TABLE o(k INTEGER PRIMARY KEY) WITHOUT ROWID;"
      "CREATE TABLE u(x INT, y BLOB); CREATE UNIQUE INDEX ux ON u(x); CREATE INDEX uy ON u(y, x);");
  }
  for(iOp=0; iOp<nOps; iOp++){
    if( sqlite3_get_autocommit(aDb[0]) && rnd(4) ) mustBoth("BEGIN");
    operation();
    if( rnd(60)==0 ){
      zWhere = "end of transaction";
      if( rnd(400)==0 && !bFaults ){
        if( !sqlite3_get_autocommit(aDb[0]) ) mustBoth("COMMIT");
        mustBoth("VACUUM");
      }
      if( rnd(10)==0 && !bFaults ) schemaChange();
      if( !sqlite3_get_autocommit(aDb[0]) ) mustBoth(rnd(6) ? "COMMIT" : "ROLLBACK");
    }
    if( rnd(bFaults ? 1500 : 20000)==0 ){
      zWhere = "check";
      checkIntegrity();
      compare();
    }
  }
  zWhere = "end";
  if( !sqlite3_get_autocommit(aDb[0]) ) mustBoth("COMMIT");
  checkIntegrity();
  compare();
  if( !aContent[0].bAnswers
   && (aContent[0].n!=aContent[1].n || memcmp(aContent[0].a, aContent[1].a, aContent[0].n)!=0)
  ){
    fail("the files differ", 0);
  }
  for(i=0; i<WAYS; i++) printf("%s=%ld ", zWay[i], aWent[i]);
  printf("faults=%ld pages=%lld/%lld\n", nFaults, aContent[0].n/nPage, aContent[1].n/nPage);
  return 0;
}
