//! Fuzzes looking at a database and a log without writing.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    onewrite_entry::walk::run(input);
});
