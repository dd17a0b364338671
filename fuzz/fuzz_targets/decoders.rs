//! Fuzzes functions that decode bytes of files.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    onewrite_entry::decoders::run(input);
});
