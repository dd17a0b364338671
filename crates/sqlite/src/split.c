/*
** onewrite's work on pages: a balance_nonroot() that splits an overfull page without touching its
** siblings, as LS-MVBT does, and records that are written beside the old ones, as Doubleheader Logging does. The
** build includes this file in the amalgamation, right behind SQLite's own balance_nonroot(), which it renames to
** balance_nonroot_stock(); sqlite3BtreeInsert() calls owOverwrites(), owReplaceCell() and owInsertCell().
**
** SQLite rebuilds an overfull page together with up to two siblings, so a random insert writes 1.77
** pages on average. Here an overfull page writes itself, one new page and the parent.
**
** The policy is the VFS's to say (ONEWRITE_FCNTL_SPLIT, asked at each call, which is less than once in
** ten inserts). Under a VFS that does not answer, SQLite's original runs.
**
**   lazy    The page keeps the cells on one side of the middle where they are; one new sibling takes the rest and
**           the cell that did not fit, so that nothing is written over cells that are dropped. A page that deletes
**           left sparse stays as it is until it is empty.
**   legacy  MVBT's split: two new pages take the cells and the old one is left behind dead, that is,
**           on the freelist. Sparse pages are SQLite's business.
**   stock   SQLite's original.
**
** SQLite's original also takes over where a split in two is not the answer:
**
**   S1  a bulk load, or a child without cells (the original merges it away);
**   S2  an overfull child while the parent has an overflow cell of its own: the original first takes
**       that cell out of the parent;
**   S3  everything fits one page (a root copied from page 1, whose header made it overfull), unless records go beside (B3);
**   S4  too few cells to leave one on each side, or no place to cut (a large cell in the middle).
**
** Records beside (onewrite_split.beside, whatever the split): no record goes over bytes that were in use when the transaction began
** (the VFS says which, ONEWRITE_FCNTL_IN_USE), and no page is defragmented unless half of it is free.
**
**   B1  A record that replaces another is written to free space first; then the old one is freed. SQLite's
**       ways of writing over one of the same size are left out.
**   B2  A record goes to a free block that was free when the transaction began, else into the gap.
**   B3  If neither has room, though the page has, the page counts as overfull and is split.
**
** Wrong answers of the VFS cost room, or bytes of its undo record, and nothing else.
**
** What keeps a failure harmless, and the tree sound:
**
**   L1  The page is made writable and new pages are allocated before anything changes.
**   L2  Cells are copied to the sibling before they are dropped: secure_delete zeroes dropped cells.
**   L3  The divider is copied to aOvflSpace first: should the parent overflow, its overflow cell has to
**       outlive this call.
**   L4  nOverflow is cleared before overflow cells are inserted again: with it set, insertCellFast()
**       would not know where to put them.
**   L5  The parent's pointer to the page goes to the sibling before the divider, which points to the page,
**       is inserted in front of it.
**   L6  Of two interior pages, the left one takes the divider's left child as its right child, the right one the old
**       right child.
**   L7  With auto_vacuum, the pointer map follows every child and overflow chain that moved, the
**       sibling itself, and overflow cells that stay: balance_deeper() copies those without their entries.
*/
#include "onewrite.h"

/* Lets a test answer in the VFS's place. */
#ifndef OW_ASK
# define OW_ASK(pFile, op, pArg) sqlite3OsFileControl(pFile, op, pArg)
#endif

/* Takes a page out of the cache. */
static void owForgetPage(Pager *pPager, Pgno pgno){
  sqlite3_pcache_page *pBase = sqlite3PcacheFetch(pPager->pPCache, pgno, 0);
  if( pBase ) sqlite3PcacheDrop(sqlite3PcacheFetchFinish(pPager->pPCache, pgno, pBase));
}

