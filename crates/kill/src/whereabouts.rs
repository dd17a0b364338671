//! Where the threads of a process are that hangs, for the report.

use std::fs;

/// As `/proc` tells it.
pub fn whereabouts(process: u32) -> String {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return "it is gone".into() };
    let mut all = String::new();
    for thread in threads.flatten() {
        for file in ["stat", "wchan", "syscall", "stack"] {
            let told = fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            all.push_str(&format!("\n{file}: {}", told.trim()));
        }
    }
    all
}
