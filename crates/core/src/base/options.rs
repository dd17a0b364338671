//! URI, pragmas, C API and command line share one parser of settings.

use std::time::Duration;

use crate::base::error::{Error, Result};
use crate::base::research::{self, Extra, ResearchName};

/// How a commit becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemeName {
    /// Records of deltas; checkpoints write home.
    Log,
    /// One of `research/`, which the feature `research` brings along.
    Research(ResearchName),
}

/// Content of a record for a changed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// Changed bytes.
    Delta,
    /// The whole page, block-aligned (`wal-opt`).
    Full,
}

/// Whether counters alone write page 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderPage {
    /// The record has them (metadata embedding of LS-MVBT).
    Embed,
    /// As stock SQLite.
    Write,
}

/// How a full page splits. Only onewrite's libsqlite3 does other than [`Split::Stock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// With up to two siblings, as SQLite does (sibling redistribution).
    Stock,
    /// Into itself and a new page (lazy split of LS-MVBT).
    Lazy,
    /// Into two new pages; the old one goes to the freelist (MVBT).
    Legacy,
}

/// Where a replaced record goes. Only onewrite's libsqlite3 does other than [`Updates::Over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// Over it or other free bytes, as in SQLite.
    Over,
    /// Beside it, over no byte of the state before (Doubleheader Logging).
    Beside,
}

/// The answer to a request for WAL mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wal {
    /// onewrite goes on; a file in WAL mode leaves it at first use.
    Absorb,
    /// SQLite's own WAL mode, past onewrite.
    Stock,
}

/// What becomes of a database on a file system that machines share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// It is left to SQLite's own modes.
    Stock,
    /// It is served: the host knows that this machine alone uses the file system.
    Trust,
}

/// Values of an option and their names. [`Options::get`] answers a value's first name.
pub trait OptionValue: Copy + PartialEq + 'static {
    const ALL: &[(Self, &str)];

    /// An error names the option and the choices.
    fn parse(option: &str, value: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(value));
        let names = || Self::ALL.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
        found.map(|(choice, _)| *choice).ok_or_else(|| bad(option, value, &names()))
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(choice, _)| *choice == self).map_or("", |(_, name)| *name)
    }
}

impl OptionValue for bool {
    const ALL: &[(bool, &str)] = &[
        (false, "0"),
        (true, "1"),
        (true, "on"),
        (false, "off"),
        (true, "yes"),
        (false, "no"),
        (true, "true"),
        (false, "false"),
    ];
}

impl OptionValue for HeaderPage {
    const ALL: &[(HeaderPage, &str)] = &[(HeaderPage::Embed, "embed"), (HeaderPage::Write, "write")];
}

impl OptionValue for Split {
    const ALL: &[(Split, &str)] = &[(Split::Lazy, "lazy"), (Split::Legacy, "legacy"), (Split::Stock, "stock")];
}

impl OptionValue for Updates {
    const ALL: &[(Updates, &str)] = &[(Updates::Over, "over"), (Updates::Beside, "beside")];
}

impl OptionValue for Wal {
    const ALL: &[(Wal, &str)] = &[(Wal::Absorb, "absorb"), (Wal::Stock, "stock")];
}

impl OptionValue for Network {
    const ALL: &[(Network, &str)] = &[(Network::Stock, "stock"), (Network::Trust, "trust")];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundle {
    pub scheme: SchemeName,
    pub images: Images,
    pub header_page: HeaderPage,
    pub split: Split,
    /// Both halves of a split page have room for so many cells.
    pub reserve_cells: u32,
    pub updates: Updates,
    pub extra: Extra,
}

impl Bundle {
    /// This scheme is the point of the project.
    pub const LOG: Bundle = Bundle {
        scheme: SchemeName::Log,
        images: Images::Delta,
        header_page: HeaderPage::Embed,
        split: Split::Lazy,
        reserve_cells: 0,
        updates: Updates::Over,
        extra: Extra::DEFAULT,
    };
    pub const STOCK: Bundle = Bundle { split: Split::Stock, ..Bundle::LOG };
}

/// A bundle that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// URIs, pragmas and tables have this name.
    pub name: &'static str,
    /// Its options.
    pub bundle: Bundle,
}

