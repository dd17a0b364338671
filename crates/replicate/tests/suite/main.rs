//! Replication to directories and to S3. One binary, because linking each costs build time.

mod compact;
mod dialect;
mod fleet;
mod follow;
mod keys;
mod life;
mod many;
mod modes;
mod observe;
mod order;
mod place;
mod reader;
mod s3;
mod sftp;
mod ship;
mod sync;
mod untrusted;
