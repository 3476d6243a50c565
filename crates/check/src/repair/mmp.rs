//! Multiple mount protection: whether another host uses the file system.
//!
//! A host that mounts a file system with the feature mmp raises the sequence in the MMP block every
//! few seconds. So a sequence that neither says "closed" nor changes was left by a host that went
//! down. This module only looks. It takes no part in the protocol: [`Mmp::confirm`] finds a host
//! that mounts while a repair is decided, but not one that mounts while the repair is written.

use std::ops::Range;
use std::time::Duration;

use blockyard_device::{BlockDevice, DeviceError};
use blockyard_disk::mmp::{MAGIC, RawMmp, SEQUENCE_CLEAN, SEQUENCE_FSCK};
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{Checksums, Incompat};
use zerocopy::FromBytes;

use super::editor::sound_superblock;
use crate::backup;

/// Interval between two updates, in seconds, if none is given.
const INTERVAL_DEFAULT: u64 = 5;
/// The longest interval between two updates, in seconds, that is believed.
const INTERVAL_MAX: u64 = 300;
/// By how many seconds a busy host may be late with an update.
const LATE_MAX: u64 = 60;

/// Why nothing may be written: another host may use the file system.
#[derive(Debug, thiserror::Error)]
pub enum InUse {
    /// The MMP block changes.
    #[error("another host has the file system mounted{}: its MMP block changes", named(.0))]
    Mounted(String),
    /// The MMP block says that a check runs.
    #[error(
        "the MMP block says that a check runs{}; if none does on any host, it was interrupted: \
         tune2fs -f -E clear_mmp removes its mark", named(.0)
    )]
    Checked(String),
    /// The MMP block has a sequence without a meaning.
    #[error(
        "the MMP block has the unknown sequence {0:#010x}; if no host uses the file system, \
         tune2fs -f -E clear_mmp resets it"
    )]
    Unknown(u32),
    /// The MMP block cannot be read.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn named(host: &str) -> String {
    if host.is_empty() { String::new() } else { format!(" on the host {host:?}") }
}

/// The MMP block of a file system as it was first read.
#[derive(Debug)]
pub struct Mmp {
    /// Where the block is, in bytes.
    at: u64,
    block: Box<[u8; RawMmp::SIZE]>,
    seconds: u64,
}

impl Mmp {
    /// Reads the MMP block of a file system. `None` if the file system has none, if the block's
    /// number is impossible, or if there is no usable superblock.
    ///
    /// # Errors
    /// [`InUse`] if the block by itself says that nothing may be written, or cannot be read.
    pub fn read(device: &dyn BlockDevice) -> Result<Option<Self>, InUse> {
        let copy = || backup::find(device).map(|copy| *copy.superblock());
        let Some(sb) = sound_superblock(device).or_else(copy) else { return Ok(None) };
        let Some(at) = place(&sb, device) else { return Ok(None) };
        let mut block = Box::new([0; RawMmp::SIZE]);
        device.read_at(at, &mut block[..])?;
        let mmp = raw(&block);
        let is_sound = mmp.mmp_magic.get() == MAGIC && Checksums::of(&sb).verify_mmp(mmp).is_ok();
        let seconds = match mmp.mmp_seq.get() {
            SEQUENCE_CLEAN if is_sound => 0,
            SEQUENCE_FSCK if is_sound => return Err(InUse::Checked(host(mmp))),
            unknown @ SEQUENCE_FSCK.. if is_sound => return Err(InUse::Unknown(unknown)),
            // A damaged block may still be updated.
            _ => {
                let in_block = if is_sound { mmp.mmp_check_interval.get() } else { 0 };
                let interval = in_block.max(sb.s_mmp_update_interval.get());
                let interval =
                    if interval == 0 { INTERVAL_DEFAULT } else { u64::from(interval).min(INTERVAL_MAX) };
                (2 * interval + 1).min(interval + LATE_MAX)
            }
        };
        debug_assert!(seconds <= INTERVAL_MAX + LATE_MAX, "waits {seconds} s");
        Ok(Some(Self { at, block, seconds }))
    }

    /// How long [`wait`](Self::wait) takes: nothing if the file system was closed.
    #[must_use]
    pub const fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Waits as long as another host may take to change the block. `forget` drops what is cached of
    /// a range of the device, so that the next read sees what the other host wrote.
    ///
    /// # Errors
    /// [`InUse`] as soon as the block has changed or cannot be read.
    pub fn wait(&self, device: &dyn BlockDevice, forget: &dyn Fn(Range<u64>)) -> Result<(), InUse> {
        for _ in 0..self.seconds {
            std::thread::sleep(Duration::from_secs(1));
            self.confirm(device, forget)?;
        }
        Ok(())
    }

    /// Checks that the block still is as it was. To be called right before the first write.
    ///
    /// # Errors
    /// [`InUse`] if the block has changed or cannot be read.
    pub fn confirm(&self, device: &dyn BlockDevice, forget: &dyn Fn(Range<u64>)) -> Result<(), InUse> {
        forget(self.at..self.at + u64_from_usize(RawMmp::SIZE));
        debug_assert!(self.at + u64_from_usize(RawMmp::SIZE) <= device.size(), "another device");
        let mut now = [0; RawMmp::SIZE];
        device.read_at(self.at, &mut now)?;
        if now == *self.block { Ok(()) } else { Err(InUse::Mounted(host(raw(&now)))) }
    }
}

/// Where the MMP block is, in bytes.
fn place(sb: &RawSuperblock, device: &dyn BlockDevice) -> Option<u64> {
    let bits = sb.s_log_block_size.get().checked_add(10)?;
    let block = sb.s_mmp_block.get();
    let at = block.checked_mul(1u64.checked_shl(bits)?)?;
    let fits = at.checked_add(u64_from_usize(RawMmp::SIZE))? <= device.size();
    (sb.incompat().contains(Incompat::MMP) && block > 0 && fits).then_some(at)
}

fn raw(block: &[u8; RawMmp::SIZE]) -> &RawMmp {
    RawMmp::ref_from_bytes(block).expect("1024 bytes are an MMP block")
}

/// The name of the host that wrote the block last.
fn host(mmp: &RawMmp) -> String {
    let name = mmp.mmp_nodename.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
