//! What `-p` does with a plan: it carries the plan out if that loses nothing of value, and leaves
//! it undone otherwise.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_device::BlockDevice;
use blockyard_disk::group_desc::{GroupFlags, RawGroupDesc};
use blockyard_disk::inode::InodeSlot;
use blockyard_disk::superblock::{PRIMARY_OFFSET, RawSuperblock, bounds};
use blockyard_disk::{BlockNr, Compat, Incompat, InodeNr, RoCompat};

use super::Plan;
use super::editor::sound_superblock;
use super::log::Action;
use crate::code::Code;
use crate::descriptors;
use crate::directories::{NODES_BEHIND, ROOT_OF_AN_INDEX};
use crate::finding::{Finding, Sink};
use crate::inode::EXTENT_BLOCKS;
use crate::superblock::{self, Opened};

/// What `-p` does with a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preening<'p> {
    /// Nothing: there is nothing to do.
    Clean,
    /// It carries out the plan.
    Mends,
    /// It replays the journal and sets the error mark: somebody must look at this finding.
    Stops(&'p Finding),
    /// Nothing, not even the replay of the journal: this finding says what must be settled first.
    Refuses(&'p Finding),
    /// Nothing: the file system cannot be examined by its own superblock, names have an unknown
    /// encoding, or the journal's inode cannot be read.
    Unusable,
}

impl Plan<'_> {
    /// What `-p` does with the plan.
    #[must_use]
    pub fn preening(&self) -> Preening<'_> {
        if let Some(finding) = self.refusal() {
            return Preening::Refuses(finding);
        }
        if let Some(finding) = &self.miscounted {
            return Preening::Stops(finding);
        }
        // If the file system can be examined, the finding SUPERBLOCK_CONSTANT is about an unknown
        // encoding.
        let is_unusable = |code| matches!(code, Code::SUPERBLOCK_BACKUP | Code::SUPERBLOCK_CONSTANT);
        let has_unusable = self.before.findings.iter().any(|finding| is_unusable(finding.code));
        if !self.before.examined || has_unusable || self.has_lost_journal() {
            return Preening::Unusable;
        }
        let beside = Beside::of(self);
        if let Some(finding) = self.before.findings.iter().find(|finding| !beside.lets_pass(finding)) {
            let is_unread = has_unsealed_journal(self.overlay.below());
            return if is_unread { Preening::Unusable } else { Preening::Stops(finding) };
        }
        let is_garbage = |finding: &&Finding| self.garbage.is_some() && finding.site.inode == self.garbage;
        if let Some(finding) = self.before.findings.iter().find(is_garbage) {
            return Preening::Stops(finding);
        }
        if self.is_empty() { Preening::Clean } else { Preening::Mends }
    }

    /// The finding that forbids any repair: the log holds commits that would be lost, because this
    /// recovery cannot replay them, or MMP says that the file system is in use or was not closed.
    #[must_use]
    pub fn refusal(&self) -> Option<&Finding> {
        let is_refused = |code| matches!(code, Code::LOG_UNSUPPORTED | Code::MMP_IN_USE);
        self.before.findings.iter().find(|finding| is_refused(finding.code))
    }
}

impl Plan<'_> {
    /// Whether e2fsck -p gives up before the passes because the first inode table is lost, and with
    /// it the journal's inode. If the superblock has a copy of that inode which is empty or begins
    /// like extents, e2fsck does not give up, but removes the journal.
    fn has_lost_journal(&self) -> bool {
        let is_lost = |finding: &Finding| {
            matches!(finding.code, Code::DESCRIPTORS_BACKUP | Code::INODE_TABLE_PLACE)
                && finding.site.group.is_none_or(|group| group.raw() == 0)
        };
        let lost = self.before.findings.iter().any(is_lost);
        let device = self.overlay.below();
        lost && sound_superblock(device).is_some_and(|sb| {
            let first = sb.s_jnl_blocks[0].get();
            let extents = first.to_le_bytes()[..2] == blockyard_disk::extent::MAGIC.to_le_bytes();
            let is_kept = is_journal_copied(&sb) && (first == 0 || extents);
            let is_inside = sb.compat().contains(Compat::HAS_JOURNAL) && sb.s_journal_inum.get() != 0;
            is_inside && !is_kept && !names_first_table(device, &sb)
        })
    }
}

/// Whether the superblock says that it has a copy of the journal's inode.
fn is_journal_copied(sb: &RawSuperblock) -> bool {
    sb.s_jnl_backup_type == 1
}

