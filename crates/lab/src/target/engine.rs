//! blockyard's engine as a target: files in the root directory of an open image, called directly.
//!
//! Operations can overlap in a model ([`EngineTarget::overlapping`]): the group that an operation
//! allocated data in looks locked to every later operation of the round. A policy that skips busy
//! groups goes elsewhere. A policy that waits for busy groups does not wait here: it allocates in
//! the group at once, as it would after the wait. Only the last data allocation of an operation
//! counts, because a CPU holds one group's lock at a time.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use blockyard_alloc::{AllocEvent, EventKind, EventSink, Policy, RequestFlags};
use blockyard_device::BlockDevice;
use blockyard_disk::inode::FileType;
use blockyard_disk::{GroupNr, InodeNr, Timestamp};
use blockyard_engine::{Error, Events, Fallocate, FileSystem, JournalUse, NewInode, OpContext, OpenOptions};
use blockyard_sync::CpuSlot;

use super::{Cpu, Target};
use crate::held_locks::HeldLocks;

/// The time in inodes. It is fixed, so that an image depends only on its inputs.
const NOW: i64 = 1_700_000_000;

/// Files in the root directory of an open file system.
pub struct EngineTarget {
    fs: FileSystem,
    in_flight: Option<InFlight>,
    /// The files created here and not deleted here since.
    created: Mutex<BTreeSet<InodeNr>>,
}

/// Where the current operation last allocated data.
#[derive(Default)]
struct Latest(Mutex<Option<GroupNr>>);

/// A round of overlapping operations.
struct InFlight {
    latest: Arc<Latest>,
    /// Locks of the groups used by this round's operations.
    held: Arc<HeldLocks>,
}

impl EventSink for Latest {
    fn emit(&self, _: CpuSlot, event: &AllocEvent) {
        let data = u32::from(event.flags) & RequestFlags::DATA.bits() != 0;
        if data && event.kind != EventKind::NoSpace {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(GroupNr::new(event.result.group));
        }
    }
}

impl EngineTarget {
    /// A target on an open file system; operations run one after another or in parallel.
    #[must_use]
    pub fn new(fs: FileSystem) -> Self {
        Self { fs, in_flight: None, created: Mutex::default() }
    }

    /// Opens an image so that the operations between two calls of [`Target::next_round`] count as
    /// simultaneous. One thread must drive the target. `options.events` is replaced.
    ///
    /// # Errors
    /// Those of the image or its device.
    pub fn overlapping(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Self> {
        let latest = Arc::new(Latest::default());
        let sink: Arc<dyn EventSink> = Arc::<Latest>::clone(&latest);
        let options = OpenOptions { events: Some(Events(sink)), ..options };
        let fs = FileSystem::open(device, options, &context(0))?;
        let held = Arc::new(HeldLocks::new(fs.allocator()));
        fs.allocator().set_lock_model(Some(Arc::<HeldLocks>::clone(&held)));
        Ok(Self { fs, in_flight: Some(InFlight { latest, held }), created: Mutex::default() })
    }

    /// Makes the lock of the group in which the operation last allocated data look held until the
    /// round ends, because the operation counts as running until then. Does nothing if the
    /// operation allocated no data.
    fn keep_group(&self) {
        let Some(in_flight) = &self.in_flight else { return };
        if let Some(group) = in_flight.latest.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            in_flight.held.hold(self.fs.allocator(), group);
        }
    }

    /// The file system.
    #[must_use]
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    /// The bytes of the device that are allocated to the content of the files created here and not
    /// deleted here since, in ascending order.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn content(&self) -> Result<Vec<Range<u64>>> {
        let mut ranges = Vec::new();
        for &file in &*self.created() {
            let extents = self.fs.extents(file, 0, usize::MAX).context("extents")?;
            let placed = extents.iter().filter_map(|extent| Some((extent.physical?, extent.len)));
            ranges.extend(placed.map(|(first, length)| first..first + length));
        }
        ranges.sort_unstable_by_key(|range| range.start);
        Ok(ranges)
    }

    fn created(&self) -> MutexGuard<'_, BTreeSet<InodeNr>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the file system. Afterwards everything is on the device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn close(self) -> Result<()> {
        self.fs.close(&context(0)).context("close the image")
    }
}

