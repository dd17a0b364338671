//! Written files are read back; damage is found.

use super::*;
use proptest::prelude::*;

const PAGE: usize = 512;

type Pages = Vec<(u32, Vec<u8>)>;

fn header(pages: u32, min: u64, max: u64) -> Header {
    Header { page_bytes: PAGE as u32, pages, min, max, time_ms: 1_700_000_000_123, node: 7 }
}

fn written(header: Header, pages: &[(u32, Vec<u8>)]) -> Result<Vec<u8>, LtxError> {
    let mut writer = Writer::begin(Vec::new(), header)?;
    for (page, image) in pages {
        writer.page(*page, image)?;
    }
    let (bytes, len) = writer.finish()?;
    assert_eq!(bytes.len() as u64, len);
    Ok(bytes)
}

fn read(bytes: &[u8]) -> Result<(Header, Pages), LtxError> {
    let mut reader = Reader::open(bytes)?;
    let header = *reader.header();
    let (mut pages, mut image) = (Vec::new(), Vec::new());
    while let Some(page) = reader.page(&mut image)? {
        pages.push((page, image.clone()));
    }
    reader.finish()?;
    Ok((header, pages))
}

fn image(seed: u64) -> Vec<u8> {
    // Some compress well, some not at all.
    let mut random = fastrand::Rng::with_seed(seed);
    (0..PAGE).map(|at| if at < (seed % 600) as usize { random.u8(..) } else { 0 }).collect()
}

#[test]
fn the_checksum_is_gos() {
    assert_eq!(CRC.checksum(b"123456789"), 0xb909_56c7_75a4_1001);
}

#[test]
fn a_wrong_order_is_not_written() {
    let image = |n: u32| (n, vec![1; PAGE]);
    let cases: [(u64, u32, &[u32]); 6] =
        [(1, 3, &[1, 2]), (1, 3, &[1, 3]), (1, 3, &[2, 3]), (5, 9, &[4, 4]), (5, 9, &[4, 3]), (5, 9, &[10])];
    for (min, pages, numbers) in cases {
        let pages_of: Vec<_> = numbers.iter().map(|n| image(*n)).collect();
        assert!(written(header(pages, min, 5), &pages_of).is_err(), "{numbers:?}");
    }
    assert!(written(header(3, 5, 5), &[(1, vec![0; PAGE + 1])]).is_err());
    assert!(written(header(0, 5, 5), &[]).is_err());
}

#[test]
fn a_snapshot_leaves_the_lock_page_out() {
    // 64 KiB pages: the lock page is 16,385.
    let lock = lock_page(65_536);
    assert_eq!(lock, 16_385);
    let header = Header { page_bytes: 65_536, pages: lock + 1, min: 1, max: 1, time_ms: 0, node: 0 };
    let mut order = Order { header, last: lock - 1 };
    assert!(order.note(lock).is_err());
    assert!(order.end().is_err());
    order.note(lock + 1).unwrap();
    order.end().unwrap();
    Order { header: Header { pages: lock, ..header }, last: lock - 1 }.end().unwrap();
}

#[test]
fn files_of_other_programs_are_refused_by_name() {
    let mut bytes = written(header(9, 5, 5), &[(1, image(3))]).unwrap();
    bytes[HEADER_BYTES + 5] = 0;
    assert!(matches!(read(&bytes), Err(LtxError::Unsupported(_))));
    bytes[7] = 0;
    assert!(matches!(read(&bytes), Err(LtxError::Unsupported(_))));
}

fn file() -> impl Strategy<Value = (Header, Pages)> {
    let snapshot = (1..40u32, any::<u64>()).prop_map(|(pages, max)| {
        let images = (1..=pages).map(|n| (n, image(max.wrapping_add(u64::from(n))))).collect();
        (header(pages, 1, max.max(1)), images)
    });
    let batch = (proptest::collection::btree_set(1..400u32, 0..30), 2..=u64::MAX).prop_map(|(numbers, min)| {
        let images = numbers.into_iter().map(|n| (n, image(min.wrapping_mul(u64::from(n))))).collect();
        (header(400, min, min), images)
    });
    prop_oneof![snapshot, batch]
}

proptest! {
    #[test]
    fn written_files_are_read((header, pages) in file()) {
        let bytes = written(header, &pages).unwrap();
        prop_assert_eq!(read(&bytes).unwrap(), (header, pages));
    }

    /// Every changed, missing or added byte gives an error or the same pages: a page has several
    /// compressed forms, and 24 bytes of the header are not used.
    #[test]
    fn damage_is_found((header, pages) in file(), at in any::<prop::sample::Index>(), bit in 0..8u8, how in 0..3u8) {
        let mut bytes = written(header, &pages).unwrap();
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] ^= 1 << bit,
            1 => bytes.truncate(at),
            _ => bytes.push(bit),
        }
        if let Ok(read) = read(&bytes) {
            prop_assert_eq!(read.1, pages);
            prop_assert_eq!(read.0, header);
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        (header, pages) in file(),
        cut in any::<prop::sample::Index>(),
    ) {
        prop_assert!(read(&bytes).is_err());
        let mut begun = written(header, &pages).unwrap();
        begun.truncate(cut.index(begun.len()));
        begun.append(&mut bytes);
        let _ = read(&begun);
    }
}