/* Others have changed the database since the cache was filled: forgets the pages that differ, and is true; or false, if the VFS
** does not know them. Called by sqlite3PagerSharedLock(), with no page in use. */
static int owKeepsCache(Pager *pPager){
  onewrite_changed changed = {0, 0};
  size_t i;
  if( sqlite3OsFileControl(pPager->fd, ONEWRITE_FCNTL_CHANGED, &changed)!=SQLITE_OK ) return 0;
  /* As pager_reset() does. Page 1 is read again for its change counter. */
  pPager->iDataVersion++;
  sqlite3BackupRestart(pPager->pBackup);
  owForgetPage(pPager, 1);
  for(i=0; i<changed.count; i++) owForgetPage(pPager, changed.pages[i]);
  return 1;
}

/* Lets a test count which way each call went. */
#ifndef OW_WENT
# define OW_WENT(way)
#endif

/* The cells of an overfull page in key order, those that did not fit it included. */
typedef struct OwCells OwCells;
struct OwCells {
  MemPage *pPage;                            /* The page */
  int nCell;                                 /* Cells, overflow cells included */
  int iOvfl;                                 /* Index of the first overflow cell */
  int nOvfl;                                 /* Overflow cells; they are adjacent */
  u8 *apOvfl[ArraySize(((MemPage*)0)->apOvfl)];
};

/* Where to cut: cells [0,iCut) stay left, [iRight,nCell) go right. In a table leaf iRight is iCut; elsewhere
** cell iCut moves up as the divider. */
typedef struct OwCut OwCut;
struct OwCut {
  int iCut;
  int iRight;
};

static void owCells(MemPage *pPage, OwCells *p){
  p->pPage = pPage;
  p->nOvfl = pPage->nOverflow;
  p->nCell = pPage->nCell + p->nOvfl;
  p->iOvfl = p->nOvfl ? pPage->aiOvfl[0] : p->nCell;
  memcpy(p->apOvfl, pPage->apOvfl, sizeof(p->apOvfl));
}

static int owIsOvfl(const OwCells *p, int i){
  return i>=p->iOvfl && i<p->iOvfl+p->nOvfl;
}

/* The i-th cell. Valid until cells are dropped from the page. */
static u8 *owCell(const OwCells *p, int i){
  if( owIsOvfl(p, i) ) return p->apOvfl[i - p->iOvfl];
  if( i>=p->iOvfl ) i -= p->nOvfl;
  return findCell(p->pPage, i);
}

static int owSize(const OwCells *p, int i){
  return p->pPage->xCellSize(p->pPage, owCell(p, i));
}

/*
** Chooses the cut. Leaves pCut->iCut 0 where there is none, or none is needed (S3, S4).
**
** The cut is the one that makes both sides most alike. At the right end of the tree, where keys that
** ascend arrive, a lazy split instead leaves all on the left that it can: otherwise every page of an
** ascending index would stay half empty. Either way both sides keep room for nReserve more cells of
** average size if that is possible.
*/
static int owChooseCut(const OwCells *p, int bRightEnd, int bBeside, u32 nReserve, OwCut *pCut){
  MemPage *pPage = p->pPage;
  const int usable = pPage->pBt->usableSize - pPage->cellOffset;
  const int bDivider = !pPage->intKeyLeaf;
  int iTry;                      /* 0: with the reserve, 1: without */
  int total = 0;
  int i;

  pCut->iCut = 0;
  for(i=0; i<p->nCell; i++){
    u8 *pCell = owCell(p, i);
    int sz = pPage->xCellSize(pPage, pCell);
    if( !owIsOvfl(p, i) && (uptr)(pCell+sz)>(uptr)pPage->aDataEnd ){
      return SQLITE_CORRUPT_PAGE(pPage);
    }
    total += sz + 2;
  }
  if( (total<=usable && !bBeside) || p->nCell<2+bDivider ) return SQLITE_OK;
  for(iTry=(nReserve==0); iTry<2 && pCut->iCut==0; iTry++){
    i64 reserve = iTry ? 0 : (i64)nReserve * (total/p->nCell);
    int szLeft = 0;
    int best = 0;
    for(i=1; i<p->nCell-bDivider; i++){
      int szRight, worse;
      szLeft += owSize(p, i-1) + 2;
      szRight = total - szLeft - (bDivider ? owSize(p, i)+2 : 0);
      if( szLeft+reserve>usable ) break;
      if( szRight+reserve>usable ) continue;
      worse = bRightEnd ? szRight : MAX(szLeft, szRight);
      if( pCut->iCut==0 || worse<best ){
        best = worse;
        pCut->iCut = i;
        pCut->iRight = i + bDivider;
      }
    }
  }
  return SQLITE_OK;
}

