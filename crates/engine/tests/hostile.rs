//! Damaged maps, names and counts that the engine once trusted, for example a file that owns the
//! inode table, a name that leads to the journal's inode, or a directory inside itself. The engine
//! destroyed other data, hung, panicked, or reported a false error. A test's comment says what the
//! engine did wrong.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;
#[path = "support/trial.rs"]
mod trial;

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::{CorruptionKind, FileType, InodeNr};
use blockyard_engine::{Error, FileSystem, NewInode, OpContext, OpenOptions, RenameMode, mkfs};
use std::sync::Arc;
use support::{ROOT, context, directory, file};
use trial::{FILE, changed, comb, content, debugged, ext4, formatted, fresh, judge_image, open_on};

fn opened(device: MemoryDevice) -> FileSystem {
    open_on(&Arc::new(device), OpenOptions::default())
}

fn kind_of<T>(done: Result<T, Error>) -> Option<CorruptionKind> {
    match done {
        Err(Error::Corrupt(found)) => Some(found.kind),
        _ => None,
    }
}

/// An image with a file of eight blocks, changed by the debugfs command that `request` makes from
/// the file's inode number. Also returns that number.
fn with_file(
    options: &mkfs::Options,
    request: impl Fn(InodeNr) -> String,
) -> Option<(MemoryDevice, InodeNr)> {
    if !blockyard_testkit::require(&["debugfs", "e2fsck"]) {
        return None;
    }
    let (device, fs) = fresh(options, 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, &vec![1; 8 << 10]).unwrap();
    fs.close(&context()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    Some((debugged(&device, scratch.path(), &[request(inode)]), inode))
}

/// The first physical block of a file's first extent, with blocks of 1 KiB.
fn first_block(fs: &FileSystem, inode: InodeNr) -> u64 {
    fs.extents(inode, 0, 1).unwrap()[0].physical.unwrap() >> 10
}

/// The first block of the inode table of the first group, with blocks of 1 KiB.
fn inode_table(device: &MemoryDevice) -> u32 {
    let mut place = [0; 4];
    device.read_at(2048 + 8, &mut place).unwrap();
    u32::from_le_bytes(place)
}

/// A file's map named blocks of the file system's metadata, for example of the inode table.
/// Removing the file freed these blocks, and the next file overwrote them.
#[test]
fn a_file_cannot_own_metadata_of_the_file_system() {
    let (extents, map) = (ext4(1024), mkfs::Options::ext3().block_size(1024).identity(1, 1));
    for (options, field, word) in [
        (&extents, "block[5]", CorruptionKind::ExtentPhysical),
        (&map, "block[3]", CorruptionKind::IndirectPhysical),
    ] {
        let table = inode_table(&formatted(options, 32 << 20));
        for block in [1, 2, table, table + 1] {
            let Some((device, inode)) =
                with_file(options, |inode| format!("sif <{}> {field} {block}", inode.raw()))
            else {
                return;
            };
            let whole = device.duplicate();
            let fs = opened(device);
            let mut bytes = vec![0; 8 << 10];
            assert_eq!(
                kind_of(fs.read(&context(), inode, 0, &mut bytes)),
                Some(word),
                "read of block {block}"
            );
            let written = fs.write(&context(), inode, 0, &vec![2; 8 << 10]);
            let written = written.and_then(|()| fs.fsync(&context(), inode));
            assert_eq!(kind_of(written), Some(word), "write to block {block}");
            drop(fs);
            let fs = opened(whole.duplicate());
            let removed = fs.unlink(&context(), ROOT, FILE).and_then(|()| fs.sync(&context()));
            assert!(removed.is_err() || fs.has_failed(), "removal with block {block}");
            drop(fs);
        }
    }
}

/// A name led to the journal's inode. Whoever opened it could truncate the journal while
/// transactions were written to it.
#[test]
fn a_name_does_not_lead_to_the_journal() {
    let Some(device) = changed(&ext4(1024), &["ln <8> journal"]) else { return };
    let fs = opened(device);
    let refused = Some(CorruptionKind::NameInode);
    assert_eq!(kind_of(fs.find(ROOT, b"journal")), refused);
    assert_eq!(kind_of(fs.unlink(&context(), ROOT, b"journal")), refused);
    assert_eq!(
        kind_of(fs.rename(&context(), (ROOT, b"journal"), (ROOT, b"other"), RenameMode::Replace)),
        refused
    );
    assert!(fs.find(ROOT, b"lost+found").is_ok());
}

/// Moving or removing the entry by which a directory contained itself locked the directory twice: a
/// deadlock.
#[test]
fn a_directory_inside_itself_is_damage() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let (device, fs) = fresh(&ext4(1024), 16 << 20);
    let inside = directory(&fs, ROOT, "d");
    directory(&fs, ROOT, "e");
    file(&fs, inside, "f");
    fs.close(&context()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let device = debugged(&device, scratch.path(), &["ln /d /d/loop".to_owned()]);
    let refused = Some(CorruptionKind::NameInode);
    let other = opened(device.duplicate()).find(ROOT, b"e").unwrap().inode.number;
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        for (from, to) in [
            ((inside, &b"loop"[..]), (inside, &b"f"[..])),
            ((inside, b"f"), (inside, b"loop")),
            ((inside, b"loop"), (other, b"x")),
            ((ROOT, b"e"), (inside, b"loop")),
        ] {
            let fs = opened(device.duplicate());
            if mode == RenameMode::Exchange && to.1 == b"x" {
                continue;
            }
            assert_eq!(kind_of(fs.rename(&context(), from, to, mode)), refused, "{from:?} to {to:?}");
        }
    }
    let fs = opened(device);
    assert_eq!(kind_of(fs.rmdir(&context(), inside, b"loop")), refused);
}

