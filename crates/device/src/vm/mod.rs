//! A virtual machine on a device: for file systems that this kernel does not have. Debian's kernel runs in QEMU with
//! emulated processors; this program is all that is in it, as the first process, and the machine's one drive is the
//! device, so that its requests are recorded as they leave the machine. Host and guest say lines of JSON to each
//! other.
//!
//! | file | does |
//! |---|---|
//! | `packages` | which programs and packages are needed, and how they are had |
//! | `initramfs`, `modules` | what is in the machine's memory at its start |
//! | `host` | starts the machine, talks to it, ends it |
//! | `guest` | the first process: mounts, modules, the other end of the line |

mod guest;
mod host;
mod initramfs;
mod modules;
mod packages;

pub use guest::{BLOCK_PATH, Guest};
pub use host::{Machine, MachineOptions};
pub use packages::{prepare, unavailable};