/* Writes the divider for the cut to pOut and its size to *pSize. Its child pointer is still to be set. */
static void owDivider(const OwCells *p, const OwCut *pCut, MemPage *pParent, u8 *pOut, int *pSize){
  MemPage *pPage = p->pPage;
  put4byte(pOut, 0);
  if( pPage->intKeyLeaf ){
    CellInfo info;
    pPage->xParseCell(pPage, owCell(p, pCut->iCut-1), &info);
    *pSize = 4 + sqlite3PutVarint(&pOut[4], info.nKey);
  }else if( pPage->leaf ){
    memcpy(&pOut[4], owCell(p, pCut->iCut), owSize(p, pCut->iCut));
    /* On a leaf a cell of 3 bytes counts as 4; here it does not. */
    *pSize = pParent->xCellSize(pParent, pOut);
  }else{
    *pSize = owSize(p, pCut->iCut);
    memcpy(pOut, owCell(p, pCut->iCut), *pSize);
  }
}

/* Appends cells [iFirst,iEnd) to the page pTo. */
static int owAppend(const OwCells *p, int iFirst, int iEnd, MemPage *pTo){
  int rc = SQLITE_OK;
  int i;
  for(i=iFirst; i<iEnd && rc==SQLITE_OK; i++){
    u8 *pCell = owCell(p, i);
    rc = insertCellFast(pTo, pTo->nCell, pCell, owSize(p, i));
    if( rc==SQLITE_OK && pTo->nOverflow ) rc = SQLITE_CORRUPT_PAGE(p->pPage);
    if( ISAUTOVACUUM(pTo->pBt) && !pTo->leaf ){
      ptrmapPut(pTo->pBt, get4byte(pCell), PTRMAP_BTREE, pTo->pgno, &rc);
    }
  }
  return rc;
}

/* Sets the right child of an interior page. */
static void owSetRightChild(MemPage *pPage, Pgno pgno, int *pRc){
  put4byte(&pPage->aData[pPage->hdrOffset+8], pgno);
  if( ISAUTOVACUUM(pPage->pBt) ){
    ptrmapPut(pPage->pBt, pgno, PTRMAP_BTREE, pPage->pgno, pRc);
  }
}

/* Allocates an empty page of the same type as pPage, below pParent. */
static int owNewPage(MemPage *pPage, MemPage *pParent, MemPage **ppNew){
  BtShared *pBt = pPage->pBt;
  Pgno pgno = 0;
  int rc = allocateBtreePage(pBt, ppNew, &pgno, pPage->pgno, 0);
  if( rc!=SQLITE_OK ){
    *ppNew = 0;
    return rc;
  }
  zeroPage(*ppNew, pPage->aData[pPage->hdrOffset]);
  if( ISAUTOVACUUM(pBt) ){
    ptrmapPut(pBt, pgno, PTRMAP_BTREE, pParent->pgno, &rc);
  }
  return rc;
}

/* Where pParent keeps the page number of its iIdx-th child. */
static u8 *owChildPointer(MemPage *pParent, int iIdx){
  if( pParent->nOverflow ){
    assert( pParent->nOverflow==1 && pParent->aiOvfl[0]==iIdx );
    return pParent->apOvfl[0];
  }
  if( iIdx==pParent->nCell ) return &pParent->aData[pParent->hdrOffset+8];
  return findCell(pParent, iIdx);
}

/* Puts pgnoLeft with its divider in front of the iIdx-th child of pParent, which becomes pgnoRight (L5). */
static int owLink(MemPage *pParent, int iIdx, Pgno pgnoLeft, u8 *pDivider, int szDivider, Pgno pgnoRight){
  put4byte(owChildPointer(pParent, iIdx), pgnoRight);
  return insertCell(pParent, iIdx, pDivider, szDivider, 0, pgnoLeft);
}

