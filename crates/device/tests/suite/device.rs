//! The requests that the loop device passes on, and their records. Skipped, with a message, where
//! no device can be started.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use onewrite_device::{Device, DeviceOptions, FileSystem, Image, Operation, Profile, Trace};

fn start(options: DeviceOptions) -> Option<Device> {
    let why = onewrite_device::unavailable().or_else(|| options.file_system.and_then(FileSystem::unavailable));
    if let Some(why) = why {
        eprintln!("skipped: {why}");
        return None;
    }
    Some(Device::start(options).expect("a device"))
}

fn told(trace: &Trace, from: usize) -> Vec<String> {
    let text = |operation: &Operation| match operation {
        Operation::Write { offset, len, data } => {
            format!("write {offset} {len} {:?}", data.as_ref().and_then(|d| d.first()))
        }
        Operation::Zero { offset, len } => format!("zero {offset} {len}"),
        Operation::Flush => "flush".to_owned(),
    };
    trace.events[from..].iter().map(|e| text(&e.operation)).collect()
}

#[test]
fn a_write_and_a_flush_of_the_block_device_arrive_as_such() {
    let _turn = crate::ONE_AT_A_TIME.lock();
    let Some(device) = start(DeviceOptions { keep_data: true, ..DeviceOptions::default() }) else { return };
    device.replace(Image::new(64 << 20)).unwrap();
    let mut block = File::options().read(true).write(true).open(device.block_path()).unwrap();
    block.write_all_at(&[7; 8192], 1 << 20).unwrap();
    assert_eq!(told(&device.trace(), 0), [""; 0], "the write is in the kernel's cache");
    block.sync_data().unwrap();
    assert_eq!(told(&device.trace(), 0), ["write 1048576 8192 Some(7)", "flush"]);
    let mut position = String::new();
    File::open(device.position_path()).unwrap().read_to_string(&mut position).unwrap();
    assert_eq!(position, "2\n");
    block.seek(SeekFrom::Start((1 << 20) + 8191)).unwrap();
    let mut two = [9; 2];
    block.read_exact(&mut two).unwrap();
    assert_eq!(two, [7, 0]);
    let mut bytes = [0; 2];
    device.image().read((1 << 20) + 8191, &mut bytes);
    assert_eq!(bytes, [7, 0]);
}

#[test]
fn an_overwrite_on_ext4_is_one_write_and_one_flush() {
    let _turn = crate::ONE_AT_A_TIME.lock();
    let file_system = Some(FileSystem::Ext4Ordered);
    let Some(device) = start(DeviceOptions { file_system, ..DeviceOptions::default() }) else { return };
    let path = device.mountpoint().join("file");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&[1; 65536], 0).unwrap();
    file.sync_all().unwrap();
    let before = device.position();
    file.write_all_at(&[2; 4096], 8192).unwrap();
    file.sync_data().unwrap();
    let summary = device.trace().summary(before..device.position(), &[]);
    assert_eq!((summary.writes, summary.write_bytes, summary.flushes), (1, 4096, 1));
    // O_DSYNC: without FUA the kernel makes it a write and a flush.
    let durable = File::options().write(true).custom_flags(libc::O_DSYNC).open(&path).unwrap();
    let before = device.position();
    durable.write_all_at(&[3; 4096], 16384).unwrap();
    let summary = device.trace().summary(before..device.position(), &[]);
    assert_eq!((summary.writes, summary.write_bytes, summary.flushes), (1, 4096, 1));
}

#[test]
fn the_kernel_reads_a_replaced_image() {
    let _turn = crate::ONE_AT_A_TIME.lock();
    let options = DeviceOptions { size_bytes: 4 << 20, ..DeviceOptions::default() };
    let Some(device) = start(options) else { return };
    for fill in 1..=20_u8 {
        let mut image = Image::new(4 << 20);
        image.write(0, &vec![fill; 4 << 20]);
        device.replace(image).unwrap();
        let mut bytes = Vec::new();
        File::open(device.block_path()).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes.len() == 4 << 20 && bytes.iter().all(|b| *b == fill), "content {fill}");
        assert_eq!(device.position(), 0);
    }
}

#[test]
fn the_block_size_is_claimed_as_asked() {
    let _turn = crate::ONE_AT_A_TIME.lock();
    for block_bytes in [512, 4096] {
        let Some(device) = start(DeviceOptions { block_bytes, ..DeviceOptions::default() }) else { return };
        let name = device.block_path().file_name().unwrap().to_owned();
        for what in ["physical_block_size", "logical_block_size"] {
            let path = std::path::Path::new("/sys/block").join(&name).join("queue").join(what);
            assert_eq!(std::fs::read_to_string(path).unwrap().trim(), block_bytes.to_string());
        }
    }
}

#[test]
fn a_slow_device_answers_no_sooner_than_its_times() {
    let _turn = crate::ONE_AT_A_TIME.lock();
    let Some(device) = start(DeviceOptions { profile: Profile::SdCard, ..DeviceOptions::default() }) else { return };
    let timing = Profile::SdCard.timing().unwrap();
    let block = File::options().write(true).open(device.block_path()).unwrap();
    let started = std::time::Instant::now();
    for i in 0..5 {
        block.write_all_at(&[1; 4096], (10 - i) << 16).unwrap();
        block.sync_data().unwrap();
    }
    let least_us = 5 * (timing.random_write_us + timing.flush_us);
    assert!(started.elapsed().as_micros() >= u128::from(least_us));
    assert!(device.trace().summary(0..usize::MAX, &[]).busy_us >= least_us);
}

#[test]
fn every_file_system_is_made_mounted_and_mounted_again() {
    let _turn = crate::ONE_AT_A_TIME.lock();
    for file_system in FileSystem::ALL {
        let Some(device) = start(DeviceOptions { file_system: Some(file_system), ..DeviceOptions::default() }) else {
            continue;
        };
        let path = device.mountpoint().join("file");
        std::fs::write(&path, "text").unwrap();
        device.unmount().unwrap();
        assert!(!path.exists());
        let image = device.image();
        device.mount().unwrap();
        std::fs::write(&path, "other text").unwrap();
        assert!(device.replace(image.clone()).unwrap_err().to_string().contains("mounted"));
        device.unmount().unwrap();
        device.replace(image).unwrap();
        device.mount().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text", "{file_system}");
        let mountpoint = device.mountpoint().to_owned();
        let block = device.block_path().file_name().unwrap().to_owned();
        drop(device);
        assert!(!mountpoint.exists());
        let backing = std::path::Path::new("/sys/block").join(block).join("loop/backing_file");
        assert!(
            !std::fs::read_to_string(backing)
                .is_ok_and(|file| file.contains(mountpoint.parent().unwrap().to_str().unwrap()))
        );
    }
}
