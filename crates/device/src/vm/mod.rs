//! A virtual machine on a device, for file systems that this kernel does not have. Debian's kernel
//! runs in QEMU on emulated processors. This program is its first and only process, and the device
//! its only drive, so the machine's requests are recorded. Host and guest exchange lines of JSON.
//!
//! | file | does |
//! |---|---|
//! | `packages` | installs and downloads packages |
//! | `initramfs`, `modules` | fill the machine's memory at its start |
//! | `host` | starts, talks to and ends the machine |
//! | `guest` | the first process |

mod guest;
mod host;
mod initramfs;
mod modules;
mod packages;

pub use guest::{BLOCK_PATH, Guest};
pub use host::{Machine, MachineOptions, in_guest};
pub use packages::{prepare, unavailable};
