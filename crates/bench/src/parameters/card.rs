//! The parameter card: everything that changes a result and that the bench can know.

use crate::counting::device::{Device, Queue};
use crate::counting::simulated::{self, Simulated};
use crate::counting::wear::Wear;
use crate::engines::EngineSettings;
use crate::host::{self, Mount};
use crate::text::wrap;
use crate::workload::WorkloadCard;
use anyhow::Result;
use rusqlite::Connection;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// `"parameters"` of the JSON. `None` is unknown.
#[derive(Debug, Serialize)]
pub struct Parameters {
    pub onewrite_version: &'static str,
    /// When the result was there, in UTC.
    pub made_at: String,
    pub command: String,
    /// `release` or `debug`.
    pub build: &'static str,
    pub sqlite_version: String,
    pub compile_options: Vec<String>,
    /// Per engine: journal mode, synchronous, page and cache size, locking, checkpoint interval.
    pub engines: BTreeMap<String, EngineSettings>,
    /// The lines of key-value stores.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stores: BTreeMap<&'static str, String>,
    /// Per workload: schema, statements, rows, key order, transactions, threads and connections.
    pub workloads: BTreeMap<String, WorkloadCard>,
    pub indexes: usize,
    /// Of the first workload, as the next three.
    pub preloaded_rows: usize,
    pub row_bytes: usize,
    pub key_order: &'static str,
    pub transactions: usize,
    pub warm_up_transactions: usize,
    pub cold: &'static str,
    pub wal_at_start: &'static str,
    pub checkpoint_at_end: &'static str,
    pub runs: usize,
    /// After which no run was begun for the sake of better known medians; `None` where the runs
    /// were counted.
    pub minutes_max: Option<f64>,
    pub run_order: &'static str,
    pub seed: u64,
    /// The flash that years of life are estimated for.
    pub wear: Wear,
    pub floor: String,
    pub syscall_counting: &'static str,
    /// Calls per transaction by name, per engine and workload.
    pub syscalls: BTreeMap<String, BTreeMap<String, f64>>,
    /// Of the first engine, where all were measured on file systems of their own.
    pub machine: Machine,
    /// Of engines that were measured on file systems of their own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub machines: BTreeMap<String, Machine>,
    /// Names of the values that could not be found out.
    pub unknown: Vec<String>,
    /// Facts that a reader of the results must know.
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Machine {
    pub system: &'static str,
    pub kernel: Option<String>,
    pub file_system: Option<String>,
    pub mount_options: Option<Vec<String>>,
    /// How the file system makes its own changes atomic.
    pub file_system_journal: Option<String>,
    pub free_bytes: Option<u64>,
    /// Why there are no counts of the block device.
    pub device_unknown: Option<String>,
    pub device: Option<Queue>,
    /// The device that it stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<simulated::DeviceCard>,
    pub cpu_model: Option<String>,
    pub cpus: Option<usize>,
    pub cpu_governor: Option<String>,
    pub memory_bytes: Option<u64>,
}

impl Machine {
    pub fn look(
        dir: &Path,
        mount: Option<&Mount>,
        device: &Result<Device, String>,
        simulated: Option<&Simulated>,
    ) -> Machine {
        let mut queue = device.as_ref().ok().map(Device::queue);
        if let (Some(queue), Some(simulated)) = (&mut queue, simulated) {
            // Which loop device it is says nothing.
            queue.name = "loop".to_owned();
            queue.model = Some(format!("simulated {}", simulated.describe().profile));
        }
        let computer = host::computer();
        Machine {
            system: computer.system,
            kernel: computer.kernel,
            file_system: mount.map(|m| m.fs_type.clone()),
            mount_options: mount.map(|m| m.options.clone()).filter(|options| !options.is_empty()),
            file_system_journal: mount.and_then(file_system_journal),
            free_bytes: host::free_bytes(dir),
            device_unknown: device.as_ref().err().cloned(),
            device: queue,
            simulated: simulated.map(|s| s.describe().clone()),
            cpu_model: computer.cpu_model,
            cpus: std::thread::available_parallelism().ok().map(usize::from),
            cpu_governor: computer.cpu_governor,
            memory_bytes: computer.memory_bytes,
        }
    }
}

impl Machine {
    /// Names of the unknown values.
    pub fn unknown(&self) -> Vec<&'static str> {
        let device = self.device.as_ref();
        let has = |of: fn(&Queue) -> bool| device.is_some_and(of);
        let known = [
            ("kernel", self.kernel.is_some()),
            ("file system", self.file_system.is_some()),
            ("mount options", self.mount_options.is_some()),
            ("journal of the file system", self.file_system_journal.is_some()),
            ("free space", self.free_bytes.is_some()),
            ("device", device.is_some()),
            ("device model", has(|d| d.model.is_some())),
            ("write cache", has(|d| d.write_cache.is_some())),
            ("FUA", has(|d| d.fua.is_some())),
            ("block size", has(|d| d.physical_block_size.is_some())),
            ("atomic unit", has(|d| d.atomic_write_bytes_max.is_some())),
            ("scheduler", has(|d| d.scheduler.is_some())),
            ("CPU", self.cpu_model.is_some()),
            ("CPU governor", self.cpu_governor.is_some()),
            ("memory", self.memory_bytes.is_some()),
        ];
        known.into_iter().filter(|(_, known)| !known).map(|(name, _)| name).collect()
    }