impl Preset {
    const PRODUCT: [Preset; 2] = [
        Preset { name: "log", bundle: Bundle::LOG },
        Preset { name: "wal-opt", bundle: Bundle { images: Images::Full, ..Bundle::STOCK } },
    ];
    const DEFAULT: Preset = Preset::PRODUCT[0];

    /// Every preset of this build.
    pub fn all() -> impl Iterator<Item = Preset> {
        Preset::PRODUCT.into_iter().chain(research::PRESETS)
    }
}

/// A database's settings: the first connection of a process decides, others must agree or omit
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The bundle began with this preset.
    pub preset: &'static str,
    /// Other options may change the preset's bundle.
    pub bundle: Bundle,
    /// The ring grows to so many bytes.
    pub log_bytes: u64,
    /// A checkpoint follows so many bytes of page images in memory.
    pub table_bytes: u64,
    /// A transaction of so many bytes streams.
    pub stream_bytes: u64,
    /// One call waits for other writers so many milliseconds at most.
    pub busy_ms: u64,
    /// Write transactions overlap, and are checked at commit.
    pub concurrent: bool,
    /// The last close leaves the mark: fewer flushes, but stock SQLite stays out.
    pub sticky: bool,
    /// The device writes so many bytes all or nothing; 0: as it claims.
    pub atomic_unit: u32,
    /// A write leaves its sector's neighbours alone.
    pub psow: bool,
    /// A process without a transaction for this long detaches; zero: with its last close.
    pub idle: Duration,
    /// The answer to a request for WAL mode.
    pub wal: Wal,
    /// It decides about a database on a file system that machines share.
    pub network: Network,
    /// A connection fails rather than bypass onewrite.
    pub require: bool,
    /// A connection begins sessions also where commits wait for a store.
    pub shipper: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options::preset(Preset::DEFAULT)
    }
}

/// The smallest ring holds two records of the largest page.
pub const LOG_BYTES_MIN: u64 = 256 << 10;
pub const LOG_BYTES_MAX: u64 = 1 << 30;
/// Half of any page's cells are fewer.
pub const RESERVE_CELLS_MAX: u32 = 10_000;
pub const STREAM_BYTES_MAX: u64 = 1 << 30;

const OTHERS: &str = if research::PRESETS.is_empty() {
    "; this build has no schemes of the research (the feature `research` of cargo)"
} else {
    ""
};

const NAMES: [&str; 18] = [
    "scheme",
    "header_page",
    "split",
    "reserve_cells",
    "updates",
    "log_size",
    "table_size",
    "stream_size",
    "busy_ms",
    "idle",
    "concurrent",
    "sticky",
    "atomic_unit",
    "psow",
    "wal",
    "network",
    "require",
    "shipper",
];

impl Options {
    /// Looks at an attached database are so far apart; `None`: it needs none.
    pub fn look_after(&self) -> Option<Duration> {
        (!self.idle.is_zero()).then(|| self.idle / 4)
    }

    /// A preset's options.
    pub fn preset(preset: Preset) -> Self {
        Options {
            preset: preset.name,
            bundle: preset.bundle,
            log_bytes: 4 << 20,
            table_bytes: 8 << 20,
            stream_bytes: 4 << 20,
            busy_ms: 2000,
            concurrent: false,
            sticky: false,
            atomic_unit: 0,
            psow: true,
            idle: Duration::from_secs(1),
            wal: Wal::Absorb,
            network: Network::Stock,
            require: false,
            shipper: false,
        }
    }

    /// Names for [`Options::set`] and [`Options::get`]. `scheme` first: it resets the bundle.
    pub const NAMES: [&'static str; NAMES.len() + Extra::NAMES.len()] = {
        let mut all = [""; NAMES.len() + Extra::NAMES.len()];
        let (names, extra) = all.split_at_mut(NAMES.len());
        names.copy_from_slice(&NAMES);
        extra.copy_from_slice(&Extra::NAMES);
        all
    };