/// The size of a damaged directory claimed 2^32 - 1 blocks. When the directory grew, the number of
/// the new block overflowed: it wrapped to 0, or the engine panicked.
#[test]
fn a_directory_of_the_greatest_size_does_not_grow() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let (device, fs) = fresh(&ext4(1024).features("large_dir"), 16 << 20);
    let full = directory(&fs, ROOT, "d");
    for number in 0..100 {
        file(&fs, full, format!("name{number}"));
    }
    fs.close(&context()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let size = u64::from(u32::MAX) << 10;
    let device = debugged(&device, scratch.path(), &[format!("sif /d size {size}")]);
    let fs = opened(device);
    let fifo = NewInode { kind: FileType::Fifo, permissions: 0o600, device: None };
    let error = (100..1000)
        .find_map(|number| fs.create(&context(), full, format!("name{number}").as_bytes(), &fifo).err());
    assert!(matches!(error, Some(Error::NoSpace)), "{error:?}");
    assert_eq!(fs.attributes(full).unwrap().size, size);
    assert_eq!(kind_of(fs.rmdir(&context(), ROOT, b"d")), None);
    assert!(fs.find(full, b"name42").is_ok());
}

/// On an image with clusters, a damaged extent begins at one offset in its logical cluster and at
/// another in its physical cluster. Linux frees the physical cluster in which the extent lies. The
/// engine freed the neighbouring cluster, even if another file owned it.
#[test]
fn a_displaced_extent_frees_its_own_cluster() {
    let options = ext4(1024).features("bigalloc,^metadata_csum").cluster_size(16 << 10);
    if !blockyard_testkit::require(&["debugfs", "e2fsck"]) {
        return;
    }
    let (device, fs) = fresh(&options, 64 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 5 << 10, &[1; 1024]).unwrap();
    fs.fsync(&context(), inode).unwrap();
    let mapped = first_block(&fs, inode);
    fs.close(&context()).unwrap();
    assert_eq!(mapped % 16, 5);
    let scratch = tempfile::tempdir().unwrap();
    let request = format!("sif <{}> block[5] {}", inode.raw(), mapped - 4);
    let displaced = debugged(&device, scratch.path(), &[request]);
    let written = opened(displaced.duplicate());
    written.write(&context(), inode, 0, &[2; 1024]).unwrap();
    written.fsync(&context(), inode).unwrap();
    assert_eq!(first_block(&written, inode), mapped - 5, "stays in the cluster");
    drop(written);
    let device = Arc::new(displaced);
    let fs = open_on(&device, OpenOptions::default());
    fs.unlink(&context(), ROOT, FILE).unwrap();
    fs.close(&context()).unwrap();
    judge_image(&device);
}

/// Groups whose descriptors contradict their bitmaps are not used. When all other groups were full,
/// the error was "no space", although the cause was damage.
#[test]
fn a_damaged_count_is_not_a_full_image() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let options = ext4(1024).features("^metadata_csum,^uninit_bg");
    let scratch = tempfile::tempdir().unwrap();
    let requests: Vec<String> = (0..3).map(|group| format!("set_bg {group} free_blocks_count 900")).collect();
    let device = debugged(&formatted(&options, 24 << 20), scratch.path(), &requests);
    let fs = opened(device);
    let inode = file(&fs, ROOT, FILE);
    let ctx = OpContext { privileged: true, ..context() };
    let written = fs.write(&ctx, inode, 0, &vec![1; 20_000]).and_then(|()| fs.fsync(&ctx, inode));
    assert_eq!(kind_of(written), Some(CorruptionKind::BlockBitmapContradiction));
}

/// A directory's block was also a node of a file's extent tree. If that node was cached, the
/// directory got it unchecked. The commit then gave it the checksum of a directory block, or
/// panicked.
#[test]
fn a_block_is_not_two_kinds_of_metadata() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let (device, fs) = fresh(&ext4(1024).features("^metadata_csum,^has_journal"), 16 << 20);
    let (inode, _) = comb(&fs, 10, 3);
    let folder = directory(&fs, ROOT, "d");
    fs.close(&context()).unwrap();
    let mut block = [0; 1024];
    let node = (1..16 << 10_u64).find(|&at| {
        device.read_at(at << 10, &mut block).unwrap();
        block.starts_with(&[0x0A, 0xF3, 10, 0])
    });
    let scratch = tempfile::tempdir().unwrap();
    let request = format!("sif <{}> block[5] {}", folder.raw(), node.unwrap());
    let fs = opened(debugged(&device, scratch.path(), &[request]));
    let two = Some(CorruptionKind::BlockTwoKinds);
    assert!(content(&fs, inode).contains(&3));
    assert_eq!(kind_of(fs.read_dir(folder, 0, |_| true)), two);
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    assert_eq!(kind_of(fs.create(&context(), folder, b"new", &new)), two);
}