/* Drops cells [iFirst,iEnd) of those on the page. */
static void owDrop(MemPage *pPage, int iFirst, int iEnd, int *pRc){
  int i;
  for(i=iEnd-1; i>=iFirst; i--){
    dropCell(pPage, i, pPage->xCellSize(pPage, findCell(pPage, i)), pRc);
  }
}

/* Leaves cells [0,iCut) on the page, overflow cells among them included. */
static int owKeepLeft(const OwCells *p, int iCut){
  MemPage *pPage = p->pPage;
  int iDrop = iCut;              /* First cell to drop, counting only those on the page */
  int rc = SQLITE_OK;
  int i;

  if( iCut>p->iOvfl ) iDrop = MAX(p->iOvfl, iCut - p->nOvfl);
  pPage->nOverflow = 0;          /* L4 */
  owDrop(pPage, iDrop, pPage->nCell, &rc);
  for(i=p->iOvfl; i<iCut && i<p->iOvfl+p->nOvfl && rc==SQLITE_OK; i++){
    u8 *pCell = owCell(p, i);
    rc = insertCellFast(pPage, i, pCell, pPage->xCellSize(pPage, pCell));
    if( rc==SQLITE_OK && pPage->nOverflow ) rc = SQLITE_CORRUPT_PAGE(pPage);
    if( ISAUTOVACUUM(pPage->pBt) && !pPage->leaf ){
      ptrmapPut(pPage->pBt, get4byte(pCell), PTRMAP_BTREE, pPage->pgno, &rc);
    }
  }
  return rc;
}

/* The lazy split with the new page on the left: the page keeps cells [iRight,nCell), none of which is an overflow cell. */
static int owSplitLazyLeft(const OwCells *p, const OwCut *pCut, MemPage *pParent, int iIdx, u8 *aOvflSpace){
  MemPage *pPage = p->pPage;
  MemPage *pNew = 0;
  int szDivider = 0;
  int rc;

  rc = sqlite3PagerWrite(pPage->pDbPage);                                          /* L1 */
  if( rc==SQLITE_OK ) rc = owNewPage(pPage, pParent, &pNew);
  if( rc==SQLITE_OK ) rc = owAppend(p, 0, pCut->iCut, pNew);                       /* L2 */
  if( rc==SQLITE_OK && !pPage->leaf ){
    owSetRightChild(pNew, get4byte(owCell(p, pCut->iCut)), &rc);                   /* L6 */
  }
  if( rc==SQLITE_OK ){
    owDivider(p, pCut, pParent, aOvflSpace, &szDivider);                           /* L3 */
    rc = insertCell(pParent, iIdx, aOvflSpace, szDivider, 0, pNew->pgno);
  }
  if( rc==SQLITE_OK ){
    pPage->nOverflow = 0;
    owDrop(pPage, 0, pCut->iRight - p->nOvfl, &rc);
  }
  releasePage(pNew);
  return rc;
}

/* The lazy split. */
static int owSplitLazy(const OwCells *p, const OwCut *pCut, MemPage *pParent, int iIdx, u8 *aOvflSpace){
  MemPage *pPage = p->pPage;
  MemPage *pNew = 0;
  Pgno pgnoMiddle = 0;           /* Left child of the divider */
  int szDivider = 0;
  int rc;

  if( p->iOvfl+p->nOvfl<=pCut->iCut ){
    return owSplitLazyLeft(p, pCut, pParent, iIdx, aOvflSpace);
  }
  rc = sqlite3PagerWrite(pPage->pDbPage);                                          /* L1 */
  if( rc==SQLITE_OK ) rc = owNewPage(pPage, pParent, &pNew);
  if( rc==SQLITE_OK ) rc = owAppend(p, pCut->iRight, p->nCell, pNew);              /* L2 */
  if( rc==SQLITE_OK && !pPage->leaf ){
    pgnoMiddle = get4byte(owCell(p, pCut->iCut));
    owSetRightChild(pNew, get4byte(&pPage->aData[pPage->hdrOffset+8]), &rc);       /* L6 */
  }
  if( rc==SQLITE_OK ){
    owDivider(p, pCut, pParent, aOvflSpace, &szDivider);                           /* L3 */
    rc = owLink(pParent, iIdx, pPage->pgno, aOvflSpace, szDivider, pNew->pgno);
  }
  if( rc==SQLITE_OK ) rc = owKeepLeft(p, pCut->iCut);
  if( rc==SQLITE_OK && !pPage->leaf ) owSetRightChild(pPage, pgnoMiddle, &rc);
  releasePage(pNew);
  return rc;
}

