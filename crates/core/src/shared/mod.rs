//! The protocol between processes in shared memory. It knows no `Database`.

pub mod bits;
pub mod kept;
pub mod member;
#[cfg(test)]
mod member_tests;
#[cfg(test)]
mod model_tests;
pub mod pinning;
#[cfg(test)]
mod ship_tests;
pub mod slots;
#[cfg(test)]
mod slots_tests;
pub mod tail;
pub mod tendency;
pub mod turn;
pub mod users;
pub mod words;
