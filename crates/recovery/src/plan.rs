//! Turns the committed transactions into a list of blocks to write: applies revokes, verifies
//! targets and checksums, and chooses the last good copy of each block.

use std::collections::{BTreeMap, HashMap};

use blockyard_disk::jbd2::unescape;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{BlockNr, CorruptionKind, TxnId};

use crate::log::Log;
use crate::report::{Damage, note};
use crate::scan::{LoggedBlock, Scan};
use crate::superblock_file;

/// What must be written home, with counts of what the log holds.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The copy to write, for each block.
    pub(crate) copies: BTreeMap<BlockNr, LoggedBlock>,
    pub(crate) transactions: u64,
    pub(crate) logged: u64,
    pub(crate) revokes: u64,
    pub(crate) revoked: u64,
    pub(crate) damage: Vec<Damage>,
}

/// Decides for every logged copy whether it is written. `is_possible` says whether a block may be
/// the target of a copy.
pub(crate) fn plan(log: &Log<'_>, scan: &Scan, is_possible: impl Fn(BlockNr) -> bool) -> Plan {
    let revoked_until = revoke_table(scan);
    let mut plan = Plan { damage: scan.damage.clone(), ..Plan::default() };
    let mut block = vec![0; log.superblock.format().block_size()];
    for transaction in &scan.transactions {
        plan.transactions += 1;
        plan.revokes += u64_from_usize(transaction.revokes.len());
        for logged in &transaction.blocks {
            plan.logged += 1;
            let target = logged.tag.target;
            let revoked = revoked_until.get(&target);
            if revoked.is_some_and(|revoked| !transaction.tid.is_after(*revoked)) {
                plan.revoked += 1;
                continue;
            }
            let wrong = if is_possible(target) {
                verify(log, transaction.tid, logged, &mut block)
            } else {
                Some(CorruptionKind::JournalTarget)
            };
            let Some(kind) = wrong else {
                plan.copies.insert(target, *logged);
                continue;
            };
            let log_block = logged.log_block;
            note(&mut plan.damage, Damage { kind, tid: transaction.tid, log_block, target: Some(target) });
        }
    }
    plan
}

/// For each revoked block, the last transaction that revoked it.
fn revoke_table(scan: &Scan) -> HashMap<BlockNr, TxnId> {
    let mut table: HashMap<BlockNr, TxnId> = HashMap::new();
    for transaction in &scan.transactions {
        for &block in &transaction.revokes {
            let last = table.entry(block).or_insert(transaction.tid);
            if transaction.tid.is_after(*last) {
                *last = transaction.tid;
            }
        }
    }
    table
}

/// What is wrong with a copy; `None` when it is good. The copy is read even if it has no checksum,
/// so that a read error is found before the first write and not between writes.
fn verify(log: &Log<'_>, tid: TxnId, logged: &LoggedBlock, block: &mut [u8]) -> Option<CorruptionKind> {
    if log.read(logged.log_block, block).is_err() {
        return Some(CorruptionKind::JournalUnreadable);
    }
    let is_good = log.superblock.format().verify_data(tid, &logged.tag, block);
    if is_good { verify_superblock(logged, block) } else { Some(CorruptionKind::JournalDataChecksum) }
}

/// What is wrong with the superblock in this copy. `None` if it is good, or if this is a copy of a
/// block without the superblock. Unsupported features or sizes are not damage: a copy with them
/// stays in the plan. Unless a later good copy replaces it, the whole log is refused.
fn verify_superblock(logged: &LoggedBlock, block: &mut [u8]) -> Option<CorruptionKind> {
    let (place, inside) = superblock_file::place(block.len());
    if logged.tag.target != place {
        return None;
    }
    if logged.is_escaped() {
        unescape(block);
    }
    match superblock_file::from_block(block, inside) {
        Err(blockyard_disk::Error::Corrupt(found)) => Some(found.kind),
        _ => None,
    }
}
