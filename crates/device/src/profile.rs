//! The time that a class of flash takes to answer: a queue in front of channels, with times from
//! published measurements. `docs/devices.md` names the sources and the approximations.

use std::fmt;
use std::str::FromStr;

use crate::trace::{Event, Operation};

/// The device to imitate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// No delay beyond the machinery's own.
    #[default]
    None,
    /// The embedded MMC of a phone of 2013.
    Emmc,
    /// Universal Flash Storage 2.0 of a phone of 2015.
    Ufs,
    /// An SD card that just meets application performance class A1.
    SdCard,
    /// A SATA SSD of a desktop, without capacitors.
    Sata,
    /// An NVMe SSD of a desktop, without capacitors.
    Nvme,
}

/// The times of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A 4 KiB write that does not continue the one before, until the device's cache has it.
    pub random_write_us: u64,
    /// A 4 KiB write that continues the one before.
    pub sequential_write_us: u64,
    /// A 4 KiB read.
    pub read_us: u64,
    /// Transfer of each further byte, in picoseconds: 10,000 are 100 MB/s.
    pub write_ps_per_byte: u64,
    /// The same for reads.
    pub read_ps_per_byte: u64,
    /// A flush after an unflushed write.
    pub flush_us: u64,
    /// A flush without one.
    pub empty_flush_us: u64,
    /// Commands that the device processes at once.
    pub channels: usize,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Profile; 6] =
        [Profile::None, Profile::Emmc, Profile::Ufs, Profile::SdCard, Profile::Sata, Profile::Nvme];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Profile::None => "none",
            Profile::Emmc => "emmc",
            Profile::Ufs => "ufs",
            Profile::SdCard => "sdcard",
            Profile::Sata => "sata",
            Profile::Nvme => "nvme",
        }
    }

    /// The times; `None` for no delay.
    pub fn timing(self) -> Option<Timing> {
        match self {
            Profile::None => None,
            Profile::Emmc => Some(Timing {
                random_write_us: 250,
                sequential_write_us: 150,
                read_us: 150,
                write_ps_per_byte: 20_000,
                read_ps_per_byte: 5_000,
                flush_us: 650,
                empty_flush_us: 50,
                channels: 1,
            }),
            Profile::Ufs => Some(Timing {
                random_write_us: 130,
                sequential_write_us: 100,
                read_us: 100,
                write_ps_per_byte: 7_000,
                read_ps_per_byte: 3_000,
                flush_us: 450,
                empty_flush_us: 40,
                channels: 8,
            }),
            Profile::SdCard => Some(Timing {
                random_write_us: 2_000,
                sequential_write_us: 410,
                read_us: 667,
                write_ps_per_byte: 100_000,
                read_ps_per_byte: 50_000,
                flush_us: 100,
                empty_flush_us: 100,
                channels: 1,
            }),
            Profile::Sata => Some(Timing {
                random_write_us: 60,
                sequential_write_us: 50,
                read_us: 100,
                write_ps_per_byte: 2_000,
                read_ps_per_byte: 1_900,
                flush_us: 2_900,
                empty_flush_us: 50,
                channels: 8,
            }),
            Profile::Nvme => Some(Timing {
                random_write_us: 25,
                sequential_write_us: 20,
                read_us: 80,
                write_ps_per_byte: 500,
                read_ps_per_byte: 300,
                flush_us: 850,
                empty_flush_us: 15,
                channels: 32,
            }),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Profile, String> {
        let found = Profile::ALL.into_iter().find(|p| p.name() == text);
        found.ok_or_else(|| {
            format!("no device is called {text:?}: choose {}", Profile::ALL.map(Profile::name).join(", "))
        })
    }
}

/// Nanoseconds for requests recorded elsewhere. Requests between two flushes arrive together; a
/// flush, and the requests behind it, arrive when all before are answered.
pub fn time_ns(timing: Option<Timing>, events: &[Event]) -> u64 {
    let mut queue = Queue::with(timing);
    let (mut now, mut done) = (0, 0);
    for event in events {
        match event.operation {
            Operation::Write { offset, len, .. } => done = queue.write(now, offset, len).max(done),
            Operation::Zero { offset, .. } => done = queue.write(now, offset, 0).max(done),
            Operation::Flush => {
                now = queue.flush(done.max(now));
                done = now;
            }
        }
    }
    done
}

/// Computes when commands are answered. All times are nanoseconds of one clock.
pub struct Queue {
    timing: Option<Timing>,
    channels_free_ns: Vec<u64>,
    last_done_ns: u64,
    next_offset: u64,
    dirty: bool,
}

impl Queue {
    /// An idle device.
    pub fn new(profile: Profile) -> Queue {
        Queue::with(profile.timing())
    }

    /// An idle device with these times.
    pub fn with(timing: Option<Timing>) -> Queue {
        let channels = timing.map_or(0, |t| t.channels);
        Queue { timing, channels_free_ns: vec![0; channels], last_done_ns: 0, next_offset: u64::MAX, dirty: false }
    }

    /// When a write is answered.
    pub fn write(&mut self, now_ns: u64, offset: u64, len: u64) -> u64 {
        let sequential = self.next_offset == offset;
        self.next_offset = offset + len;
        self.dirty = true;
        let Some(t) = self.timing else { return now_ns };
        let start_us = if sequential { t.sequential_write_us } else { t.random_write_us };
        self.take(now_ns, start_us * 1000 + t.write_ps_per_byte * len.saturating_sub(4096) / 1000)
    }

    /// When a read is answered.
    pub fn read(&mut self, now_ns: u64, len: u64) -> u64 {
        let Some(t) = self.timing else { return now_ns };
        self.take(now_ns, t.read_us * 1000 + t.read_ps_per_byte * len.saturating_sub(4096) / 1000)
    }

    /// When a flush is answered: no other command starts meanwhile.
    pub fn flush(&mut self, now_ns: u64) -> u64 {
        let dirty = std::mem::take(&mut self.dirty);
        let Some(t) = self.timing else { return now_ns };
        let cost_us = if dirty { t.flush_us } else { t.empty_flush_us };
        let done = now_ns.max(self.last_done_ns) + cost_us * 1000;
        self.channels_free_ns.fill(done);
        self.last_done_ns = done;
        done
    }

    fn take(&mut self, now_ns: u64, cost_ns: u64) -> u64 {
        let Some(free) = self.channels_free_ns.iter_mut().min() else { return now_ns };
        *free = now_ns.max(*free) + cost_ns;
        self.last_done_ns = self.last_done_ns.max(*free);
        *free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_channel_works_in_turn_and_a_flush_waits_for_all() {
        let t = Profile::Emmc.timing().unwrap();
        let mut queue = Queue::new(Profile::Emmc);
        let first = queue.write(1_000, 8192, 4096);
        assert_eq!(first, 1_000 + t.random_write_us * 1000);
        let second = queue.write(1_000, 12288, 8192);
        assert_eq!(second, first + t.sequential_write_us * 1000 + t.write_ps_per_byte * 4096 / 1000);
        let flushed = queue.flush(2_000);
        assert_eq!(flushed, second + t.flush_us * 1000);
        assert_eq!(queue.flush(flushed), flushed + t.empty_flush_us * 1000);
    }

    #[test]
    fn channels_work_side_by_side() {
        let t = Profile::Nvme.timing().unwrap();
        let mut queue = Queue::new(Profile::Nvme);
        let done: Vec<u64> = (0..=t.channels as u64).map(|i| queue.write(0, i << 20, 4096)).collect();
        assert!(done[..t.channels].iter().all(|at| *at == t.random_write_us * 1000));
        assert_eq!(done[t.channels], 2 * t.random_write_us * 1000);
    }

    #[test]
    fn a_recorded_commit_takes_its_writes_and_its_flush() {
        let event = |operation| Event { arrived_ns: 5, done_ns: 5, operation };
        let write = |offset| event(Operation::Write { offset, len: 4096, data: None });
        let events = [write(0), write(1 << 20), event(Operation::Flush), write(1 << 21), event(Operation::Flush)];
        let us = |profile: Profile| time_ns(profile.timing(), &events) / 1000;
        assert_eq!(us(Profile::Emmc), 3 * 250 + 2 * 650);
        assert_eq!(us(Profile::Ufs), 2 * 130 + 2 * 450, "two writes at once");
        assert_eq!(us(Profile::None), 0);
    }

    #[test]
    fn names_are_read_back() {
        assert!(Profile::ALL.into_iter().all(|p| p.name().parse() == Ok(p)));
        assert!("floppy".parse::<Profile>().unwrap_err().contains("sdcard"));
    }
}
