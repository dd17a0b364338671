//! Commits and flash: how long a card lasts at a rate of commits, from the bytes that a commit
//! makes the device write.

use crate::numbers::measure::round;
use serde::Serialize;

/// The card and its use. The defaults are a cheap card in a busy small computer.
#[derive(Clone, Debug, PartialEq, clap::Args, Serialize)]
pub struct Wear {
    /// Estimate the years a flash card lasts under these commits
    #[arg(long)]
    #[serde(skip)]
    pub wear: bool,
    /// Size of the card
    #[arg(long, value_name = "GB", default_value_t = 32.0, value_parser = positive)]
    pub card_gb: f64,
    /// Times each of its blocks can be erased: 500 for the cheapest, 3000 for usual MLC and TLC
    /// cards, 30000 for pSLC
    #[arg(long, value_name = "N", default_value_t = 3000.0, value_parser = positive)]
    pub card_cycles: f64,
    /// Bytes the card writes inside for each byte it is told to write: 1 at best, 2 to 10 for small
    /// random writes
    #[arg(long, value_name = "N", default_value_t = 4.0, value_parser = positive)]
    pub card_amplification: f64,
    /// Commits per second, day and night
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = positive)]
    pub commits_per_s: f64,
}

fn positive(s: &str) -> Result<f64, String> {
    let v: f64 = s.parse().map_err(|_| format!("`{s}` is not a number"))?;
    if v > 0.0 && v.is_finite() { Ok(v) } else { Err(format!("`{s}` is not greater than 0")) }
}

/// An engine's wear of the card.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Worn {
    pub bytes_per_commit: f64,
    pub years: f64,
}

const SECONDS_PER_YEAR: f64 = 365.25 * 86400.0;

impl Wear {
    /// `None` of commits that write nothing.
    pub fn of(&self, kib_per_commit: f64) -> Option<Worn> {
        let bytes = kib_per_commit * 1024.0;
        (bytes > 0.0).then(|| Worn { bytes_per_commit: round(bytes, 0), years: round(self.years(bytes), 3) })
    }

    /// Years until the card has written all that its blocks can take.
    pub fn years(&self, bytes_per_commit: f64) -> f64 {
        let life_bytes = self.card_gb * 1e9 * self.card_cycles / self.card_amplification;
        life_bytes / (bytes_per_commit * self.commits_per_s * SECONDS_PER_YEAR)
    }

    /// The assumptions, in words.
    pub fn describe(&self) -> String {
        format!(
            "a card of {} GB, {} erase cycles, write amplification {}, {} commits per second day and night",
            self.card_gb, self.card_cycles, self.card_amplification, self.commits_per_s
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn years_follow_from_bytes() {
        let wear = Wear { wear: true, card_gb: 1.0, card_cycles: 1000.0, card_amplification: 1.0, commits_per_s: 1.0 };
        // 10^12 bytes at 10^12 / SECONDS_PER_YEAR bytes per second.
        assert!((wear.years(1e12 / SECONDS_PER_YEAR) - 1.0).abs() < 1e-9);
        let worn = wear.of(4.0).unwrap();
        assert_eq!(worn, Worn { bytes_per_commit: 4096.0, years: round(1e12 / 4096.0 / SECONDS_PER_YEAR, 3) });
        assert_eq!(wear.of(0.0), None);
        let doubled = Wear { commits_per_s: 2.0, ..wear };
        assert!((doubled.years(1e12 / SECONDS_PER_YEAR) - 0.5).abs() < 1e-9);
        assert!(positive("0").is_err() && positive("x").is_err());
    }
}
