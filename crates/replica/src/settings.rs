//! The parameters of a database's URI.

use anyhow::{Context, Result, anyhow, bail, ensure};
use onewrite_core::{environment, parse_bytes, parse_duration};
use std::time::Duration;

/// Environment variable with the place of the database, where the URI has no `replica`.
pub const REPLICA_VARIABLE: &str = "ONEWRITE_REPLICA";

/// Parameters that SQLite itself reads.
const SQLITES: [&str; 7] = ["vfs", "mode", "cache", "psow", "nolock", "immutable", "modeof"];
const CACHE_MIN: u64 = 1 << 20;
const CACHE_MAX: u64 = 1 << 40;

/// How to read a database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// `replica`: its place, as `onewrite restore` takes it.
    pub url: String,
    /// `poll`: a transaction looks for a newer state if the last look was longer ago.
    pub poll: Duration,
    /// `cache_size`: bytes of pages kept in memory.
    pub cache_bytes: u64,
    /// `hydrate`: copy the database to this machine in the background.
    pub hydrate: bool,
}

impl Settings {
    /// From the parameters of a URI and the environment. Errors name the value and the choices.
    pub fn new(parameters: &[(String, String)]) -> Result<Settings> {
        let mut settings =
            Settings { url: String::new(), poll: Duration::from_secs(1), cache_bytes: 64 << 20, hydrate: false };
        for (name, value) in parameters {
            match name.as_str() {
                "replica" => settings.url.clone_from(value),
                "poll" => settings.poll = parse_duration(name, value)?,
                "cache_size" => settings.cache_bytes = parse_bytes(name, value, CACHE_MIN, CACHE_MAX)?,
                "hydrate" => {
                    settings.hydrate = match value.as_str() {
                        "1" | "on" | "yes" | "true" => true,
                        "0" | "off" | "no" | "false" => false,
                        _ => bail!("hydrate={value}: not a value of this parameter; the choices are 0 and 1"),
                    };
                }
                name if SQLITES.contains(&name) => {}
                name => bail!("{name} is no parameter of a replica: there are replica, poll, cache_size and hydrate"),
            }
        }
        if settings.url.is_empty() {
            let url = environment::variable(REPLICA_VARIABLE).with_context(|| {
                format!(
                    "the database's place is missing: name it as file:app.db?vfs=onewrite-replica&replica=s3://bucket/app, \
                     or in the environment variable {REPLICA_VARIABLE}"
                )
            })?;
            settings.url = url.into_string().map_err(|_| anyhow!("{REPLICA_VARIABLE} is no text"))?;
        }
        ensure!(!settings.url.is_empty(), "replica= names no place");
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parameters: &[(&str, &str)]) -> Result<Settings> {
        Settings::new(&parameters.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect::<Vec<_>>())
    }

    #[test]
    fn parameters_are_read_or_named() {
        let settings = of(&[("vfs", "onewrite-replica"), ("replica", "file:///b/a"), ("poll", "20ms")]).unwrap();
        assert_eq!((settings.url.as_str(), settings.poll), ("file:///b/a", Duration::from_millis(20)));
        let settings = of(&[("replica", "s3://b/a"), ("cache_size", "2m"), ("hydrate", "1")]).unwrap();
        assert_eq!((settings.cache_bytes, settings.hydrate), (2 << 20, true));
        for (wrong, word) in [
            (("poll", "often"), "1ms to 60m"),
            (("cache_size", "1"), "1048576 to"),
            (("hydrate", "perhaps"), "the choices are 0 and 1"),
            (("cachesize", "1m"), "there are replica, poll"),
        ] {
            let error = format!("{:#}", of(&[("replica", "s3://b/a"), wrong]).unwrap_err());
            assert!(error.contains(word) && error.contains(wrong.0), "{error}");
        }
        assert!(format!("{:#}", of(&[]).unwrap_err()).contains(REPLICA_VARIABLE));
    }
}