    /// Options on which connections need not agree.
    pub const OWN: [&'static str; 3] = ["busy_ms", "require", "shipper"];

    /// Options from names and values.
    pub fn given(given: &[(String, String)]) -> Result<Options> {
        let mut options = Options::default();
        // Presets first: they reset their bundle.
        for pass in [true, false] {
            for (name, value) in given.iter().filter(|(n, _)| (n == "scheme") == pass) {
                options.set(name, value)?;
            }
        }
        options.check()?;
        Ok(options)
    }

    /// Sets an option from text. Errors name the option, the value and the choices.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "scheme" => {
                let preset = Preset::all().find(|preset| preset.name.eq_ignore_ascii_case(value));
                let names = || Preset::all().map(|preset| preset.name).collect::<Vec<_>>().join(", ") + OTHERS;
                let preset = preset.ok_or_else(|| bad(name, value, &names()))?;
                (self.preset, self.bundle) = (preset.name, preset.bundle);
            }
            "header_page" => self.bundle.header_page = OptionValue::parse(name, value)?,
            "split" => self.bundle.split = OptionValue::parse(name, value)?,
            "reserve_cells" => {
                let cells = value.parse().ok().filter(|n| *n <= RESERVE_CELLS_MAX);
                self.bundle.reserve_cells =
                    cells.ok_or_else(|| bad(name, value, &format!("0 to {RESERVE_CELLS_MAX}")))?;
            }
            "updates" => self.bundle.updates = OptionValue::parse(name, value)?,
            "log_size" => self.log_bytes = bytes(name, value, LOG_BYTES_MIN, LOG_BYTES_MAX)?.next_multiple_of(4096),
            "table_size" => self.table_bytes = bytes(name, value, 64 << 10, 64 << 30)?,
            "stream_size" => self.stream_bytes = bytes(name, value, 64 << 10, STREAM_BYTES_MAX)?,
            "busy_ms" => {
                let ms = value.parse().ok().filter(|ms| *ms <= 3_600_000);
                self.busy_ms = ms.ok_or_else(|| bad(name, value, "0 to 3600000 (milliseconds)"))?;
            }
            "idle" => self.idle = duration(name, value)?,
            "concurrent" => self.concurrent = OptionValue::parse(name, value)?,
            "sticky" => self.sticky = OptionValue::parse(name, value)?,
            "psow" => self.psow = OptionValue::parse(name, value)?,
            "wal" => self.wal = OptionValue::parse(name, value)?,
            "network" => self.network = OptionValue::parse(name, value)?,
            "require" => self.require = OptionValue::parse(name, value)?,
            "shipper" => self.shipper = OptionValue::parse(name, value)?,
            "atomic_unit" => {
                let choices = "0 (as the device claims), 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536";
                let can_be = |unit: &u32| *unit == 0 || unit.is_power_of_two() && (512..=65536).contains(unit);
                self.atomic_unit = value.parse().ok().filter(can_be).ok_or_else(|| bad(name, value, choices))?;
            }
            _ if self.bundle.extra.set(name, value)? => {}
            _ => {
                let names = Self::NAMES.join(", ");
                return Err(Error::Option(format!("unknown option {name:?}; the options are {names}")));
            }
        }
        Ok(())
    }

    /// Fails if options do not fit together.
    pub fn check(&self) -> Result<()> {
        if self.concurrent && self.bundle.scheme != SchemeName::Log {
            let name = self.preset;
            return Err(Error::Option(format!("concurrent=1 goes with scheme=log or wal-opt, not with scheme={name}")));
        }
        Ok(())
    }

    /// [`Options::set`] accepts the value. `None`: unknown name.
    pub fn get(&self, name: &str) -> Option<String> {
        Some(match name {
            "scheme" => self.preset.to_owned(),
            "header_page" => self.bundle.header_page.name().to_owned(),
            "split" => self.bundle.split.name().to_owned(),
            "reserve_cells" => self.bundle.reserve_cells.to_string(),
            "updates" => self.bundle.updates.name().to_owned(),
            "log_size" => self.log_bytes.to_string(),
            "table_size" => self.table_bytes.to_string(),
            "stream_size" => self.stream_bytes.to_string(),
            "busy_ms" => self.busy_ms.to_string(),
            "idle" => format!("{}ms", self.idle.as_millis()),
            "concurrent" => self.concurrent.name().to_owned(),
            "sticky" => self.sticky.name().to_owned(),
            "atomic_unit" => self.atomic_unit.to_string(),
            "psow" => self.psow.name().to_owned(),
            "wal" => self.wal.name().to_owned(),
            "network" => self.network.name().to_owned(),
            "require" => self.require.name().to_owned(),
            "shipper" => self.shipper.name().to_owned(),
            _ => return self.bundle.extra.get(name),
        })
    }
}

