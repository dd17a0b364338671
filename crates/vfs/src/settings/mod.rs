//! Which settings a connection may ask for: the keys of a URI, and options that only onewrite's own
//! libsqlite3 honours.

pub(crate) mod split;
pub(crate) mod uri;
