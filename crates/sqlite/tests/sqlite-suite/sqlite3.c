/*
** The patched source for SQLite's own tests. ONEWRITE_TEST_SPLIT says in the VFS's place how pages are split: lazy, legacy, or
** beside, which is lazy with records beside the old ones and room for two more cells.
*/
struct sqlite3_file;
static int owAsk(struct sqlite3_file*, int, void*);
#define OW_ASK(pFile, op, pArg) owAsk(pFile, op, pArg)
#include "patched.c"

static int owAsk(sqlite3_file *pFile, int op, void *pArg){
  const char *zSplit = getenv("ONEWRITE_TEST_SPLIT");
  if( zSplit==0 ) return sqlite3OsFileControl(pFile, op, pArg);
  if( op==ONEWRITE_FCNTL_SPLIT ){
    onewrite_split *pSplit = (onewrite_split*)pArg;
    pSplit->beside = strcmp(zSplit, "beside")==0;
    pSplit->reserve_cells = pSplit->beside ? 2 : 0;
    pSplit->policy = strcmp(zSplit, "legacy")==0 ? ONEWRITE_SPLIT_LEGACY : ONEWRITE_SPLIT_LAZY;
  }else{
    /* Any answer must do. */
    onewrite_in_use *pAsk = (onewrite_in_use*)pArg;
    pAsk->in_use = ((pAsk->page*31 + pAsk->offset/8)*2654435761u>>16)%3==0;
  }
  return SQLITE_OK;
}
