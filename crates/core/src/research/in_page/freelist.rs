//! Pages that a transaction takes from the freelist or gives to it (SQLite file format, section
//! 1.5). No byte of a leaf is meaningful; of a trunk, its head and its leaf numbers are.

use rustc_hash::FxHashMap;

use crate::base::error::Result;
use crate::base::layout::be_u32;
use crate::base::types::PageNo;
use crate::database::Database;
use crate::pages::image::Image;
use crate::pages::txn::{ChangedPage, Txn};
use crate::sqlite_format::home::{DatabaseHeader, State};
use crate::sqlite_format::node::Shape;

/// First trunk and number of pages, in the header.
const LIST: std::ops::Range<usize> = 32..40;
/// Next trunk and count, before the leaf numbers.
const TRUNK_HEAD: usize = 8;
/// SQLite uses the first trunks; later pages count as in use (rule UndoLeadsHome).
const TRUNKS_MAX: usize = 4;

/// How many first bytes are meaningful.
type FreelistPages = FxHashMap<PageNo, usize>;

#[derive(Default)]
pub struct Freed {
    before: FreelistPages,
    after: FreelistPages,
}

impl Freed {
    pub fn by(db: &Database, txn: &Txn, changed: &[ChangedPage], state: &State) -> Result<Freed> {
        let base = &txn.base;
        if base.header.get(LIST) == state.header.get(LIST) {
            return Ok(Freed::default());
        }
        let in_base = |page: PageNo| if page.0 <= base.page_count { db.image(base, page).map(Some) } else { Ok(None) };
        let in_new = |page: PageNo| match changed.iter().find(|c| c.page == page) {
            Some(found) => Ok(Some(found.new.clone())),
            None => in_base(page),
        };
        let shape = |state: &State| Shape::new(state.page_bytes, state.page_count, &state.header);
        Ok(Freed {
            before: walk(&base.header, shape(base), in_base)?,
            after: walk(&state.header, shape(state), in_new)?,
        })
    }

    /// How many first bytes were meaningful, if it was on the freelist.
    pub fn live_before(&self, page: PageNo) -> Option<usize> {
        self.before.get(&page).copied()
    }

    pub fn live_after(&self, page: PageNo) -> Option<usize> {
        self.after.get(&page).copied()
    }
}

fn walk(
    header: &DatabaseHeader,
    shape: Shape,
    read: impl Fn(PageNo) -> Result<Option<Image>>,
) -> Result<FreelistPages> {
    let mut live = FreelistPages::default();
    let mut trunk = PageNo(be_u32(header, LIST.start).unwrap_or(0));
    for _ in 0..TRUNKS_MAX {
        if trunk <= PageNo::HEADER || trunk.0 > shape.page_count || live.contains_key(&trunk) {
            break;
        }
        let Some(image) = read(trunk)? else { break };
        let count = be_u32(&image, TRUNK_HEAD / 2).unwrap_or(u32::MAX) as usize;
        let Some(leaves) = image.get(TRUNK_HEAD..shape.usable()).and_then(|leaves| leaves.get(..count.checked_mul(4)?))
        else {
            break;
        };
        live.insert(trunk, TRUNK_HEAD + leaves.len());
        live.extend(leaves.chunks_exact(4).filter_map(|leaf| be_u32(leaf, 0)).map(|leaf| (PageNo(leaf), 0)));
        trunk = PageNo(be_u32(&image, 0).unwrap_or(0));
    }
    Ok(live)
}
