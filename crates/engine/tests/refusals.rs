//! Devices and images that cannot be opened as requested: each is refused with its own reason.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;
#[path = "support/trial.rs"]
mod trial;

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_engine::{Error, FileSystem, OpenOptions, Recovery, Refusal};
use std::sync::Arc;
use support::{ROOT, context, file};
use trial::{FILE, ext4, formatted, open_on};

const SIZE: u64 = 16 << 20;
/// Flags of the superblock: the offset on the device in bytes, and the flag's mask in that byte.
const STATE_ERROR: (u64, u8) = (1024 + 0x3A, 2);
const QUOTA: (u64, u8) = (1024 + 0x65, 1);
const RECOVER: (u64, u8) = (1024 + 0x60, 4);

fn plain() -> MemoryDevice {
    formatted(&ext4(1024).features("^metadata_csum"), SIZE)
}

/// An image as a power cut leaves it: the file system was not closed, and its journal must be
/// replayed.
fn cut_off() -> MemoryDevice {
    let device = Arc::new(plain());
    let fs = open_on(&device, OpenOptions::default());
    let inode = file(&fs, ROOT, FILE);
    fs.fsync(&context(), inode).unwrap();
    device.duplicate()
}

fn flip(device: &MemoryDevice, (at, bit): (u64, u8)) {
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    device.write_at(at, &[byte[0] ^ bit]).unwrap();
}

/// Opens an image for writing, which must be refused with errno 22 (EINVAL). Returns the reason.
fn refusal(device: MemoryDevice, recovery: Recovery) -> Refusal {
    let options = OpenOptions { recovery, ..OpenOptions::default() };
    match FileSystem::open(Arc::new(device), options, &context()) {
        Err(error) if error.errno() != 22 => panic!("{error} has errno {}", error.errno()),
        Err(Error::Refused(why)) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// An empty device, two devices that are too short for a superblock, and one without a superblock.
#[test]
fn what_is_no_image_is_told_as_the_commands_tell_it() {
    let why = refusal(MemoryDevice::new(0), Recovery::default());
    assert!(matches!(why, Refusal::Empty), "{why}");
    for size in [1, 1500, 1 << 20] {
        let why = refusal(MemoryDevice::new(size), Recovery::default());
        assert!(matches!(why, Refusal::NoFileSystem), "{size}: {why}");
        assert!(why.to_string().contains("`blockyard mkfs` makes one"), "{why}");
    }
}

#[test]
fn an_image_that_is_cut_short_is_told_with_both_sizes() {
    let (whole, half) = (plain(), MemoryDevice::new(SIZE / 2));
    let mut bytes = vec![0; 4 << 20];
    whole.read_at(0, &mut bytes).unwrap();
    half.write_at(0, &bytes).unwrap();
    let why = refusal(half, Recovery::default());
    assert!(matches!(why, Refusal::CutShort { needed: SIZE, device } if device == SIZE / 2), "{why}");
}

#[test]
fn what_is_not_maintained_can_only_be_read() {
    let device = plain();
    flip(&device, QUOTA);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    drop(FileSystem::open(Arc::new(device.duplicate()), read_only, &context()).unwrap());
    let why = refusal(device, Recovery::default());
    assert!(matches!(why, Refusal::OnlyReadable("quota")), "{why}");
}

#[test]
fn an_image_with_errors_is_to_be_checked() {
    let device = plain();
    flip(&device, STATE_ERROR);
    let why = refusal(device, Recovery::default());
    assert!(matches!(why, Refusal::MarkedErrors), "{why}");
}

#[test]
fn a_log_is_replayed_only_when_that_may_be_done_and_is_asked_for() {
    let why = refusal(cut_off(), Recovery::Refuse);
    assert!(matches!(why, Refusal::NeedsRecovery), "{why}");
    let device = cut_off();
    flip(&device, RECOVER);
    let why = refusal(device, Recovery::default());
    assert!(matches!(why, Refusal::UnflaggedLog), "{why}");
}

/// Journals of 1,024 blocks whose log starts at block 2 or 1,023. Such a log is shorter than 1,023
/// blocks, the shortest length that is accepted. Linux refuses these journals, too.
#[test]
fn a_log_that_is_too_short_is_not_written() {
    let device = formatted(&ext4(1024).features("^metadata_csum").journal_mib(1), SIZE);
    let magic = 0xC03B_3998_0000_0004_u64.to_be_bytes();
    let starts = (0..SIZE).step_by(1024).filter(|at| {
        let mut head = [0; 8];
        device.read_at(*at, &mut head).unwrap();
        head == magic
    });
    let [at] = starts.collect::<Vec<_>>()[..] else { panic!("no single journal") };
    for first in [2_u32, 1023] {
        let device = device.duplicate();
        device.write_at(at + 0x14, &first.to_be_bytes()).unwrap();
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        drop(FileSystem::open(Arc::new(device.duplicate()), read_only, &context()).unwrap());
        let why = refusal(device, Recovery::default());
        assert!(
            matches!(why, Refusal::LogTooShort { blocks, least: 1023 } if blocks == 1024 - first),
            "{why}"
        );
    }
}