    /// The file system and the device, in words.
    pub fn place(&self) -> [(&'static str, String); 2] {
        let device = match &self.device {
            None => self.device_unknown.clone().unwrap_or_else(|| "unknown".to_owned()),
            Some(q) => format!(
                "{}{}, write cache: {}, FUA: {}, physical block {} B, logical {} B, atomic writes to {} B, scheduler {}",
                q.name,
                q.model.as_ref().map(|m| format!(" ({m})")).unwrap_or_default(),
                known(&q.write_cache),
                q.fua.map_or("unknown", |f| if f { "yes" } else { "no" }),
                known(&q.physical_block_size.map(|n| n.to_string())),
                known(&q.logical_block_size.map(|n| n.to_string())),
                known(&q.atomic_write_bytes_max.map(|n| n.to_string())),
                known(&q.scheduler)
            ),
        };
        let file_system = format!(
            "{} ({}), journal: {}, free: {}",
            known(&self.file_system),
            known(&self.mount_options.as_ref().map(|o| o.join(","))),
            known(&self.file_system_journal),
            known(&self.free_bytes.map(gib))
        );
        [("file system", file_system), ("device", device)]
    }

    /// The kind of the disk: what its name and its queue tell.
    fn disk(&self) -> String {
        if let Some(simulated) = &self.simulated {
            return format!("simulated {}", simulated.profile);
        }
        let Some(device) = &self.device else { return "no block device".to_owned() };
        let kinds = [
            ("vd", "virtual disk"),
            ("xvd", "virtual disk"),
            ("nvme", "NVMe drive"),
            ("mmcblk", "SD card or eMMC"),
            ("loop", "loop device"),
            ("dm-", "mapped device"),
            ("md", "RAID"),
        ];
        let by_name = kinds.iter().find(|(name, _)| device.name.starts_with(name)).map(|(_, kind)| *kind);
        let by_queue = if device.rotational == Some(true) { "hard disk" } else { "disk" };
        let cache = match (device.write_cache.as_deref(), device.fua) {
            (Some("write back"), Some(true)) => ", volatile write cache, FUA",
            (Some("write back"), _) => ", volatile write cache, no FUA",
            (Some(_), _) => ", no volatile write cache",
            (None, _) => "",
        };
        format!("{}{cache}", by_name.unwrap_or(by_queue))
    }

    /// Kernel, file system, kind of disk and processors, in a line.
    pub fn host(&self) -> String {
        let (kernel, file_system) = (known(&self.kernel), known(&self.file_system));
        let cpus = known(&self.cpus.map(|n| n.to_string()));
        format!("{} {kernel}, {file_system} on a {}, {cpus} CPUs", self.system, self.disk())
    }

    /// The computer, in words.
    pub fn computer(&self) -> (&'static str, String) {
        let text = format!(
            "{} {}, {}, {} CPUs, governor {}, {} memory",
            self.system,
            known(&self.kernel),
            self.cpu_model.as_deref().unwrap_or("CPU unknown"),
            known(&self.cpus.map(|n| n.to_string())),
            known(&self.cpu_governor),
            known(&self.memory_bytes.map(gib))
        );
        ("machine", text)
    }
}

fn known(v: &Option<String>) -> String {
    v.clone().unwrap_or_else(|| "unknown".to_owned())
}

/// Now, in UTC.
pub fn made_at() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// The command that this process is, as it can be typed again.
pub fn command() -> String {
    spelled(std::env::args().skip(1))
}

/// One line for a page: the version, the time, the host and the command.
pub fn made(version: &str, build: &str, (at, command): (&str, &str), machine: &Machine) -> String {
    format!("onewrite {version} ({build} build), {at}. {}. Command: {command}", machine.host())
}

fn spelled(arguments: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    let quoted = |a: String| match !a.is_empty() && a.chars().all(plain) {
        true => a,
        false => format!("'{}'", a.replace('\'', "'\\''")),
    };
    std::iter::once("onewrite".to_owned()).chain(arguments.map(quoted)).collect::<Vec<_>>().join(" ")
}

/// A card for below a table, wrapped.
pub fn lines(card: &[(String, String)], columns: usize) -> Vec<String> {
    let width = card.iter().map(|(name, _)| name.chars().count() + 1).max().unwrap_or(0).clamp(12, 24);
    card.iter().map(|(name, value)| wrap(&format!("{name:<width$}{value}"), columns, width)).collect()
}

/// The last line of a card, where something is unknown.
fn unknown_line(unknown: &[String]) -> Option<(String, String)> {
    let text = || format!("{}: name them where you quote a number", unknown.join(", "));
    (!unknown.is_empty()).then(|| ("UNKNOWN".to_owned(), text()))
}

pub fn in_short(sqlite: String, runs: String, machine: &Machine, unknown: &[String]) -> Vec<(String, String)> {
    let mut lines = vec![("SQLite", sqlite), ("runs", runs)];
    lines.extend(machine.place());
    lines.push(machine.computer());
    let lines = lines.into_iter().map(|(name, text)| (name.to_owned(), text));
    lines.chain(unknown_line(unknown)).collect()
}

/// The unknown values of `machine`, then those that are unknown only of others, with the name of
/// each.
pub fn all_unknown(machine: &Machine, others: &BTreeMap<String, Machine>) -> Vec<String> {
    let mut all: Vec<String> = machine.unknown().into_iter().map(str::to_owned).collect();
    for (name, other) in others {
        let more = other.unknown().into_iter().filter(|u| !machine.unknown().contains(u));
        all.extend(more.map(|unknown| format!("{unknown} of {name}")));
    }
    all
}

/// The version and the options of the SQLite in this program.
pub fn sqlite() -> Result<(String, Vec<String>)> {
    let c = Connection::open_in_memory()?;
    let mut statement = c.prepare("PRAGMA compile_options")?;
    let options = statement.query_map([], |r| r.get(0))?.collect::<Result<_, _>>()?;
    Ok((rusqlite::version().to_owned(), options))
}

/// Whether the device has a journal of ext4's at work.
fn jbd2(device: &str) -> bool {
    let journals = fs::read_dir("/proc/fs/jbd2").into_iter().flatten().flatten();
    journals.into_iter().any(|j| j.file_name().to_string_lossy().split('-').next() == Some(device))
}

/// Where ext4 keeps it is asked; of other file systems it is known.
fn file_system_journal(mount: &Mount) -> Option<String> {
    if let Some(data) = mount.options.iter().find(|o| o.starts_with("data=")) {
        return Some(data.clone());
    }
    Some(match mount.fs_type.as_str() {
        "ext4" | "ext3" => {
            // The mount's source may be a name like /dev/root.
            let number = host::device_number(&mount.point).ok()?;
            let device = fs::canonicalize(Path::new("/sys/dev/block").join(number)).ok()?;
            let name = device.file_name()?.to_str()?;
            let options = read(format!("/proc/fs/{}/{name}/options", mount.fs_type))?;
            match options.lines().find(|l| l.starts_with("data=")) {
                Some(data) => data.to_owned(),
                // Without a journal there is no mode of it.
                None if jbd2(name) => return None,
                None => "none".to_owned(),
            }
        }
        "xfs" => "metadata log".to_owned(),
        "btrfs" => "copy on write, log tree".to_owned(),
        "f2fs" => "log-structured, roll-forward".to_owned(),
        "tmpfs" | "ext2" | "vfat" | "exfat" => "none".to_owned(),
        _ => return None,
    })
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

impl Parameters {
    /// How the page was made.
    pub fn made(&self) -> String {
        made(self.onewrite_version, self.build, (&self.made_at, &self.command), &self.machine)
    }

    /// Workloads of one size together: `1000 transactions (insert, delete) on 2000 rows`.
    fn sizes(&self) -> String {
        let mut names: BTreeMap<(usize, usize), BTreeSet<&str>> = BTreeMap::new();
        for (name, d) in &self.workloads {
            // After a comma comes the value that a sweep varies.
            let workload = name.split(", ").next().unwrap_or(name);
            names.entry((d.preloaded_rows, d.transactions)).or_default().insert(workload);
        }
        let one = |((rows, n), names): (&(usize, usize), &BTreeSet<&str>)| {
            let names: Vec<&str> = names.iter().copied().collect();
            format!("{n} transactions ({}) on {rows} rows", names.join(", "))
        };
        names.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// The card in a few lines, for below the table.
    pub fn short(&self) -> Vec<(String, String)> {
        let mut settings = String::from("-");
        if let Some(s) = self.engines.get("stock/wal-full").or_else(|| self.engines.values().next()) {
            let cache =
                if s.cache_size < 0 { format!("{} KiB", -s.cache_size) } else { format!("{} pages", s.cache_size) };
            settings = format!("pages {} B, cache {cache}, locking {}", s.page_size, s.locking_mode);
            if let Some(pages) = s.wal_autocheckpoint {
                settings += &format!(", WAL checkpoint at {pages} pages, WAL at start: {}", self.wal_at_start);
            }
        }
        if let Some(bytes) = self.engines.values().find_map(|s| s.log_size.as_ref()) {
            settings += &format!(", onewrite log {bytes} B");
        }
        let syncs: Vec<&str> = ["fsync", "fdatasync"]
            .into_iter()
            .filter(|call| self.syscalls.iter().any(|(e, c)| e.starts_with("stock/") && c.contains_key(*call)))
            .collect();
        let mut sqlite = format!("{}, {} build", self.sqlite_version, self.build);
        if !syncs.is_empty() {
            sqlite += &format!(", syncs with {}", syncs.join(" and "));
        }
        let mut lines = vec![
            (
                "workload",
                format!(
                    "{}, {} B values, {} indexes, {}; {}",
                    self.sizes(),
                    self.row_bytes,
                    self.indexes,
                    self.key_order,
                    self.conduct()
                ),
            ),
            (
                "runs",
                format!(
                    "{} ({}), {}; {} transactions of warm-up; seed {}",
                    self.runs,
                    match self.minutes_max {
                        Some(minutes) => format!("until known to ±10 %, in at most {minutes} minutes"),
                        None => "as asked".to_owned(),
                    },
                    self.run_order,
                    self.warm_up_transactions,
                    self.seed
                ),
            ),
            ("SQLite", sqlite),
            ("settings", settings),
            ("preallocates", "only onewrite its log, and the floor".to_owned()),
        ];
        let mut all: Vec<(String, String)> = Vec::new();
        if self.machines.is_empty() {
            lines.extend(self.machine.place());
        }
        lines.push(self.machine.computer());
        all.extend(lines.into_iter().map(|(name, text)| (name.to_owned(), text)));
        for (name, machine) in &self.machines {
            let value = name.rsplit('/').next().unwrap_or(name);
            all.push((value.to_owned(), machine.place().map(|(_, text)| text).join("; ")));
        }
        all.extend(unknown_line(&self.unknown));
        all
    }

    /// Connections, preparation and operations, where the workloads agree.
    fn conduct(&self) -> String {
        let same = |of: &dyn Fn(&WorkloadCard) -> String| {
            let mut all: Vec<String> = self.workloads.values().map(of).collect();
            all.sort();
            all.dedup();
            if all.len() == 1 { all.remove(0) } else { format!("differing ({})", all.join(", ")) }
        };
        let connections = same(&|d| d.connections.to_string());
        let prepared = same(&|d| (if d.prepared { "prepared" } else { "not prepared" }).to_owned());
        let ops = same(&|d| format!("{:.3}", d.operations_per_transaction).trim_end_matches(".000").to_owned());
        format!("connections {connections}, {prepared}, operations per transaction {ops}")
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn machine() -> Machine {
        let text = |text: &str| Some(text.to_owned());
        Machine {
            system: "Linux",
            kernel: text("6.18.5-16-cloud-amd64"),
            file_system: text("ext4"),
            mount_options: Some(["rw", "relatime", "discard"].map(str::to_owned).to_vec()),
            file_system_journal: text("data=ordered"),
            free_bytes: Some(81_604_378_624),
            device_unknown: None,
            device: Some(Queue {
                name: "nvme0n1".to_owned(),
                model: text("Samsung SSD 990 PRO with Heatsink 2TB"),
                write_cache: text("write back"),
                fua: Some(true),
                physical_block_size: Some(4096),
                logical_block_size: Some(512),
                atomic_write_bytes_max: Some(0),
                scheduler: text("mq-deadline"),
                rotational: Some(false),
            }),
            simulated: None,
            cpu_model: text("AMD Ryzen Threadripper PRO 7995WX 96-Cores"),
            cpus: Some(192),
            cpu_governor: text("schedutil"),
            memory_bytes: Some(540 << 30),
        }
    }

    pub fn parameters() -> Parameters {
        let (sqlite_version, compile_options) = sqlite().unwrap();
        Parameters {
            onewrite_version: env!("CARGO_PKG_VERSION"),
            made_at: "2026-11-25 22:35 UTC".to_owned(),
            command: "onewrite bench --dir /var/lib/a-program-with-a-long-name --html report.html".to_owned(),
            build: "release",
            sqlite_version,
            compile_options,
            engines: BTreeMap::new(),
            stores: BTreeMap::new(),
            workloads: BTreeMap::new(),
            indexes: 3,
            preloaded_rows: 100_000,
            row_bytes: 128,
            key_order: "random 63-bit keys",
            transactions: 1000,
            warm_up_transactions: 20,
            cold: "no",
            wal_at_start: "empty",
            checkpoint_at_end: "yes",
            runs: 25,
            minutes_max: Some(2.0),
            run_order: "interleaved, order of engines turned per run",
            seed: 1,
            wear: Wear { wear: true, card_gb: 32.0, card_cycles: 3000.0, card_amplification: 4.0, commits_per_s: 10.0 },
            floor: "one 4 KiB overwrite and one flush".to_owned(),
            syscall_counting: "ptrace",
            syscalls: BTreeMap::new(),
            machine: machine(),
            machines: BTreeMap::new(),
            unknown: ["FUA", "atomic unit", "CPU governor"].map(str::to_owned).to_vec(),
            notes: vec!["something else was writing to the device: stock/wal-normal insert (2 of 5)".to_owned()],
        }
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let arguments = ["bench", "--dir", "it's here", "--library", "/a/b.so", ""].map(str::to_owned);
        assert_eq!(spelled(arguments.into_iter()), "onewrite bench --dir 'it'\\''s here' --library /a/b.so ''");
        let at = made_at();
        assert!(at.len() == 20 && at.starts_with("20") && at.ends_with(" UTC"), "{at}");
    }

    #[test]
    fn this_sqlite_tells_its_options() {
        let (version, options) = sqlite().unwrap();
        assert!(version.starts_with("3."));
        assert!(options.iter().any(|o| o.starts_with("THREADSAFE=")));
    }
}
