//! The command, each of its subcommands. One binary, for a build links each of them anew.

mod agree;
#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "bench")]
mod bench_options;
#[cfg(feature = "bench")]
mod bench_rows;
#[cfg(feature = "bench")]
mod bench_schemes;
mod check;
mod command;
mod common;
mod convert;
mod inspect;
mod install;
mod live;
mod recover;
mod replicate;
mod status;
mod who;
