//! Records on the device that an instance failed or found damage, so that whoever opens the image
//! next knows that it must be checked.

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
    /// Records the failure in the superblocks of the journal and of the file system, once.
    /// Committed transactions stay in the log. Best effort: the device itself may have failed. The
    /// caller may hold locks only up to the rank of an inode's content lock.
    pub(crate) fn note_failure(&self, ctx: &OpContext) {
        if self.read_only || self.failure_noted.swap(true, Ordering::Relaxed) {
            return;
        }
        let _turn = self.txns.turn.wait(|| true);
        // If the journal cannot be written, the superblock is still tried. No caller could handle
        // these errors.
        let _ = self.journal.abort();
        let _ = self.note_in_superblock(ctx);
    }

    /// Does what [`OnDamage`] requires after an operation found damage. With [`OnDamage::Tell`]
    /// that is nothing. Otherwise the damage is logged. If the instance may write, the superblock
    /// records the damage, too, and under every policy but [`ErrorPolicy::Continue`] the instance
    /// becomes read-only. The caller may hold locks only up to the rank of an inode's content lock.
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
            // Best effort: the error is also recorded in memory, so it reaches the device with the
            // next commit that writes the superblock, or at the latest when the image is closed.
            let _ = self.note_in_superblock(ctx);
        }
    }

    /// Logs damage, but each kind only once for each group, inode and physical block. Damage that
    /// differs only in its logical block or offset is not logged again.
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

    /// Records an error in the superblock on the device ([`count_error`]). The superblock in memory
    /// cannot be written instead: it may be ahead of the last commit.
    fn note_in_superblock(&self, ctx: &OpContext) -> Result<()> {
        let mut bytes = [0; RawSuperblock::SIZE];
        self.device.read_at(PRIMARY_OFFSET, &mut bytes)?;
        let raw = RawSuperblock::mut_from_bytes(&mut bytes).expect("the array has the size of a superblock");
        count_error(raw, ctx);
        Checksums::of(raw).seal_superblock(raw);
        Ok(self.device.write_durable_at(PRIMARY_OFFSET, raw.as_bytes())?)
    }
}

/// Sets the ERROR state, counts one more error, and records when it happened.
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
