//! Counting: what reaches the device, a real or a simulated one, which system calls ask for it, and how it wears flash out.

pub mod blocks;
pub mod device;
pub mod simulated;
pub mod syscalls;
pub mod wear;
