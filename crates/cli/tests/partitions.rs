//! `IMAGE?offset=BYTES` names a file system in a partitioned disk. Commands that take an image
//! accept this form.
//!
//! The tests write the partition tables byte by byte. partx is the reference for their meaning.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use blockyard_device::{FileDevice, PartitionTable, TableKind};
use blockyard_disk::checksum::crc32;
use blockyard_testkit::{require, run};

const SECTOR: u64 = 512;
const MIB: u64 = 1 << 20;
/// Type of Linux file system data, in its on-disk byte order.
const LINUX_GUID: [u8; 16] =
    [0xAF, 0x3D, 0xC6, 0x0F, 0x83, 0x84, 0x72, 0x47, 0x8E, 0x79, 0x3D, 0x69, 0xD8, 0x47, 0x7D, 0xE4];
/// Type of an EFI system partition.
const EFI_GUID: [u8; 16] =
    [0x28, 0x73, 0x2A, 0xC1, 0x1F, 0xF8, 0xD2, 0x11, 0xBA, 0x4B, 0x00, 0xA0, 0xC9, 0x3E, 0xC9, 0x3B];

fn blockyard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Runs a command that must succeed and print nothing on standard error.
fn done(arguments: &[&str]) -> String {
    let output = blockyard(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.is_empty(), "{arguments:?}: {:?}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with this exit code and one line on standard error. Returns the
/// line.
fn fails(arguments: &[&str], code: i32) -> String {
    let output = blockyard(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
    errors
}

/// A partition: number, type, first sector, number of sectors.
type Part<T> = (u32, T, u64, u64);

fn low(value: u64) -> [u8; 4] {
    u32::try_from(value).unwrap().to_le_bytes()
}

/// A boot sector with some of its four entries set: index, type, first sector, number of sectors.
fn boot_sector(entries: &[(usize, u8, u64, u64)]) -> [u8; 512] {
    let mut sector = [0; 512];
    for (index, kind, first, sectors) in entries {
        let entry = &mut sector[446 + index * 16..446 + index * 16 + 16];
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&low(*first));
        entry[12..].copy_from_slice(&low(*sectors));
    }
    sector[510..].copy_from_slice(&[0x55, 0xAA]);
    sector
}

/// Makes a disk of `mib` MiB with a GPT: both headers and both arrays of entries.
fn gpt_disk(path: &Path, mib: u64, parts: &[Part<[u8; 16]>]) {
    gpt_disk_in(SECTOR, path, mib, parts);
}

/// Like [`gpt_disk`], with sectors of a given size in bytes.
fn gpt_disk_in(sector_bytes: u64, path: &Path, mib: u64, parts: &[Part<[u8; 16]>]) {
    let file = File::create(path).unwrap();
    file.set_len(mib * MIB).unwrap();
    let last = mib * MIB / sector_bytes - 1;
    let mut entries = vec![0; 128 * 128];
    let sectors_of_entries = u64::try_from(entries.len()).unwrap() / sector_bytes;
    for (number, kind, first, sectors) in parts {
        let at = (usize::try_from(*number).unwrap() - 1) * 128;
        let entry = &mut entries[at..at + 128];
        entry[..16].copy_from_slice(kind);
        entry[16..32].fill(u8::try_from(*number).unwrap());
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&(first + sectors - 1).to_le_bytes());
        entry[56..64].copy_from_slice(b"r\0o\0o\0t\0");
    }
    let header = |own: u64, other: u64, entries_at: u64| {
        let mut sector = vec![0; 512];
        sector[..8].copy_from_slice(b"EFI PART");
        sector[8..16].copy_from_slice(&[0, 0, 1, 0, 92, 0, 0, 0]);
        let usable = (2 + sectors_of_entries, last - 1 - sectors_of_entries);
        for (at, value) in [(24, own), (32, other), (40, usable.0), (48, usable.1), (72, entries_at)] {
            sector[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        sector[56..72].fill(0x11);
        sector[80..88].copy_from_slice(&[128, 0, 0, 0, 128, 0, 0, 0]);
        sector[88..92].copy_from_slice(&(!crc32(!0, &entries)).to_le_bytes());
        let sum = !crc32(!0, &sector[..92]);
        sector[16..20].copy_from_slice(&sum.to_le_bytes());
        sector
    };
    let second = last - sectors_of_entries;
    file.write_all_at(&boot_sector(&[(0, 0xEE, 1, last)]), 0).unwrap();
    file.write_all_at(&header(1, last, 2), sector_bytes).unwrap();
    file.write_all_at(&entries, 2 * sector_bytes).unwrap();
    file.write_all_at(&entries, second * sector_bytes).unwrap();
    file.write_all_at(&header(last, 1, second), last * sector_bytes).unwrap();
}

/// Makes a disk of 64 MiB with an MBR: primary partitions 1, 2 and 4, and logical partitions 5, 6
/// and 7 in the extended partition 3.
fn mbr_disk(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(64 * MIB).unwrap();
    let primary =
        [(0, 0x83, 2048, 8192), (1, 0x0C, 10240, 8192), (2, 0x05, 20480, 81920), (3, 0x83, 106_496, 8192)];
    file.write_all_at(&boot_sector(&primary), 0).unwrap();
    for (at, next) in [(0, 20480), (20480, 40960), (40960, 0)] {
        let mut link = vec![(0, 0x83, 2048, 16384)];
        if next > 0 {
            link.push((1, 0x05, next, 20480));
        }
        file.write_all_at(&boot_sector(&link), (20480 + at) * SECTOR).unwrap();
    }
}

/// The start and length in bytes of each partition that partx reports, except extended ones.
fn scan_of_partx(disk: &Path) -> BTreeMap<u32, (u64, u64)> {
    let output = run("partx", &["-s", "-g", "-o", "NR,START,SECTORS,TYPE", disk.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let place = |line: &str| -> Option<(u32, (u64, u64))> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| fields[index].parse::<u64>().unwrap();
        let place = (u32::try_from(number(0)).unwrap(), (number(1) * SECTOR, number(2) * SECTOR));
        (fields[3] != "0x5").then_some(place)
    };
    text.lines().filter_map(place).collect()
}

fn our_scan(disk: &Path) -> (TableKind, BTreeMap<u32, (u64, u64)>) {
    let device = FileDevice::open_read_only(disk).unwrap();
    let table = PartitionTable::read(&device, None).unwrap().unwrap();
    let place = |partition: &blockyard_disk::partition::Partition| {
        (partition.number, (partition.first_byte, partition.bytes))
    };
    (table.kind, table.partitions.iter().map(place).collect())
}

/// We find the same partitions as partx of util-linux: in a GPT with either header, and in an MBR
/// with a chain of logical partitions.
#[test]
fn partitions_are_those_of_partx() {
    if !require(&["partx"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    mbr_disk(&disk);
    assert_eq!(our_scan(&disk), (TableKind::Mbr, scan_of_partx(&disk)));
    assert_eq!(our_scan(&disk).1.keys().copied().collect::<Vec<_>>(), [1, 2, 4, 5, 6, 7]);
    let parts = [(1, EFI_GUID, 2048, 2048), (3, LINUX_GUID, 8192, 40960), (7, LINUX_GUID, 49152, 4096)];
    gpt_disk(&disk, 64, &parts);
    assert_eq!(our_scan(&disk), (TableKind::Gpt, scan_of_partx(&disk)));
    assert_eq!(our_scan(&disk).1.len(), 3);
    // Without the first header, the header at the end of the disk is used.
    File::options().write(true).open(&disk).unwrap().write_all_at(&[0; 512], SECTOR).unwrap();
    assert_eq!(our_scan(&disk), (TableKind::Gpt, scan_of_partx(&disk)));
    assert_eq!(our_scan(&disk).1.len(), 3);
}

/// A partition table counts in sectors of its disk, here of 4,096 bytes. partx reads the table from
/// a loop device with such sectors.
#[test]
fn disks_with_sectors_of_4096_bytes_have_the_partitions_that_partx_sees() {
    if !require(&["root", "losetup", "partx", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    let parts = [(1, EFI_GUID, 256, 256), (2, LINUX_GUID, 1024, 8192), (5, LINUX_GUID, 9216, 4096)];
    gpt_disk_in(4096, &disk, 64, &parts);
    let theirs = partitions_of_a_loop_device(&disk);
    assert_eq!(theirs.len(), 3, "{theirs:?}");
    assert_eq!(our_scan(&disk), (TableKind::Gpt, theirs.clone()));
    // Without the first header, the header at the end of the disk gives the same partitions.
    File::options().write(true).open(&disk).unwrap().write_all_at(&[0; 512], 4096).unwrap();
    assert_eq!(partitions_of_a_loop_device(&disk), theirs);
    assert_eq!(our_scan(&disk), (TableKind::Gpt, theirs));
    let name = disk.to_str().unwrap();
    let second = format!("{name}?offset=4M");
    let said = fails(&["ls", name], 8);
    for part in
        ["a GPT partition table", "?offset=4194304 (partition 2 \"root\", 32 MiB, no ext", "(partition 5"]
    {
        assert!(said.contains(part), "{said}");
    }
    fails(&["mkfs", &second, "33M"], 8);
    done(&["mkfs", "-q", &second]);
    works_there(folder.path(), &second);
    // e2fsck takes the offset without a unit.
    let judged = run("e2fsck", &["-fn", &format!("{name}?offset={}", 4 * MIB)]);
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
}

/// The start and length in bytes of each partition that partx finds on a loop device with sectors
/// of 4,096 bytes. partx takes the sector size from the device.
fn partitions_of_a_loop_device(disk: &Path) -> BTreeMap<u32, (u64, u64)> {
    let path = disk.to_str().unwrap();
    let output = run("losetup", &["-f", "--show", "-P", "-b", "4096", path]);
    assert!(output.status.success(), "{output:?}");
    let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let name = Path::new(&device).file_name().unwrap();
    let size = Path::new("/sys/block").join(name).join("queue/logical_block_size");
    assert_eq!(std::fs::read_to_string(size).unwrap().trim(), "4096");
    let found = scan_of_partx(Path::new(&device));
    assert!(run("losetup", &["-d", &device]).status.success());
    found
}

/// A partitioned disk used to be reported as "no ext file system", and there was no way to name a
/// partition.
#[test]
fn a_partition_is_worked_on_as_an_image_is() {
    if !require(&["e2fsck", "dumpe2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    let parts = [(1, EFI_GUID, 2048, 2048), (2, LINUX_GUID, 4096, 32768), (3, LINUX_GUID, 36864, 20480)];
    gpt_disk(&disk, 64, &parts);
    let name = disk.to_str().unwrap();
    let (second, third) = (format!("{name}?offset=2M"), format!("{name}?offset={}", 36864 * 512));
    let said = fails(&["ls", name], 8);
    for part in
        ["a GPT partition table", "?offset=2097152 (partition 2 \"root\", 16 MiB, no ext", "(partition 3"]
    {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("partition 1"), "{said}");
    for arguments in
        [&["check", name][..], &["put", name, "/etc/hostname", "/"], &["stat", name], &["recover", name]]
    {
        assert!(fails(arguments, 8).contains("?offset=2097152 (partition 2"), "{arguments:?}");
    }
    let before = std::fs::read(&disk).unwrap();
    // A file system larger than its partition is refused.
    fails(&["mkfs", &second, "17M"], 8);
    assert!(fails(&["mkfs", &format!("{name}?offset=3M")], 8).contains("no partition begins there"));
    assert_eq!(std::fs::read(&disk).unwrap(), before);
    done(&["mkfs", "-q", "-b", "1024", "--seed", "1", "--time", "1700000000", &second]);
    done(&["mkfs", "-q", "-b", "1024", &third]);
    let after = std::fs::read(&disk).unwrap();
    let at = |sector: usize| sector * 512;
    assert_eq!(before[..at(4096)], after[..at(4096)]);
    assert_eq!(before[at(57344)..], after[at(57344)..]);
    // The partition holds the same bytes as an image in a file of its own.
    let alone = folder.path().join("alone");
    let options = ["mkfs", "-q", "-b", "1024", "--seed", "1", "--time", "1700000000"];
    done(&[&options[..], &[alone.to_str().unwrap(), "16M"]].concat());
    assert!(std::fs::read(&alone).unwrap() == after[at(4096)..at(36864)]);
    works_there(folder.path(), &second);
    assert!(
        std::fs::read(&disk).unwrap()[at(36864)..] == after[at(36864)..],
        "the partition after it changed"
    );
    for place in [format!("{name}?offset={}", 4096 * 512), third] {
        let judged = run("e2fsck", &["-fn", &place]);
        assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
    }
}

/// A disk is in use while one of its partitions is mounted. Mounts of partitions used to be
/// overlooked: if the caller had opened the disk before the mount, the disk was accepted, as if the
/// caller were its only user.
#[test]
fn a_disk_with_a_mounted_partition_is_refused() {
    if !require(&["root", "losetup", "addpart", "mke2fs", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (disk, place) = (folder.path().join("disk.img"), folder.path().join("mnt"));
    std::fs::create_dir(&place).unwrap();
    File::create(&disk).unwrap().set_len(64 * MIB).unwrap();
    let output = run("losetup", &["-f", "--show", disk.to_str().unwrap()]);
    let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    // Not every kernel reads partition tables, so the partition is added by hand.
    assert!(run("addpart", &[&device, "1", "2048", "65536"]).status.success(), "{device}");
    let partition = format!("{device}p1");
    assert!(run("mke2fs", &["-q", &partition]).status.success(), "{partition}");
    let file = File::options().read(true).write(true).open(&device).unwrap();
    assert!(run("mount", &[&partition, place.to_str().unwrap()]).status.success());
    let refused = FileDevice::from_file(file).map(drop).map_err(|error| error.to_string());
    assert!(run("umount", &[place.to_str().unwrap()]).status.success());
    assert!(run("delpart", &[&device, "1"]).status.success());
    let free = FileDevice::from_file(File::options().read(true).write(true).open(&device).unwrap());
    drop(free.unwrap());
    assert!(run("losetup", &["-d", &device]).status.success());
    let said = refused.unwrap_err();
    assert!(said.contains(place.to_str().unwrap()), "{said}");
}

fn works_there(folder: &Path, image: &str) {
    let text = folder.join("text");
    std::fs::write(&text, "content").unwrap();
    done(&["mkdir", image, "/d"]);
    done(&["put", image, text.to_str().unwrap(), "/d/"]);
    done(&["ln", image, "/d/text", "/d/more"]);
    done(&["mv", image, "/d/more", "/d/other"]);
    assert_eq!(done(&["ls", image, "/d"]), "other\ntext\n");
    assert_eq!(done(&["cat", image, "/d/text"]), "content");
    let back = folder.join("back");
    done(&["get", image, "/d/text", back.to_str().unwrap()]);
    assert_eq!(std::fs::read(&back).unwrap(), b"content");
    done(&["rm", image, "/d/other"]);
    done(&["check", "-n", image]);
    done(&["recover", image]);
    for command in ["map", "frag", "stat"] {
        done(&[command, image]);
    }
    let run = "lab run fallocate2 --workers 1 --ops 20 --policy yard --in-place --quiet --image";
    done(&[run.split(' ').collect::<Vec<_>>().as_slice(), &[image]].concat());
    done(&["check", "-n", image]);
}

/// If a file with the whole name exists, the name is not split at `?offset=`. An offset that is not
/// a number is wrong usage, and an offset beyond the end of the file is an error.
#[test]
fn a_file_that_is_called_so_wins() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a?offset=1M");
    let name = path.to_str().unwrap();
    std::fs::write(&path, "").unwrap();
    done(&["mkfs", "-q", name, "8M"]);
    assert_eq!(path.metadata().unwrap().len(), 8 * MIB);
    assert_eq!(done(&["ls", name]), "lost+found\n");
    let other = folder.path().join("b?offset=1M");
    done(&["mkfs", "-q", other.to_str().unwrap(), "8M"]);
    assert_eq!(folder.path().join("b").metadata().unwrap().len(), 9 * MIB);
    assert_eq!(done(&["ls", other.to_str().unwrap()]), "lost+found\n");
    for wrong in ["b?offset=", "b?offset=1x", "b?offset=-1"] {
        assert!(
            fails(&["ls", folder.path().join(wrong).to_str().unwrap()], 2).contains("not a number of bytes")
        );
    }
    assert!(
        fails(&["ls", folder.path().join("b?offset=1G").to_str().unwrap()], 8)
            .contains("it has 9437184 bytes")
    );
}
