//! Fuzzes a connection's calls in arbitrary order.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    onewrite_entry::calls::run(input);
});
