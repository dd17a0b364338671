//! Replication to directories and to S3. One binary, because linking each costs build time.

mod compact;
mod dialect;
mod fleet;
mod follow;
mod keys;
#[cfg(unix)]
mod life;
#[cfg(unix)]
mod many;
#[cfg(unix)]
mod modes;
#[cfg(unix)]
mod nats;
mod observe;
mod order;
mod place;
mod reader;
mod s3;
#[cfg(unix)]
mod sftp;
mod ship;
mod sync;
#[cfg(unix)]
mod untrusted;
