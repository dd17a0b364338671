//! Decoders of file bytes: slot, record, decision, home's header, SQLite's WAL.
//!
//! The first byte of the input chooses the decoder, and whether the checksum is made right first.

use onewrite_core::inspect::home::{self, FileKind, State};
use onewrite_core::inspect::layout::{decision, record, slot, wal as wal_layout};
use onewrite_core::inspect::wal::WalHead;
use onewrite_core::inspect::{Decision, Peek, Record, Slot};

use crate::{Reach, files};

/// Decodes the input.
pub fn run(input: &[u8]) -> Reach {
    let Some((&choice, bytes)) = input.split_first() else { return Reach::default() };
    let mut bytes = bytes.to_vec();
    let sealed = choice & 0x80 == 0;
    let accepted = match choice & 3 {
        0 => {
            if sealed && bytes.len() >= slot::BYTES {
                files::seal_slot(&mut bytes);
            }
            slot_of(&bytes)
        }
        1 => home_of(&bytes, u64::from(choice) << 9),
        3 if choice & 4 == 0 => {
            if sealed {
                files::seal_decision(&mut bytes);
            }
            decision_of(&bytes)
        }
        3 => wal_of(&bytes),
        _ => {
            if sealed && bytes.len() > record::HEADER_BYTES + record::CRC_BYTES {
                let len = bytes.len() / record::ALIGN * record::ALIGN;
                bytes.truncate(len);
                if let Some(field) = bytes.get_mut(record::AT_LEN..record::AT_LEN + 4) {
                    field.copy_from_slice(&u32::try_from(len).unwrap_or(0).to_le_bytes());
                }
                files::seal_record(&mut bytes);
            }
            record_of(&bytes, 512 << (choice >> 2 & 7))
        }
    };
    Reach { accepted: u64::from(accepted), refused: u64::from(!accepted) }
}

/// An accepted slot encodes to the same bytes.
fn slot_of(bytes: &[u8]) -> bool {
    let Some(found) = Slot::decode(bytes, 1 << 40) else { return false };
    assert_eq!(Some(&found.encode()[..]), bytes.get(..slot::BYTES), "another slot has the same bytes");
    true
}

/// An accepted decision fits its bytes and decodes the same again.
fn decision_of(bytes: &[u8]) -> bool {
    let Some((found, sectors)) = Decision::decode(bytes) else { return false };
    assert!(
        sectors.saturating_sub(1) * decision::SECTOR_BYTES < bytes.len(),
        "{sectors} sectors of {} bytes",
        bytes.len()
    );
    if let Some(again) = found.encode() {
        assert_eq!(Decision::decode(&again), Some((found, again.len() / decision::SECTOR_BYTES)));
    }
    true
}

fn wal_of(bytes: &[u8]) -> bool {
    let WalHead::Chain(mut chain) = WalHead::decode(bytes) else { return false };
    let frames = bytes.get(wal_layout::HEADER_BYTES..).unwrap_or_default();
    let frame_bytes = wal_layout::FRAME_HEAD_BYTES + chain.page_bytes as usize;
    let pages = frames.chunks(frame_bytes).map_while(|frame| chain.next(frame));
    pages.inspect(|(page, _)| assert_ne!(*page, 0, "page 0 was accepted")).count() > 0
}

fn home_of(bytes: &[u8], file_bytes: u64) -> bool {
    let state = State::of_home(bytes, file_bytes);
    if state.kind == FileKind::Database {
        let [whole, tid] = [5, 8].map(onewrite_core::inspect::Tid);
        let mark = home::HomeMark { whole, tentative: true, ..home::HomeMark::new(9, tid) };
        assert_eq!(home::mark(&state.marked_header(mark)), Some(mark));
        assert_eq!(home::mark(&state.final_header()), None);
    }
    let after = state.after(state.tid, state.page_bytes, state.page_count, state.change_counter, None);
    assert!(after.bytes() <= u64::from(u32::MAX) * 65536);
    state.kind == FileKind::Database || home::mark(bytes).is_some()
}

fn record_of(bytes: &[u8], page_bytes: u32) -> bool {
    let peek = Peek::at(bytes);
    let Some(found) = Record::decode(bytes, page_bytes) else { return false };
    assert_eq!(peek.map(|p| (p.salt, p.tid)), Some((found.head.salt, found.head.tid)));
    let mut image = vec![0; page_bytes as usize];
    found.for_each(|page, change| {
        assert_ne!(page.0, 0, "page 0 was accepted");
        let _fits = change.apply(&mut image);
    });
    assert!(found.bytes() <= bytes.len() as u64);
    true
}