/// Whether the checksum of the journal's inode is wrong, and the superblock has no copy of that
/// inode. Then e2fsck gives up before the passes. `mke2fs -S` leaves this state, because it changes
/// the seed of all checksums.
fn has_unsealed_journal(device: &dyn BlockDevice) -> bool {
    let mut sink = Sink::default();
    let Ok(Opened::Volume(mut volume)) = superblock::open(device, &mut sink) else { return false };
    descriptors::load(&mut volume, &mut sink);
    let inode = InodeNr::new(volume.sb.s_journal_inum.get());
    let is_named = volume.compat.contains(Compat::HAS_JOURNAL)
        && (1..=volume.geometry.inodes_count()).contains(&inode.raw());
    if !is_named || is_journal_copied(&volume.sb) || volume.groups.is_empty() {
        return false;
    }
    volume.inode(inode).is_ok_and(|bytes| {
        let slot = InodeSlot::new(bytes);
        slot.raw().file_type().is_some() && volume.checksums.verify_inode(inode, &slot).is_err()
    })
}

/// Whether the first descriptor names a possible place for its table.
fn names_first_table(device: &dyn BlockDevice, sb: &RawSuperblock) -> bool {
    let blocks = bounds::geometry(sb).map_or(0, |geometry| geometry.blocks_count().raw());
    first_descriptor(device, sb).is_some_and(|desc| (1..blocks).contains(&desc.inode_table().raw()))
}

/// The first descriptor, if it can be read.
fn first_descriptor(device: &dyn BlockDevice, sb: &RawSuperblock) -> Option<RawGroupDesc> {
    let geometry = bounds::geometry(sb).ok()?;
    let mut raw = [0; 64];
    let size = if sb.incompat().contains(Incompat::BIT64) { 64 } else { 32 };
    // Descriptors follow the superblock, which with bigalloc may not be in the first data block.
    let at = ((PRIMARY_OFFSET >> geometry.block_bits()) + 1) << geometry.block_bits();
    device.read_at(at, &mut raw[..size]).ok()?;
    Some(RawGroupDesc::from_disk(&raw[..size]))
}

/// Whether a finding makes e2fsck read more of the inode tables and start over.
pub(super) fn restarts(code: Code) -> bool {
    matches!(code, Code::UNINIT_INODE | Code::UNUSED_AREA_INODE)
}

/// What e2fsck -p considers, besides a finding itself, when it decides whether to stop at the
/// finding.
struct Beside {
    /// Directories whose index e2fsck -p drops ([`drops_index`]).
    dropped: BTreeSet<InodeNr>,
    /// Attribute blocks that e2fsck -p drops because an entry has a wrong hash, with the offset of
    /// the first such entry.
    let_go: BTreeMap<BlockNr, usize>,
    /// Directories whose index root has a wrong checksum.
    unsealed_roots: BTreeSet<InodeNr>,
    /// Inodes whose attributes e2fsck -p drops because a value inode is unusable or lacks its flag.
    without_values: BTreeSet<InodeNr>,
    /// Inodes whose size the first pass corrects.
    resized: BTreeSet<InodeNr>,
    /// The inode that the superblock names as the journal; 0 for none.
    journal: InodeNr,
    /// Whether e2fsck -p removes the journal, because the journal's inode is unusable.
    journal_goes: bool,
    /// Whether e2fsck -p sets the extents feature, because 64bit needs it.
    is_widened: bool,
    /// Whether metadata has checksums.
    checksums: bool,
    /// Directories that name an inode which was not scanned and turns out to be unused, see
    /// [`hollow`].
    hollow: BTreeSet<InodeNr>,
    /// Codes of the actions after pass 2, if e2fsck starts over before it gets there.
    left: Option<BTreeSet<Code>>,
    /// Findings that only another wrong field of an inode caused, see [`gone`] and [`reappeared`].
    gone: BTreeSet<(InodeNr, Code)>,
    /// Findings about orphans.
    orphans: OrphanFindings,
}

