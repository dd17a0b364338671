//! Fuzzes opening and recovering a database and a log.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    onewrite_entry::recovery::run(input);
});
