//! Writes the result of a replay: first the replayed blocks to their homes, then the journal
//! superblock, then the file system's superblock without RECOVER. Each step is durable before the
//! next begins.

use blockyard_device::BlockDevice;
use blockyard_disk::jbd2::{JournalFeatures, JournalIncompat, unescape};
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::superblock::{PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{BlockNr, Incompat, TxnId};
use zerocopy::IntoBytes;
use zerocopy::big_endian::U32;

use crate::error::{Error, Result};
use crate::log::Log;
use crate::plan::Plan;
use crate::scan::LoggedBlock;
use crate::superblock_file;

/// The most bytes gathered into one write.
const GATHER: usize = 1 << 20;

/// Reads a block's copy from the log, and undoes its escaping.
pub(crate) fn read_copy(log: &Log<'_>, logged: &LoggedBlock, block: &mut [u8]) -> Result<()> {
    log.read(logged.log_block, block)?;
    if logged.is_escaped() {
        unescape(block);
    }
    Ok(())
}

/// Writes every block of the plan to its home, and flushes. If the plan has the block that holds
/// the superblock, `superblock` replaces the logged superblock in this block. Otherwise
/// `superblock` is written alone.
pub(crate) fn write_home(
    device: &dyn BlockDevice,
    log: &Log<'_>,
    plan: &Plan,
    superblock: &RawSuperblock,
) -> Result<()> {
    let block_size = log.superblock.format().block_size();
    let (superblock_block, inside) = superblock_file::place(block_size);
    let mut run = Gathered { device, block_size, start: BlockNr::ZERO, bytes: Vec::new() };
    let mut block = vec![0; block_size];
    for (&target, logged) in &plan.copies {
        read_copy(log, logged, &mut block)?;
        if target == superblock_block {
            block[inside.clone()].copy_from_slice(superblock.as_bytes());
        }
        run.push(target, &block)?;
    }
    run.write()?;
    if !plan.copies.contains_key(&superblock_block) {
        device.write_at(PRIMARY_OFFSET, superblock.as_bytes())?;
    }
    Ok(device.flush()?)
}

/// Marks the log empty. `next` is the number of the next transaction. The error code and the
/// fast-commit feature are cleared. `s_head` changes only if `head` is given.
pub(crate) fn empty_log(log: &Log<'_>, next: TxnId, head: Option<u32>) -> Result<()> {
    let ring = log.superblock.ring();
    assert!(head.is_none_or(|head| (ring.first()..ring.end()).contains(&head)), "the log's head lies in it");
    let mut raw = *log.superblock.raw();
    raw.s_start = U32::ZERO;
    raw.s_sequence = U32::new(next.raw());
    raw.s_errno = U32::ZERO;
    if let Some(head) = head {
        raw.s_head = U32::new(head);
    }
    let features = log.superblock.format().features();
    if features.incompat.contains(JournalIncompat::FAST_COMMIT) {
        let incompat = features.incompat.difference(JournalIncompat::FAST_COMMIT);
        raw.set_features(JournalFeatures { incompat, ..features });
    }
    raw.seal();
    log.write_superblock(&raw)
}

/// Writes the superblock without RECOVER, durably.
pub(crate) fn clear_recover(device: &dyn BlockDevice, superblock: &RawSuperblock) -> Result<()> {
    let mut raw = *superblock;
    superblock_file::set_recover(&mut raw, false);
    superblock_file::seal(&mut raw);
    debug_assert!(!raw.incompat().contains(Incompat::RECOVER));
    Ok(device.write_durable_at(PRIMARY_OFFSET, raw.as_bytes())?)
}

/// The superblock to write together with the plan's blocks: the plan's copy of it, otherwise
/// `present`. It still has RECOVER, keeps the errors that `present` records, and gets the ERROR
/// state if the journal has an error code or is damaged.
pub(crate) fn superblock_after(log: &Log<'_>, plan: &Plan, present: &RawSuperblock) -> Result<RawSuperblock> {
    let block_size = log.superblock.format().block_size();
    let (block_nr, inside) = superblock_file::place(block_size);
    let mut after = match plan.copies.get(&block_nr) {
        None => *present,
        Some(logged) => {
            let mut block = vec![0; block_size];
            read_copy(log, logged, &mut block)?;
            *superblock_file::from_block(&block, inside).map_err(Error::LoggedSuperblock)?.raw()
        }
    };
    superblock_file::carry_errors(present, &mut after);
    if log.superblock.errno() != 0 || !plan.damage.is_empty() {
        superblock_file::set_error_state(&mut after);
    }
    // RECOVER stays until the log is marked empty: after a crash before that, the log must be
    // replayed again.
    superblock_file::set_recover(&mut after, true);
    superblock_file::seal(&mut after);
    debug_assert!(after.incompat().contains(Incompat::RECOVER));
    Ok(after)
}

/// Gathers ascending blocks into larger writes.
struct Gathered<'a> {
    device: &'a dyn BlockDevice,
    block_size: usize,
    start: BlockNr,
    bytes: Vec<u8>,
}

impl Gathered<'_> {
    fn push(&mut self, target: BlockNr, block: &[u8]) -> Result<()> {
        let end = self.start.raw() + u64_from_usize(self.bytes.len() / self.block_size);
        assert_eq!(block.len(), self.block_size, "whole blocks go home");
        assert!(self.bytes.is_empty() || target.raw() >= end, "blocks go home in ascending order");
        if target.raw() != end || self.bytes.len() >= GATHER {
            self.write()?;
            self.start = target;
        }
        self.bytes.extend_from_slice(block);
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        if !self.bytes.is_empty() {
            let offset = self.start.raw() * u64_from_usize(self.block_size);
            self.device.write_at(offset, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}