impl Beside {
    fn of(plan: &Plan<'_>) -> Self {
        let findings = &plan.before.findings;
        let roots = findings.iter().filter(|finding| drops_index(finding));
        let unsealed = findings.iter().filter(|finding| finding.code == Code::HTREE_ROOT_CHECKSUM);
        let is_of_value = |code| matches!(code, Code::EA_INODE_BAD | Code::EA_INODE_UNFLAGGED);
        let values = findings.iter().filter(|finding| is_of_value(finding.code));
        let hashes = findings.iter().filter(|finding| finding.code == Code::XATTR_HASH);
        let sizes = findings.iter().filter(|finding| finding.code == Code::SIZE_WRONG);
        Self {
            resized: sizes.filter_map(|finding| finding.site.inode).collect(),
            journal: sound_superblock(plan.overlay.below())
                .map_or(InodeNr::new(0), |sb| InodeNr::new(sb.s_journal_inum.get())),
            journal_goes: findings.iter().any(|finding| finding.code == Code::JOURNAL_INODE),
            is_widened: findings.iter().any(|finding| finding.code == Code::WIDE_WITHOUT_EXTENTS),
            hollow: hollow(plan),
            left: left(plan),
            gone: gone(plan).into_iter().chain(reappeared(plan)).collect(),
            orphans: OrphanFindings::of(plan),
            dropped: roots.filter_map(|finding| finding.site.inode).collect(),
            unsealed_roots: unsealed.filter_map(|finding| finding.site.inode).collect(),
            without_values: values.filter_map(|finding| finding.site.inode).collect(),
            // In reverse, so that the first of several entries in a block stays in the map.
            let_go: hashes.rev().filter_map(|finding| finding.site.block.zip(finding.site.offset)).collect(),
            checksums: sound_superblock(&plan.overlay)
                .is_some_and(|sb| sb.ro_compat().contains(RoCompat::METADATA_CSUM)),
        }
    }

    /// Whether a finding is about an attribute block that e2fsck -p drops because of a hash before
    /// it comes to the finding.
    fn is_let_go(&self, finding: &Finding) -> bool {
        let dropped_at = finding.site.block.and_then(|block| self.let_go.get(&block));
        dropped_at.is_some_and(|&first| finding.site.offset.is_none_or(|at| at > first))
    }

    /// Whether a finding is gone by the time e2fsck -p would come to it, because of what e2fsck -p
    /// did before.
    fn never_comes_to(&self, finding: &Finding) -> bool {
        let (code, inode) = (finding.code, finding.site.inode);
        inode.is_some_and(|inode| self.gone.contains(&(inode, code)))
            || self.orphans.cover(finding)
            || self.left.as_ref().is_some_and(|left| code.pass() > 2 && !left.contains(&code))
            // The journal is removed before the first pass, so its inode is not checked.
            || (self.journal_goes && inode == Some(self.journal))
    }

    /// Whether e2fsck -p goes on at a finding, as observed.
    fn lets_pass(&self, finding: &Finding) -> bool {
        if self.never_comes_to(finding) {
            return true;
        }
        match finding.code {
            // The first pass corrects the whole size, high half included.
            Code::DIR_SIZE_HIGH => finding.site.inode.is_some_and(|inode| self.resized.contains(&inode)),
            // In a hollow directory, e2fsck -p stops at the file type of an entry for an unused
            // inode.
            code if restarts(code) => finding.site.inode.is_none_or(|inode| !self.hollow.contains(&inode)),
            // e2fsck -p stops at descriptors from a backup, at a log without the recovery flag, at
            // questions about the superblock, and at the resize inode.
            Code::DESCRIPTORS_BACKUP
            | Code::HURD_FILETYPE
            | Code::LOG_NOT_EMPTY
            | Code::QUOTA_INODE
            | Code::MIN_EXTRA_ISIZE
            | Code::WANT_EXTRA_ISIZE
            | Code::RESIZE_INODE
            | Code::RESIZE_WITHOUT_FEATURE
            | Code::RESERVED_GDT_WITHOUT_FEATURE
            | Code::RESIZE_WITH_META_BG => false,
            // If 64bit needs the feature, e2fsck -p sets it before the first pass.
            Code::EXTENTS_WITHOUT_FEATURE => self.is_widened,
            Code::JOURNAL_SUPERBLOCK => {
                !finding.detail.starts_with("unknown features") && !finding.detail.starts_with("type")
            }
            // The list of bad blocks is read before the first pass, by code that does not repair.
            Code::INODE_CHECKSUM if finding.site.inode == Some(InodeNr::BAD_BLOCKS) => false,
            // e2fsck -p stops at the first extent block of the inode. But it goes on at the
            // journal, which it makes anew.
            Code::INODE_CHECKSUM if finding.detail == EXTENT_BLOCKS => {
                finding.site.inode == Some(self.journal)
            }
            // e2fsck -p replays the log up to the corruption, and goes on. If the log's superblock
            // is corrupt, the rule for `JOURNAL_SUPERBLOCK` decides.
            Code::LOG_CORRUPT | Code::NOT_REPLAYED => true,
            // e2fsck -p writes an orphan file with such a fault anew.
            Code::ORPHAN_FILE_MAGIC | Code::ORPHAN_FILE_CHECKSUM => true,
            // e2fsck -p does not come to these findings if it drops the block at an earlier entry.
            Code::XATTR_OVERLAP | Code::XATTR_VALUE | Code::XATTR_NAME => self.is_let_go(finding),
            Code::XATTR_CHECKSUM => {
                self.is_let_go(finding)
                    || finding.site.inode.is_some_and(|inode| self.without_values.contains(&inode))
            }
            _ => self.lets_index_pass(finding),
        }
    }