fn bad(name: &str, value: &str, choices: &str) -> Error {
    Error::Option(format!("{name}={value}: not a value of this option; the choices are {choices}"))
}

/// Parses a time with its unit: `20ms`, `1s`, `2m`. An error names the setting and the choices.
pub fn duration(name: &str, value: &str) -> Result<Duration> {
    let choices = || bad(name, value, "0, or 1ms to 60m: milliseconds, seconds or minutes, as 20ms, 1s, 2m");
    let lower = value.to_ascii_lowercase();
    let scales = [("ms", 1), ("s", 1000), ("m", 60_000)];
    let scaled = scales.iter().find_map(|(suffix, scale)| Some((lower.strip_suffix(suffix)?, *scale)));
    let (digits, scale) = scaled.or((lower == "0").then_some(("0", 1))).ok_or_else(choices)?;
    let ms: u64 = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)).ok_or_else(choices)?;
    if ms <= 3_600_000 { Ok(Duration::from_millis(ms)) } else { Err(choices()) }
}

/// Parses a size with an optional suffix k, m or g. An error names the setting and the choices.
pub fn bytes(name: &str, value: &str, min: u64, max: u64) -> Result<u64> {
    let choices = || bad(name, value, &format!("{min} to {max} bytes, with an optional suffix k, m or g"));
    let lower = value.to_ascii_lowercase();
    let (digits, shift) = match lower.as_bytes().last() {
        Some(b'k') => (lower.trim_end_matches('k'), 10),
        Some(b'm') => (lower.trim_end_matches('m'), 20),
        Some(b'g') => (lower.trim_end_matches('g'), 30),
        _ => (lower.as_str(), 0),
    };
    let n: u64 = digits.parse().map_err(|_| choices())?;
    let n = n.checked_mul(1 << shift).ok_or_else(choices)?;
    if (min..=max).contains(&n) { Ok(n) } else { Err(choices()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_settable_to_the_answer_of_get() {
        let mut o = Options::default();
        for name in Options::NAMES {
            let v = o.get(name).unwrap();
            o.set(name, &v).unwrap();
        }
        assert_eq!(o, Options::default());
    }

    #[test]
    fn an_impossible_value_names_the_option_the_value_and_the_choices() {
        let mut o = Options::default();
        let cases = [
            ("scheme", "fast", "wal-opt"),
            ("log_size", "1", "262144"),
            ("log_size", "99999999999999999999g", "262144"),
            ("sticky", "maybe", "yes"),
            ("atomic_unit", "1000", "4096"),
            ("split", "eager", "legacy"),
            ("reserve_cells", "-1", "10000"),
            ("busy_ms", "-1", "3600000"),
            ("network", "maybe", "trust"),
            ("idle", "1", "20ms"),
            ("idle", "61m", "60m"),
            ("colour", "red", "log_size"),
        ];
        for (name, value, choice) in cases {
            let message = o.set(name, value).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(choice), "{message}");
        }
        assert_eq!(o, Options::default());
    }

    #[test]
    fn times_take_suffixes() {
        let mut o = Options::default();
        for (text, ms) in [("0", 0), ("20ms", 20), ("3S", 3000), ("60m", 3_600_000)] {
            o.set("idle", text).unwrap();
            assert_eq!(o.idle, Duration::from_millis(ms));
        }
    }

    #[test]
    fn sizes_take_suffixes() {
        let mut o = Options::default();
        o.set("log_size", "2M").unwrap();
        assert_eq!(o.log_bytes, 2 << 20);
        o.set("table_size", "512k").unwrap();
        assert_eq!(o.table_bytes, 512 << 10);
    }
}
