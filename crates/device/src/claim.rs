//! One writer per device: a device that is open for writing has no other user. Readers share a
//! device.
//!
//! The whole process shares one list of the devices in use. A pointer to a device, or a wrapper
//! that writes to it (such as a recorder), counts as that device ([`BlockDevice::identity`]). The
//! lock of a [`FileDevice`](crate::FileDevice) keeps writers of different processes apart. Every
//! writer takes the lock; a reader takes it only on request.
//!
//! A second list has the files that this process has locked ([`FileClaim`]). Copies of one open
//! file share its `flock`, so the lock alone would not keep two writers of one process apart.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::{Arc, LazyLock};

use blockyard_sync::{Mutex, rank};

use crate::{BlockDevice, DeviceError, Result};

/// Distinguishes the devices of a process while they exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(usize);

impl DeviceId {
    /// The identity of a device that does not write to another one: its address in memory.
    #[must_use]
    pub fn of<D: ?Sized>(device: &D) -> Self {
        Self(std::ptr::from_ref(device).cast::<()>().addr())
    }
}

/// How a device is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// By this many readers.
    Read(u32),
    /// By one writer.
    Write,
}

impl Use {
    fn by_this_process(self) -> &'static str {
        match self {
            Self::Write => "this process is writing to it",
            Self::Read(_) => "this process is reading it",
        }
    }
}

/// The devices in use.
static USED: LazyLock<Mutex<BTreeMap<DeviceId, Use>>> =
    LazyLock::new(|| Mutex::new(rank::LEAF, BTreeMap::new()));

/// The files whose lock this process has.
static LOCKED: LazyLock<Mutex<BTreeMap<FileId, Use>>> =
    LazyLock::new(|| Mutex::new(rank::LEAF, BTreeMap::new()));

/// Distinguishes the files and block devices of the host, whichever name leads to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FileId {
    File { device: u64, inode: u64 },
    BlockDevice(u64),
}

impl FileId {
    fn of(found: &Metadata) -> Self {
        if found.file_type().is_block_device() {
            Self::BlockDevice(found.rdev())
        } else {
            Self::File { device: found.dev(), inode: found.ino() }
        }
    }
}

/// The right to lock a file on behalf of one device. It is taken before the lock, and released
/// together with the lock.
#[derive(Debug)]
pub(crate) struct FileClaim(FileId);

impl FileClaim {
    /// Claims a file for writing, or says how this process already uses it.
    pub(crate) fn write(found: &Metadata) -> std::result::Result<Self, &'static str> {
        let id = FileId::of(found);
        add_writer(&mut LOCKED.lock(), id).map(|()| Self(id)).map_err(Use::by_this_process)
    }

    /// Claims a file for reading, or says how this process already uses it.
    pub(crate) fn read(found: &Metadata) -> std::result::Result<Self, &'static str> {
        let id = FileId::of(found);
        add_reader(&mut LOCKED.lock(), id).map(|()| Self(id)).map_err(Use::by_this_process)
    }

    /// Releases the right, and calls `unlock` if no other device of this process uses the lock. The
    /// list stays locked meanwhile, so no other device can claim the file between these two steps.
    pub(crate) fn release(self, unlock: impl FnOnce()) {
        let mut locked = LOCKED.lock();
        remove(&mut locked, self.0);
        if !locked.contains_key(&self.0) {
            unlock();
        }
    }
}

/// Adds a writer. If the device or file is in use already, fails with that use.
fn add_writer<I: Ord>(used: &mut BTreeMap<I, Use>, id: I) -> std::result::Result<(), Use> {
    match used.get(&id) {
        Some(other) => Err(*other),
        None => {
            used.insert(id, Use::Write);
            Ok(())
        }
    }
}

/// Adds a reader. Fails if there is a writer.
fn add_reader<I: Ord>(used: &mut BTreeMap<I, Use>, id: I) -> std::result::Result<(), Use> {
    let readers = match used.get(&id) {
        Some(Use::Write) => return Err(Use::Write),
        Some(Use::Read(readers)) => *readers,
        None => 0,
    };
    used.insert(id, Use::Read(readers + 1));
    Ok(())
}

/// Removes one user.
fn remove<I: Ord>(used: &mut BTreeMap<I, Use>, id: I) {
    match used.get(&id) {
        Some(Use::Read(readers)) if *readers > 1 => {
            let left = Use::Read(readers - 1);
            used.insert(id, left);
        }
        _ => {
            used.remove(&id);
        }
    }
}

/// The right to use a device. Dropping it releases the right.
pub struct Claim {
    /// The claim keeps the device alive: the device's identity may be its address, which no other
    /// device must get while the claim exists.
    device: Arc<dyn BlockDevice>,
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Claim").field(&self.device.identity()).finish()
    }
}

impl Claim {
    /// Claims the device for writing.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] when the device is claimed already.
    pub fn write(device: &Arc<dyn BlockDevice>) -> Result<Self> {
        match add_writer(&mut USED.lock(), device.identity()) {
            Err(Use::Write) => Err(DeviceError::Busy("this process has it open for writing already")),
            Err(Use::Read(_)) => Err(DeviceError::Busy("this process has it open for reading")),
            Ok(()) => Ok(Self { device: Arc::clone(device) }),
        }
    }

    /// Claims the device for reading. While the claim exists, the device cannot be claimed for
    /// writing.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] when the device is claimed for writing.
    pub fn read(device: &Arc<dyn BlockDevice>) -> Result<Self> {
        match add_reader(&mut USED.lock(), device.identity()) {
            Err(_) => Err(DeviceError::Busy("this process has it open for writing")),
            Ok(()) => Ok(Self { device: Arc::clone(device) }),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        remove(&mut USED.lock(), self.device.identity());
    }
}

#[cfg(test)]
mod tests {
    use super::Claim;
    use crate::{BlockDevice, DeviceError, FaultyDevice, MemoryDevice, OverlayDevice, RecorderDevice};
    use std::sync::Arc;

    fn is_busy(claim: Result<Claim, DeviceError>) -> bool {
        matches!(claim, Err(DeviceError::Busy(_)))
    }

    #[test]
    fn a_writer_is_alone_and_readers_share() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(4096));
        let other: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(4096));
        let writer = Claim::write(&device).unwrap();
        assert!(is_busy(Claim::write(&device)) && is_busy(Claim::read(&device)));
        let _others = Claim::write(&other).unwrap();
        drop(writer);
        let readers = [Claim::read(&device).unwrap(), Claim::read(&device).unwrap()];
        assert!(is_busy(Claim::write(&device)));
        let [first, second] = readers;
        drop(first);
        assert!(is_busy(Claim::write(&device)));
        drop(second);
        drop(Claim::write(&device).unwrap());
    }

    /// A pointer or a wrapper that writes to a device counts as that device. An overlay does not,
    /// because writes to it stay in memory.
    #[test]
    fn views_of_one_device_are_that_device() {
        let memory = Arc::new(MemoryDevice::new(4096));
        let plain: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&memory);
        let _writer = Claim::write(&plain).unwrap();
        let boxed: Arc<dyn BlockDevice> = Arc::new(Box::new(Arc::clone(&memory)));
        assert!(is_busy(Claim::write(&boxed)));
        let recorded: Arc<dyn BlockDevice> =
            Arc::new(RecorderDevice::new(FaultyDevice::new(Arc::clone(&memory))));
        assert!(is_busy(Claim::write(&recorded)));
        let overlay: Arc<dyn BlockDevice> = Arc::new(OverlayDevice::new(memory));
        drop(Claim::write(&overlay).unwrap());
    }
}
