//! Shared by many of the engine's tests: a fixed context, images on a memory device, short forms of
//! common operations.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::instruments::Instruments;
use blockyard_engine::{FileSystem, NewInode, OpContext, OpenOptions};
use std::path::Path;
use std::sync::Arc;

pub(crate) const ROOT: InodeNr = InodeNr::ROOT;

/// The context of root's operations, at a fixed time.
pub(crate) fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

/// Makes an image with a fixed UUID; ext4 unless the options say otherwise.
pub(crate) fn make(options: &[&str], size: &str, path: &Path) {
    let mut all = vec!["-U", "6a6a6a6a-1111-2222-3333-444444444444"];
    if !options.contains(&"-t") {
        all.extend(["-t", "ext4"]);
    }
    all.extend_from_slice(options);
    blockyard_testkit::mke2fs(path, &all, size);
}

/// Options under which allocation decides as the kernel does at `mount`. sysfs tells whether the
/// device under `mount` is rotational.
pub(crate) fn like_the_kernel(mount: &Path) -> OpenOptions {
    let device = rustix::fs::stat(mount).unwrap().st_dev;
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let rotational = std::fs::read_to_string(format!("/sys/dev/block/{number}/queue/rotational")).unwrap();
    let rotational = rotational.trim() == "1";
    OpenOptions { rotational, instruments: Instruments::page_cache(), ..OpenOptions::default() }
}

/// Loads an image file into memory and opens it for writing with default options.
pub(crate) fn open(path: &Path) -> (Arc<MemoryDevice>, FileSystem) {
    let device = Arc::new(MemoryDevice::load(path).unwrap());
    let fs = open_device(&device);
    (device, fs)
}

/// Opens a device for writing with default options.
pub(crate) fn open_device(device: &Arc<MemoryDevice>) -> FileSystem {
    open_with(device, OpenOptions::default())
}

/// Opens a device with these options.
pub(crate) fn open_with(device: &Arc<MemoryDevice>, options: OpenOptions) -> FileSystem {
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    FileSystem::open(shared, options, &context()).unwrap()
}

/// A new inode of any kind that has no device number.
pub(crate) fn new(kind: FileType) -> NewInode {
    NewInode { kind, permissions: 0o755, device: None }
}

/// A new regular file.
pub(crate) fn regular() -> NewInode {
    NewInode { permissions: 0o644, ..new(FileType::Regular) }
}

pub(crate) fn file(fs: &FileSystem, parent: InodeNr, name: impl AsRef<[u8]>) -> InodeNr {
    fs.create(&context(), parent, name.as_ref(), &regular()).unwrap()
}

pub(crate) fn directory(fs: &FileSystem, parent: InodeNr, name: impl AsRef<[u8]>) -> InodeNr {
    fs.create(&context(), parent, name.as_ref(), &new(FileType::Directory)).unwrap()
}