/* MVBT's split. */
static int owSplitLegacy(const OwCells *p, const OwCut *pCut, MemPage *pParent, int iIdx, u8 *aOvflSpace){
  MemPage *pPage = p->pPage;
  MemPage *pLeft = 0;
  MemPage *pRight = 0;
  int szDivider = 0;
  int rc;

  rc = owNewPage(pPage, pParent, &pLeft);                                          /* L1 */
  if( rc==SQLITE_OK ) rc = owNewPage(pPage, pParent, &pRight);
  if( rc==SQLITE_OK ) rc = owAppend(p, 0, pCut->iCut, pLeft);
  if( rc==SQLITE_OK ) rc = owAppend(p, pCut->iRight, p->nCell, pRight);
  if( rc==SQLITE_OK && !pPage->leaf ){
    owSetRightChild(pLeft, get4byte(owCell(p, pCut->iCut)), &rc);                  /* L6 */
    owSetRightChild(pRight, get4byte(&pPage->aData[pPage->hdrOffset+8]), &rc);
  }
  if( rc==SQLITE_OK ){
    owDivider(p, pCut, pParent, aOvflSpace, &szDivider);                           /* L3 */
    rc = owLink(pParent, iIdx, pLeft->pgno, aOvflSpace, szDivider, pRight->pgno);
  }
  if( rc==SQLITE_OK ){
    pPage->nOverflow = 0;
    freePage(pPage, &rc);
  }
  releasePage(pLeft);
  releasePage(pRight);
  return rc;
}

/* What the VFS of this database says about splits; SQLITE_NOTFOUND where it says nothing. */
static int owPolicy(BtShared *pBt, onewrite_split *pPolicy){
  memset(pPolicy, 0, sizeof(*pPolicy));
  return OW_ASK(sqlite3PagerFile(pBt->pPager), ONEWRITE_FCNTL_SPLIT, pPolicy);
}