/// Consecutive files of a database that grows and shrinks: a page count and changed pages for each.
fn history() -> impl Strategy<Value = Vec<(u32, Vec<(u32, u64)>)>> {
    let file = (1u32..12).prop_flat_map(|pages| {
        let changed = proptest::collection::btree_map(1..=pages, any::<u64>(), 0..6);
        (Just(pages), changed.prop_map(|changed| changed.into_iter().collect::<Vec<_>>()))
    });
    proptest::collection::vec(file, 1..6)
}

fn apply(database: &mut Vec<Vec<u8>>, header: &Header, pages: &[(u32, Vec<u8>)]) {
    database.resize(header.pages as usize, vec![0; PAGE]);
    for (page, image) in pages {
        database[*page as usize - 1].clone_from(image);
    }
}

proptest! {
    #[test]
    fn merged_files_make_the_pages_that_the_single_ones_make(history in history(), before in 0usize..12) {
        let mut one_by_one: Vec<_> = (0..before).map(|n| image(n as u64 + 900)).collect();
        let mut at_once = one_by_one.clone();
        let mut merge = Merge::default();
        for (min, (pages, changed)) in (2..).zip(&history) {
            let pages_of: Vec<_> = changed.iter().map(|(page, seed)| (*page, image(seed % 1000))).collect();
            let file = written(header(*pages, min, min), &pages_of).unwrap();
            apply(&mut one_by_one, &header(*pages, min, min), &pages_of);
            merge.add(Reader::open(&*file).unwrap()).unwrap();
        }
        let (bytes, told, count, len) = merge.write(Vec::new(), 9).unwrap();
        let (header, pages) = read(&bytes).unwrap();
        assert_eq!((header.min, header.max, header.node), (2, history.len() as u64 + 1, 9));
        assert_eq!((header, pages.len(), bytes.len()), (told, count as usize, len as usize));
        apply(&mut at_once, &header, &pages);
        prop_assert!(at_once == one_by_one);
    }
}

#[test]
fn files_that_do_not_follow_each_other_are_not_merged() {
    let file = |pages, min, max| written(header(pages, min, max), &[(1, image(3))]).unwrap();
    for (first, second) in [((3, 2, 4), (3, 6, 6)), ((3, 2, 4), (3, 4, 5)), ((3, 2, 4), (3, 2, 4))] {
        let mut merge = Merge::default();
        merge.add(Reader::open(&*file(first.0, first.1, first.2)).unwrap()).unwrap();
        assert!(merge.add(Reader::open(&*file(second.0, second.1, second.2)).unwrap()).is_err());
    }
    let mut damaged = file(3, 2, 2);
    *damaged.last_mut().unwrap() ^= 1;
    assert!(Merge::default().add(Reader::open(&*damaged).unwrap()).is_err());
    assert!(Merge::default().write(Vec::new(), 0).is_err());
}

fn frames(bytes: &[u8], tail_bytes: usize) -> Result<Vec<Frame>, LtxError> {
    let header = *Reader::open(bytes)?.header();
    let len = bytes.len() as u64;
    let tail = |n: usize| &bytes[bytes.len().saturating_sub(n)..];
    match read_tail(&header, tail(tail_bytes), len)? {
        TailIndex::Whole(frames) => Ok(frames),
        TailIndex::Needs(needs) => match read_tail(&header, tail(needs as usize), len)? {
            TailIndex::Whole(frames) => Ok(frames),
            TailIndex::Needs(_) => panic!("it needs more than it said"),
        },
    }
}

proptest! {
    #[test]
    fn single_pages_are_read_by_the_index(seed: u64, pages in 1u32..40, tail_bytes in 24usize..900) {
        let all: Vec<_> = (1..=pages).map(|n| (n, image(seed.wrapping_add(n.into())))).collect();
        let bytes = written(header(pages, 1, 9), &all).unwrap();
        let header = *Reader::open(bytes.as_slice()).unwrap().header();
        let frames = frames(&bytes, tail_bytes).unwrap();
        prop_assert_eq!(frames.len(), all.len());
        for (frame, (page, image)) in frames.iter().zip(&all) {
            let part = &bytes[frame.offset as usize..][..frame.bytes as usize];
            prop_assert_eq!(frame.page, *page);
            prop_assert_eq!(&page_of_frame(&header, frame, part).unwrap(), image);
            prop_assert!(page_of_frame(&header, frame, &part[..part.len() - 1]).is_err());
        }
    }

    /// A wrong bit in the index or its length is found, or names the same pages.
    #[test]
    fn a_damaged_index_is_found(pages in 1u32..40, at: prop::sample::Index, bit in 0u8..8) {
        let all: Vec<_> = (1..=pages).map(|n| (n, image(n.into()))).collect();
        let mut bytes = written(header(pages, 1, 9), &all).unwrap();
        let whole = frames(&bytes, bytes.len()).unwrap();
        let index_bytes = bytes.len() - TRAILER_BYTES - (whole.last().unwrap().offset + whole.last().unwrap().bytes) as usize;
        let place = bytes.len() - TRAILER_BYTES - 1 - at.index(index_bytes - END_BYTES);
        bytes[place] ^= 1 << bit;
        prop_assert!(frames(&bytes, bytes.len()).is_err());
    }
}
