//! The engine on the simulated disk. One binary: linking is slow.

mod bad_input;
mod closed_mark;
mod common;
mod concurrent_crashes;
mod first_writer;
mod group_crashes;
mod hot_journal;
mod in_page;
mod in_page_size;
mod in_page_threads;
mod in_place;
mod kept;
mod late_writes;
#[cfg(unix)]
mod layers;
mod lengthened;
mod lost_log;
mod moved;
mod pairing;
mod readers_on_the_way_home;
mod reading_ahead;
mod recovery_crashes;
mod rest;
#[cfg(unix)]
mod rules;
mod shadow;
mod shipper;
mod small_log;
mod streamed_home;
mod sweep;
mod tentative_place;
#[cfg(unix)]
mod tidy;
mod unmade;
mod wal_mode;
mod wiped_log;
