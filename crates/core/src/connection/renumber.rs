//! Pages that a transaction of `concurrent=1` adds while others add some move behind the newest
//! end, with the references to them (rule MergeIsSerial).
//!
//! All references must be certain: each added page is a b-tree page, and one interior page of the
//! transaction has it as a child (SQLite file format, section 1.6). So page splits pass; new
//! tables, overflow pages, uses of the freelist and databases with pointer maps are refused.

use rustc_hash::FxHashMap;

use crate::base::error::{Error, Result};
use crate::base::layout::{be_u32, put};
use crate::base::memory::{self, Room};
use crate::base::types::PageNo;
use crate::pages::image::Image;
use crate::sqlite_format::node::{NodeLayout, Shape};

const LAST_CHILD: usize = 8;

/// `added` pages, from `first` on, move `by` numbers. `shape`: of the resulting database.
/// `BusySnapshot` where references are uncertain.
pub(super) fn renumbered(
    pages: &FxHashMap<PageNo, Image>,
    shape: Shape,
    first: u32,
    added: u32,
    by: u32,
) -> Result<FxHashMap<PageNo, Image>> {
    let index = |page: u32| page.checked_sub(first).filter(|n| *n < added);
    if shape.pointer_maps || (first..=shape.page_count).contains(&shape.pending_page()) {
        return Err(Error::BusySnapshot);
    }
    let mut refers: Vec<bool> = memory::list(added as usize)?;
    refers.resize(added as usize, false);
    let mut moved = FxHashMap::default();
    moved.room(pages.len())?;
    for (page, image) in pages {
        let node = shape.node(*page, image);
        let is_added = index(page.0).is_some();
        if is_added && node.is_none() {
            return Err(Error::BusySnapshot);
        }
        let mut image = image.clone();
        for at in node.iter().flat_map(|node| children(node, &image)).collect::<Vec<_>>() {
            let child = be_u32(&image, at).ok_or(Error::BusySnapshot)?;
            let Some(refers) = index(child).and_then(|n| refers.get_mut(n as usize)) else { continue };
            if std::mem::replace(refers, true) {
                return Err(Error::BusySnapshot);
            }
            let mut changed = memory::copy(&image)?;
            put(&mut changed, at, &(child + by).to_be_bytes());
            image = Image::from(changed);
        }
        moved.insert(PageNo(if is_added { page.0 + by } else { page.0 }), image);
    }
    // A page without a reference is a new root.
    if refers.contains(&false) { Err(Error::BusySnapshot) } else { Ok(moved) }
}

fn children(node: &NodeLayout, image: &[u8]) -> Vec<usize> {
    if !matches!(image.get(node.header_at), Some(2 | 5)) {
        return Vec::new();
    }
    let cells = image.get(node.pointers.clone()).unwrap_or_default().as_chunks::<2>().0;
    let cells = cells.iter().map(|at| usize::from(u16::from_be_bytes(*at)));
    cells.chain([node.header_at + LAST_CHILD]).collect()
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;

    const BYTES: usize = 512;

    fn shape(page_count: u32) -> Shape {
        Shape::new(BYTES as u32, page_count, &[0; 100])
    }

    /// A page with these children, the last on the right; none: a leaf.
    fn page(children: &[u32]) -> Image {
        let mut image = vec![0; BYTES];
        let cells = children.len().saturating_sub(1);
        let mut content = BYTES - 32;
        image[0] = if children.is_empty() { 13 } else { 5 };
        for (n, child) in children.iter().take(cells).enumerate() {
            content -= 8;
            image[content..content + 4].copy_from_slice(&child.to_be_bytes());
            image[12 + 2 * n..14 + 2 * n].copy_from_slice(&(content as u16).to_be_bytes());
        }
        image[3..5].copy_from_slice(&(cells as u16).to_be_bytes());
        image[5..7].copy_from_slice(&(content as u16).to_be_bytes());
        if let Some(last) = children.last() {
            image[8..12].copy_from_slice(&last.to_be_bytes());
        }
        Image::from(image)
    }

    fn pages(of: &[(u32, Image)]) -> FxHashMap<PageNo, Image> {
        of.iter().map(|(page, image)| (PageNo(*page), image.clone())).collect()
    }

    fn is_refused(of: &[(u32, Image)], added: u32) -> bool {
        matches!(renumbered(&pages(of), shape(20), 8, added, 3), Err(Error::BusySnapshot))
    }

    #[test]
    fn pages_and_references_to_them_move_together() {
        // 8 is an interior page with leaves 9, new, and 5; 3 leads to both new subtrees.
        let before = [
            (3, page(&[4, 8, 10])),
            (8, page(&[9, 5])),
            (9, page(&[])),
            (10, page(&[])),
            (5, page(&[])),
            (6, page(&[])),
        ];
        let moved = renumbered(&pages(&before), shape(20), 8, 3, 3).unwrap();
        let after = [
            (3, page(&[4, 11, 13])),
            (11, page(&[12, 5])),
            (12, page(&[])),
            (13, page(&[])),
            (5, page(&[])),
            (6, page(&[])),
        ];
        assert!(moved == pages(&after));
        assert!(renumbered(&pages(&before), shape(20), 8, 3, 0).unwrap() == pages(&before));
    }

    #[test]
    fn an_uncertain_parent_is_refused() {
        let leaf = || page(&[]);
        assert!(!is_refused(&[(3, page(&[4, 8])), (8, leaf())], 1));
        assert!(is_refused(&[(3, leaf()), (8, leaf())], 1), "a root that is new");
        assert!(is_refused(&[(3, page(&[8, 8])), (8, leaf())], 1), "two lead to it");
        assert!(is_refused(&[(3, page(&[4, 8])), (8, Image::from(vec![0; BYTES]))], 1), "an overflow page");
        assert!(is_refused(&[(3, page(&[4, 8])), (8, leaf())], 2), "a page that was not written");
        let mut header = [0; 100];
        header[52..56].copy_from_slice(&3u32.to_be_bytes());
        let mapped = Shape::new(BYTES as u32, 20, &header);
        let split = pages(&[(3, page(&[4, 8])), (8, leaf())]);
        assert!(renumbered(&split, mapped, 8, 1, 3).is_err(), "pointer maps");
        let far = Shape { page_count: 0x4000_0000 / BYTES as u32 + 9, ..shape(20) };
        assert!(renumbered(&split, far, 8, 1, 3).is_err(), "the page of SQLite's locks is among them");
    }

    #[test]
    fn a_cell_behind_the_end_is_refused() {
        let mut image = page(&[4, 8]).to_vec();
        image[12..14].copy_from_slice(&510u16.to_be_bytes());
        assert!(is_refused(&[(3, Image::from(image)), (8, page(&[]))], 1));
    }
}
