//! A virtual machine on the device. Skipped, with a message, where QEMU or its kernel are missing:
//! a test installs and downloads nothing. `onewrite-device cut --fs f2fs --vm` does that.

use std::process::{Command, Output};

use onewrite_device::{FileSystem, vm};

fn missing(file_system: FileSystem) -> bool {
    let why = vm::unavailable().or_else(|| file_system.unmakeable());
    if let Some(why) = &why {
        eprintln!("skipped: {why}");
    }
    why.is_some()
}

fn cut(file_system: FileSystem, arguments: &[&str]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite-device"));
    let fixed = ["cut", "--vm", "--seed", "3", "--fs", file_system.name()];
    let output = command.args(fixed).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    eprintln!("{arguments:?}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    (output, text)
}

/// FAT and exFAT have no journal: systems repair them first.
#[test]
fn power_cuts_on_file_systems_of_a_virtual_machine_lose_nothing() {
    let _turn = crate::ONE_AT_A_TIME.lock();
    let file_systems: [(_, &[&str]); 3] =
        [(FileSystem::F2fs, &[]), (FileSystem::Vfat, &["--fsck"]), (FileSystem::Exfat, &["--fsck"])];
    for (file_system, more) in file_systems {
        if missing(file_system) {
            continue;
        }
        let arguments = [&["--cuts", "6", "--transactions", "30", "--json"], more].concat();
        let (output, text) = cut(file_system, &arguments);
        assert!(output.status.success());
        assert!(text.lines().last().unwrap().ends_with(", violations: 0"));
        let json: serde_json::Value = serde_json::from_str(text.rsplit_once("\ncuts:").unwrap().0).unwrap();
        assert!(json["acknowledged_checked"].as_u64().unwrap() > 0 && json["flushes_recorded"].as_u64().unwrap() > 0);
    }
}

#[test]
fn power_cuts_on_f2fs_find_the_losses_of_a_weaker_promise() {
    let _turn = crate::ONE_AT_A_TIME.lock();
    if missing(FileSystem::F2fs) {
        return;
    }
    let (output, text) = cut(FileSystem::F2fs, &["--cuts", "60", "--transactions", "60", "--engine", "canary"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("violation (database)") && text.contains("were acknowledged"), "{text}");
}