static int balance_nonroot(
  MemPage *pParent,               /* Parent page of the page being balanced */
  int iParentIdx,                 /* Index of "the page" in pParent */
  u8 *aOvflSpace,                 /* page-size bytes of space for parent ovfl */
  int isRoot,                     /* True if pParent is a root-page */
  int bBulk                       /* True if this call is part of a bulk load */
){
  BtShared *pBt = pParent->pBt;
  MemPage *pPage = 0;
  onewrite_split policy;
  OwCells cells;
  OwCut cut;
  int rc;

  if( bBulk || aOvflSpace==0 || owPolicy(pBt, &policy)!=SQLITE_OK
   || (policy.policy!=ONEWRITE_SPLIT_LAZY && policy.policy!=ONEWRITE_SPLIT_LEGACY)
  ){
    return balance_nonroot_stock(pParent, iParentIdx, aOvflSpace, isRoot, bBulk);
  }
  assert( sqlite3_mutex_held(pBt->mutex) );
  assert( sqlite3PagerIswriteable(pParent->pDbPage) );
  rc = getAndInitPage(pBt, get4byte(owChildPointer(pParent, iParentIdx)), &pPage, 0);
  if( rc!=SQLITE_OK ) return rc;
  if( pPage->nFree<0 ) rc = btreeComputeFreeSpace(pPage);
  /* One reference is this function's, one the cursor's; another would be an ancestor's: corruption. */
  if( rc==SQLITE_OK && (sqlite3PagerPageRefcount(pPage->pDbPage)!=2 || pPage->hdrOffset) ){
    rc = SQLITE_CORRUPT_PAGE(pPage);
  }
  cut.iCut = 0;
  if( rc==SQLITE_OK && pPage->nCell>0 ){
    if( pPage->nOverflow==0 ){
      if( policy.policy==ONEWRITE_SPLIT_LAZY ){
        OW_WENT(pParent->nOverflow ? LEFT_SPARSE_BELOW_OVERFULL : LEFT_SPARSE);
        releasePage(pPage);
        return SQLITE_OK;
      }
    }else if( pParent->nOverflow==0 && !pParent->leaf && pParent->intKey==pPage->intKey ){
      int bRightEnd;
      owCells(pPage, &cells);
      bRightEnd = policy.policy==ONEWRITE_SPLIT_LAZY && iParentIdx==pParent->nCell
               && owIsOvfl(&cells, cells.nCell-1);
      rc = owChooseCut(&cells, bRightEnd, policy.beside, policy.reserve_cells, &cut);
    }
  }
  if( rc==SQLITE_OK && cut.iCut>0 ){
    OW_WENT(pPage->leaf ? (pPage->intKey ? TABLE_LEAF : INDEX_LEAF) : (pPage->intKey ? TABLE_INNER : INDEX_INNER));
    if( policy.policy==ONEWRITE_SPLIT_LAZY ){
      rc = owSplitLazy(&cells, &cut, pParent, iParentIdx, aOvflSpace);
    }else{
      rc = owSplitLegacy(&cells, &cut, pParent, iParentIdx, aOvflSpace);
    }
    releasePage(pPage);
    return rc;
  }
  OW_WENT(pPage->nCell==0 ? CHILD_EMPTY : pPage->nOverflow==0 ? SPARSE : pParent->nOverflow ? BOTH_OVERFULL : NO_CUT);
  releasePage(pPage);
  if( rc!=SQLITE_OK ) return rc;
  return balance_nonroot_stock(pParent, iParentIdx, aOvflSpace, isRoot, bBulk);
}

/* ---- Records beside the old ones. */

/* Whether no record of this database may be written over an old one. */
static int owBeside(BtShared *pBt){
  onewrite_split policy;
  return owPolicy(pBt, &policy)==SQLITE_OK && policy.beside;
}

/* Whether a record of the same size may be written over the old one (B1). */
static int owOverwrites(BtCursor *pCur){
  return !owBeside(pCur->pBt);
}

/* Whether bytes of the page were in use when the transaction began. */
static int owInUse(MemPage *pPage, int iOffset, int nByte){
  onewrite_in_use ask;
  ask.page = pPage->pgno;
  ask.offset = (u32)iOffset;
  ask.bytes = (u32)nByte;
  ask.in_use = 1;
  return OW_ASK(sqlite3PagerFile(pPage->pBt->pPager), ONEWRITE_FCNTL_IN_USE, &ask)==SQLITE_OK
      && ask.in_use;
}

/*
** Takes nByte bytes out of a free block or of the gap and sets *pIdx to their offset, to 0 if neither has room (B2). The gap
** keeps room for nPtr more bytes of cell pointers.
*/
static int owTakeSpace(MemPage *pPage, int nByte, int nPtr, int *pIdx){
  u8 * const data = pPage->aData;
  const int hdr = pPage->hdrOffset;
  const int usable = pPage->pBt->usableSize;
  const int gap = pPage->cellOffset + 2*pPage->nCell + nPtr;
  const int top = get2byteNotZero(&data[hdr+5]);
  int iAddr = hdr+1;             /* Where the offset of the free block is */
  int iFrom = top;               /* Where it begins at the earliest */
  int pc;

  *pIdx = 0;
  if( top>usable ) return SQLITE_CORRUPT_PAGE(pPage);
  if( gap>top ) return SQLITE_OK;
  while( (pc = get2byte(&data[iAddr]))!=0 ){
    int size, x;
    if( pc<iFrom || pc>usable-4 ) return SQLITE_CORRUPT_PAGE(pPage);
    size = get2byte(&data[pc+2]);
    if( size<4 || pc+size>usable ) return SQLITE_CORRUPT_PAGE(pPage);
    x = size - nByte;
    if( x>=0 && (x>=4 || data[hdr+7]<=57) && !owInUse(pPage, x<4 ? pc : pc+x, nByte) ){
      if( x<4 ){
        memcpy(&data[iAddr], &data[pc], 2);
        data[hdr+7] += (u8)x;
        *pIdx = pc;
      }else{
        put2byte(&data[pc+2], x);
        *pIdx = pc+x;
      }
      return SQLITE_OK;
    }
    iAddr = pc;
    iFrom = pc+size;
  }
  if( gap+nByte<=top ){
    *pIdx = top-nByte;
    put2byte(&data[hdr+5], top-nByte);
  }
  return SQLITE_OK;
}