/// Options of experiments that measure only allocation: no journal.
pub(crate) fn unjournaled(policy: Policy, seed: u64) -> OpenOptions {
    OpenOptions { policy, seed, journal: JournalUse::Ignored, ..OpenOptions::default() }
}

/// The context of an operation on a CPU slot.
#[must_use]
pub fn context(cpu: Cpu) -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(NOW)).on(CpuSlot::new(cpu))
}

impl Target for EngineTarget {
    type File = InodeNr;

    fn create(&self, cpu: Cpu, name: &str) -> Result<Option<InodeNr>> {
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let inode = match self.fs.create(&context(cpu), InodeNr::ROOT, name.as_bytes(), &new) {
            Err(Error::Exists) => return Ok(None),
            made => made.with_context(|| format!("create {name}"))?,
        };
        self.fs.open_inode(inode, true).with_context(|| format!("open {name}"))?;
        self.created().insert(inode);
        Ok(Some(inode))
    }

    fn fallocate(&self, cpu: Cpu, file: &InodeNr, offset: u64, length: u64) -> Result<()> {
        let done = self.fs.fallocate(&context(cpu), *file, Fallocate::Allocate, offset, length);
        self.keep_group();
        done.context("fallocate")
    }

    fn truncate(&self, cpu: Cpu, file: &InodeNr, size: u64) -> Result<()> {
        self.fs.truncate(&context(cpu), *file, size).context("truncate")
    }

    fn write(&self, cpu: Cpu, file: &InodeNr, offset: u64, data: &[u8]) -> Result<()> {
        let done = self.fs.write(&context(cpu), *file, offset, data);
        self.keep_group();
        done.context("write")
    }

    fn write_direct(&self, cpu: Cpu, file: &InodeNr, offset: u64, data: &[u8]) -> Result<()> {
        let done = self.fs.write_direct(&context(cpu), *file, offset, data);
        self.keep_group();
        let written = done.context("direct write")?;
        ensure!(written == data.len(), "direct write: {written} of {} bytes at {offset}", data.len());
        Ok(())
    }

    fn unlink(&self, cpu: Cpu, name: &str) -> Result<()> {
        let context = context(cpu);
        let deleted = || {
            let inode = self.fs.lookup(InodeNr::ROOT, name.as_bytes())?;
            self.fs.unlink(&context, InodeNr::ROOT, name.as_bytes()).map(|()| inode)
        };
        let inode = deleted().with_context(|| format!("unlink {name}"))?;
        self.created().remove(&inode);
        Ok(())
    }

    fn read(&self, cpu: Cpu, file: &InodeNr, offset: u64, buf: &mut [u8]) -> Result<()> {
        let got = self.fs.read(&context(cpu), *file, offset, buf).context("read")?;
        ensure!(got == buf.len(), "read: {got} of {} bytes at {offset}", buf.len());
        Ok(())
    }

    fn fsync(&self, cpu: Cpu, file: &InodeNr) -> Result<()> {
        self.fs.fsync(&context(cpu), *file).context("fsync")
    }

    fn switch_scan(&self) -> Result<()> {
        let allocator = self.fs.allocator();
        allocator.set_optimize_scan(!allocator.optimize_scan());
        Ok(())
    }

    fn close(&self, cpu: Cpu, file: InodeNr) -> Result<()> {
        self.fs.release_inode(&context(cpu), file, true).context("close")
    }

    fn next_round(&self) {
        if let Some(in_flight) = &self.in_flight {
            in_flight.held.release_all();
        }
    }
}