    /// As [`lets_pass`](Self::lets_pass), for findings about indexes of directories, and for others
    /// that have no rule of their own.
    fn lets_index_pass(&self, finding: &Finding) -> bool {
        let is_of =
            |inodes: &BTreeSet<InodeNr>| finding.site.inode.is_some_and(|inode| inodes.contains(&inode));
        match finding.code {
            // The nodes that are left of the index are read as leaves, and lack a leaf's checksum.
            _ if self.checksums && finding.detail.ends_with(NODES_BEHIND) => false,
            // The index is dropped before blocks are read. Then e2fsck -p stops at the root, which
            // it reads as a leaf, unless the root's own checksum is wrong, too.
            Code::HTREE_VERSION
            | Code::HTREE_FLAGS
            | Code::HTREE_DEPTH
            | Code::HTREE_SIPHASH
            | Code::HTREE_SIPHASH_MISSING
            | Code::INDEX_WITHOUT_FEATURE
                if self.checksums =>
            {
                is_of(&self.unsealed_roots)
            }
            // A root with this finding is taken for a leaf with broken entries.
            Code::LEAF_NO_TAIL if finding.detail == ROOT_OF_AN_INDEX => false,
            // The block is not a node, so it is read as a leaf.
            Code::HTREE_LEAF_DEPTH if self.checksums => false,
            Code::HTREE_UNREFERENCED
            | Code::HTREE_OUTSIDE
            | Code::HTREE_TWICE
            | Code::HTREE_BELOW_MINIMUM
            | Code::HTREE_ABOVE_MAXIMUM
            | Code::HTREE_LEAF_DEPTH => is_of(&self.dropped),
            code => !finding.is_error() || code.is_safe(),
        }
    }
}

/// Findings about orphans. Unless the superblock has the error mark, e2fsck finishes deletions and
/// truncations before the first pass, so it does not see the faults that vanish with them.
pub(super) struct OrphanFindings {
    orphans: BTreeSet<InodeNr>,
    /// All findings of the check before the repair, by inode.
    found: BTreeSet<(InodeNr, Code)>,
    /// All actions of the repair, by inode.
    done: BTreeSet<(InodeNr, Code)>,
}

impl OrphanFindings {
    pub(super) fn of(plan: &Plan<'_>) -> Self {
        let is_listed = |code| matches!(code, Code::ORPHAN_UNFINISHED | Code::ORPHAN_PENDING);
        let found = plan.before.findings.iter();
        let found = found.filter_map(|finding| Some((finding.site.inode?, finding.code)));
        let found: BTreeSet<(InodeNr, Code)> = found.collect();
        let done = plan.actions.iter().filter_map(|action| Some((action.site.inode?, action.code)));
        let orphans = found.iter().filter(|(_, code)| is_listed(*code)).map(|(inode, _)| *inode).collect();
        Self { orphans, found, done: done.collect() }
    }

    /// Whether an orphan that was finished is the only reason for an action.
    pub(super) fn explain(&self, action: &Action) -> bool {
        let inode = action.site.inode;
        inode
            .is_some_and(|inode| self.orphans.contains(&inode) && !self.found.contains(&(inode, action.code)))
    }

    /// Whether a finding is gone once the orphan is finished.
    fn cover(&self, finding: &Finding) -> bool {
        let inode = finding.site.inode;
        inode
            .is_some_and(|inode| self.orphans.contains(&inode) && !self.done.contains(&(inode, finding.code)))
    }

    /// Whether a finding is gone with an orphan before e2fsck sees the finding. Returns false for a
    /// finding about an illegal block.
    pub(super) fn hide(&self, finding: &Finding) -> bool {
        self.cover(finding) && finding.code != Code::ILLEGAL_BLOCK
    }
}

