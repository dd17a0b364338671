//! Counting the requests that reach a device, real or simulated, the system calls behind them, and
//! the wear of flash.

pub mod blocks;
pub mod device;
pub mod simulated;
pub mod syscalls;
pub mod wear;
