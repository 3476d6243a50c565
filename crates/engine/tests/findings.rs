//! What long random runs found, each in its smallest form, with one line of story.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::MemoryDevice;
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{Error, FileSystem, NewInode, OpContext, OpenOptions, mkfs};
use std::sync::Arc;

const ROOT: InodeNr = InodeNr::ROOT;
const IMMUTABLE: u32 = 0x10;
const TOP_DIRECTORY: u32 = 0x2_0000;

fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

fn open(options: &mkfs::Options, size: u64) -> FileSystem {
    let device = Arc::new(MemoryDevice::new(size));
    mkfs::format(&*device, &options.clone().identity(1, 1)).unwrap();
    FileSystem::open(device, OpenOptions::default(), &context()).unwrap()
}

fn plain() -> FileSystem {
    open(&mkfs::Options::ext4().block_size(4096), 32 << 20)
}

fn make(fs: &FileSystem, name: &str, kind: FileType) -> InodeNr {
    let new = NewInode { kind, permissions: 0o755, device: None };
    fs.create(&context(), ROOT, name.as_bytes(), &new).unwrap()
}

/// The kernel refused to look up symbolic links that we had made immutable.
#[test]
fn flags_are_for_files_and_directories() {
    let fs = plain();
    let ctx = context();
    let link = fs.symlink(&ctx, ROOT, b"link", b"target").unwrap();
    let pipe = make(&fs, "pipe", FileType::Fifo);
    let file = make(&fs, "file", FileType::Regular);
    let dir = make(&fs, "dir", FileType::Directory);
    for inode in [link, pipe] {
        assert!(matches!(fs.set_flags(&ctx, inode, IMMUTABLE), Err(Error::NotSupported(_))));
    }
    assert!(matches!(fs.set_flags(&ctx, file, TOP_DIRECTORY), Err(Error::NotSupported(_))));
    fs.set_flags(&ctx, dir, TOP_DIRECTORY).unwrap();
    fs.set_flags(&ctx, file, IMMUTABLE).unwrap();
}
