//! A failed instance says so on the device: whoever opens the image next knows that it must be
//! checked.

use super::Volume;
use crate::options::OnDamage;
use crate::{OpContext, Result};
use blockyard_disk::num::low32;
use blockyard_disk::superblock::{ErrorPolicy, FsState, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{Checksums, Corruption, Place};
use blockyard_sync::Ordering;
use zerocopy::{FromBytes, IntoBytes};

/// The most findings that an instance logs and remembers.
const LOGGED_MAX: usize = 256;

impl Volume {
    /// Records the failure in the journal and the superblock, once. What was committed stays in the
    /// log. Best effort: the device itself may have failed. Call it without locks of a rank above
    /// that of an inode's content.
    pub(crate) fn note_failure(&self, ctx: &OpContext) {
        if self.read_only || self.failure_noted.swap(true, Ordering::Relaxed) {
            return;
        }
        let _turn = self.txns.turn.wait(|| true);
        // Both are tried, even if the first fails. Nobody is left to tell about errors.
        let _ = self.journal.abort();
        let _ = self.note_in_superblock(ctx);
    }

    /// Does what [`OnDamage`] requires after an operation found damage. This may be nothing.
    /// Otherwise the damage is logged, and unless the instance is read-only, the superblock records
    /// it. If the policy is not to continue, the instance becomes read-only. Call this without
    /// locks of a rank above that of an inode's content.
    pub(crate) fn note_damage(&self, ctx: &OpContext, found: &Corruption) {
        if self.options().on_damage == OnDamage::Tell {
            return;
        }
        self.log_damage(found);
        if self.read_only {
            return;
        }
        let policy = match self.options().on_damage {
            OnDamage::Do(policy) => policy,
            OnDamage::Tell | OnDamage::AsSuperblock => {
                let raw = self.superblock().raw().s_errors.get();
                ErrorPolicy::from_raw(raw).unwrap_or(ErrorPolicy::Continue)
            }
        };
        if policy != ErrorPolicy::Continue {
            self.fail();
            self.note_failure(ctx);
            return;
        }
        let is_first = {
            let mut super_block = self.super_block.lock();
            let raw = super_block.raw_mut();
            let is_first = !raw.state().contains(FsState::ERROR);
            count_error(raw, ctx);
            is_first
        };
        if is_first {
            // Best effort: the next commit that writes the superblock records the error again, and
            // the close does so at the latest.
            let _ = self.note_in_superblock(ctx);
        }
    }

    /// Logs damage, each kind once for each place. Places differ by group, inode or block on the
    /// device. Logical block and offset do not count.
    fn log_damage(&self, found: &Corruption) {
        let place = Place { logical: None, offset: None, ..found.at };
        let what = Corruption { at: place, ..*found };
        let count = {
            let mut logged = self.damage_logged.lock();
            if logged.len() == LOGGED_MAX || logged.contains(&what) {
                return;
            }
            logged.push(what);
            logged.len()
        };
        tracing::warn!("the file system is damaged: {found}");
        if count == LOGGED_MAX {
            tracing::warn!("further damage is not logged");
        }
    }

    /// Counts an error in the superblock as it is on the device: the one in memory may be ahead of
    /// the last commit.
    fn note_in_superblock(&self, ctx: &OpContext) -> Result<()> {
        let mut bytes = [0; RawSuperblock::SIZE];
        self.device.read_at(PRIMARY_OFFSET, &mut bytes)?;
        let raw = RawSuperblock::mut_from_bytes(&mut bytes).expect("the array has the size of a superblock");
        count_error(raw, ctx);
        Checksums::of(raw).seal_superblock(raw);
        Ok(self.device.write_durable_at(PRIMARY_OFFSET, raw.as_bytes())?)
    }
}

/// Counts one more error.
fn count_error(raw: &mut RawSuperblock, ctx: &OpContext) {
    raw.set_state(raw.state() | FsState::ERROR);
    let now = low32(ctx.now.seconds.max(0).cast_unsigned());
    let count = raw.s_error_count.get();
    if count == 0 {
        raw.s_first_error_time.set(now);
    }
    raw.s_error_count.set(count.saturating_add(1));
    raw.s_last_error_time.set(now);
}