/*
** Writes a cell in place of the idx-th, which has nOld bytes, beside it (B1). Returns 0 if SQLite is to do it: where records are written
** over others, in interior pages, or where there is no room. The page is writable.
*/
static int owReplaceCell(MemPage *pPage, int idx, u8 *pCell, int sz, int nOld, int *pRc){
  u8 * const data = pPage->aData;
  u8 *pPtr;
  int pc, iNew;

  if( *pRc!=SQLITE_OK || !pPage->leaf || pPage->nOverflow || sz>pPage->nFree || !owBeside(pPage->pBt) ) return 0;
  pPtr = &pPage->aCellIdx[2*idx];
  pc = get2byte(pPtr);
  if( pc+nOld>(int)pPage->pBt->usableSize || pc<get2byteNotZero(&data[pPage->hdrOffset+5]) ){
    *pRc = SQLITE_CORRUPT_PAGE(pPage);
    return 1;
  }
  *pRc = owTakeSpace(pPage, sz, 0, &iNew);
  if( *pRc!=SQLITE_OK ) return 1;
  if( iNew==0 ) return 0;
  OW_WENT(BESIDE);
  memcpy(&data[iNew], pCell, sz);
  put2byte(pPtr, iNew);
  pPage->nFree -= (u16)sz;
  *pRc = freeSpace(pPage, pc, nOld);
  if( ISAUTOVACUUM(pPage->pBt) ) ptrmapPutOvflPtr(pPage, pPage, pCell, pRc);
  return 1;
}

/* Inserts a cell as insertCellFast() does, but not over what was in use, and without defragmenting a page (B2, B3). */
static int owInsertCell(MemPage *pPage, int i, u8 *pCell, int sz){
  u8 * const data = pPage->aData;
  const int hdr = pPage->hdrOffset;
  u8 *pIns;
  int rc, idx;

  if( pPage->nOverflow || !pPage->leaf || sz+2>pPage->nFree ) return insertCellFast(pPage, i, pCell, sz);
  if( data[hdr+1]==0 && data[hdr+2]==0
   && pPage->cellOffset+2*pPage->nCell+2+sz<=get2byteNotZero(&data[hdr+5])
  ){
    return insertCellFast(pPage, i, pCell, sz);
  }
  if( !owBeside(pPage->pBt) ) return insertCellFast(pPage, i, pCell, sz);
  rc = sqlite3PagerWrite(pPage->pDbPage);
  if( rc==SQLITE_OK ) rc = owTakeSpace(pPage, sz, 2, &idx);
  if( rc!=SQLITE_OK ) return rc;
  if( idx==0 ){
    if( pPage->nCell==0 || pPage->nFree*2>(int)pPage->pBt->usableSize ){
      OW_WENT(DEFRAGMENTED);
      return insertCellFast(pPage, i, pCell, sz);
    }
    OW_WENT(CROWDED);
    pPage->apOvfl[0] = pCell;
    pPage->aiOvfl[0] = (u16)i;
    pPage->nOverflow = 1;
    return SQLITE_OK;
  }
  pPage->nFree -= (u16)(2 + sz);
  memcpy(&data[idx], pCell, sz);
  pIns = pPage->aCellIdx + i*2;
  memmove(pIns+2, pIns, 2*(pPage->nCell - i));
  put2byte(pIns, idx);
  pPage->nCell++;
  put2byte(&data[hdr+3], pPage->nCell);
  if( ISAUTOVACUUM(pPage->pBt) ) ptrmapPutOvflPtr(pPage, pPage, pCell, &rc);
  return rc;
}