/// Findings that came up because an inode without its extents flag was read as a block map, and
/// that are gone once it has the flag back. e2fsck -p restores the flag when it checks the inode,
/// before it looks for shared blocks and reads directories.
fn gone(plan: &Plan<'_>) -> BTreeSet<(InodeNr, Code)> {
    let done = plan.actions.iter().filter_map(|action| Some((action.site.inode?, action.code)));
    let done: BTreeSet<(InodeNr, Code)> = done.collect();
    let remapped = done.iter().filter(|(_, code)| *code == Code::EXTENTS_UNFLAGGED).map(|(inode, _)| *inode);
    let remapped: BTreeSet<InodeNr> = remapped.collect();
    if remapped.is_empty() || !plan.is_complete() {
        return BTreeSet::new();
    }
    // A leaf without a checksum may be the root of an index whose flag was lost as well.
    let is_risky = |code: Code| !code.is_safe() || code == Code::LEAF_NO_TAIL;
    let risky: BTreeSet<InodeNr> =
        done.iter().filter(|(_, code)| is_risky(*code)).map(|(inode, _)| *inode).collect();
    let about = plan.before.findings.iter().filter_map(|finding| Some((finding.site.inode?, finding.code)));
    about
        .filter(|(inode, code)| remapped.contains(inode) || *code == Code::SHARED_BLOCKS)
        .filter(|(inode, code)| !risky.contains(inode) && !done.contains(&(*inode, *code)))
        .collect()
}

/// Findings that the encryption context of an inode is missing, if it is there once the inode's
/// `i_extra_isize` is right. e2fsck -p corrects that field when it checks the inode.
fn reappeared(plan: &Plan<'_>) -> BTreeSet<(InodeNr, Code)> {
    let of = |code: Code| plan.before.findings.iter().filter(move |finding| finding.code == code);
    let resized: BTreeSet<InodeNr> = of(Code::EXTRA_ISIZE).filter_map(|finding| finding.site.inode).collect();
    let code = Code::ENCRYPT_NO_ATTRIBUTE;
    let is_done =
        |inode| plan.actions.iter().any(|action| action.code == code && action.site.inode == Some(inode));
    let missed = of(code).filter_map(|finding| finding.site.inode);
    missed.filter(|inode| resized.contains(inode) && !is_done(*inode)).map(|inode| (inode, code)).collect()
}

/// Directories with entries for inodes in a part of an inode table that was not read at first. Once
/// that part is read, the inodes turn out to be unused. Empty if entries have no file types.
fn hollow(plan: &Plan<'_>) -> BTreeSet<InodeNr> {
    let typed = sound_superblock(&plan.overlay).is_some_and(|sb| sb.incompat().contains(Incompat::FILETYPE));
    let found = |inode: InodeNr, code: Code| {
        plan.before.findings.iter().any(|finding| finding.site.inode == Some(inode) && finding.code == code)
    };
    let unused = plan.actions.iter().filter(|action| typed && action.code == Code::ENTRY_UNUSED);
    let named = unused.filter_map(|action| action.site.inode);
    named.filter(|inode| !found(*inode, Code::ENTRY_UNUSED)).collect()
}

/// Codes of the actions after pass 2, if e2fsck starts over. All other findings of these passes
/// followed from parts of inode tables that were not read at first.
fn left(plan: &Plan<'_>) -> Option<BTreeSet<Code>> {
    let codes = plan.actions.iter().map(|action| action.code);
    (begins_again(plan) && plan.is_complete()).then(|| codes.filter(|code| code.pass() > 2).collect())
}

/// Whether e2fsck reads more of the inode tables and starts over.
pub(super) fn begins_again(plan: &Plan<'_>) -> bool {
    plan.before.findings.iter().any(|finding| restarts(finding.code)) || hides_root(plan)
}

/// Whether the root lies in the part of its inode table that the descriptor counts as unused, so
/// that only the repair finds the inodes there. e2fsck corrects that count before it reads the
/// table. (If a flag calls the whole table unused, e2fsck stops, unless a name or a `..` leads
/// there.)
fn hides_root(plan: &Plan<'_>) -> bool {
    let is_in_use = plan.actions.iter().any(|action| action.code == Code::UNUSED_AREA_INODE);
    let device = plan.overlay.below();
    let first = sound_superblock(device).and_then(|sb| first_descriptor(device, &sb));
    is_in_use && first.is_some_and(|desc| !desc.flags().contains(GroupFlags::INODE_UNINIT))
}

/// Whether a finding makes e2fsck -p drop an index before it reads the rest of it.
fn drops_index(finding: &Finding) -> bool {
    matches!(
        finding.code,
        Code::HTREE_ROOT
            | Code::HTREE_VERSION
            | Code::HTREE_SIPHASH
            | Code::HTREE_SIPHASH_MISSING
            | Code::HTREE_FLAGS
            | Code::HTREE_DEPTH
            | Code::HTREE_ROOT_STRUCTURE
            | Code::HTREE_ROOT_CHECKSUM
            | Code::HTREE_NODE_CHECKSUM
            | Code::HTREE_LIMIT
            | Code::HTREE_COUNT
            | Code::HTREE_ORDER
    )
}
