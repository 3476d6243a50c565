//! How a repair ends, with the exit code that e2fsck gives. Not everything that e2fsck corrects
//! counts for its exit code.

use std::collections::BTreeSet;

use blockyard_disk::{CorruptionKind, GroupNr, InodeNr};

use super::Plan;
use super::head::is_contradiction;
use super::inode::is_impossible_special;
use super::log::{Action, Cost};
use super::preen::{OrphanFindings, Preening, begins_again, restarts};
use crate::code::Code;
use crate::finding::Finding;

/// How a repair ends, which gives the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// There was nothing to correct, or nothing that e2fsck counts as a correction.
    Clean,
    /// All errors were corrected.
    Corrected,
    /// Errors are left.
    Uncorrected,
    /// The repair was refused, or there is no verdict afterwards.
    Unusable,
}

impl Ending {
    /// The exit code that e2fsck gives.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Corrected => 1,
            Self::Uncorrected => 4,
            Self::Unusable => 8,
        }
    }
}

impl Plan<'_> {
    /// How the repair ends once the plan is carried out.
    #[must_use]
    pub fn ending(&self) -> Ending {
        match &self.after {
            _ if self.refusal().is_some() => Ending::Unusable,
            None => Ending::Unusable,
            Some(after) if !after.examined => Ending::Unusable,
            Some(after) if !after.is_clean() => Ending::Uncorrected,
            _ if self.was_open => Ending::Corrected,
            // The interrupted repair corrected something.
            _ if self.is_resumed => Ending::Corrected,
            // The replay of a journal is not a correction, and neither is the removal of an error
            // mark.
            _ if self.before.is_clean() && self.actions.is_empty() => Ending::Clean,
            _ if self.is_uncounted() => Ending::Clean,
            _ => Ending::Corrected,
        }
    }

    /// How `-p` ends once it did what [`preening`](Self::preening) says.
    #[must_use]
    pub fn preened_ending(&self) -> Ending {
        match self.preening() {
            Preening::Clean => Ending::Clean,
            Preening::Refuses(finding) if finding.code == Code::MMP_IN_USE => Ending::Unusable,
            Preening::Stops(_) | Preening::Refuses(_) => Ending::Uncorrected,
            Preening::Unusable => Ending::Unusable,
            Preening::Mends => self.ending(),
        }
    }

    /// Whether nothing is done that e2fsck counts as a correction.
    fn is_uncounted(&self) -> bool {
        if !self.is_complete() {
            return false;
        }
        let uncounted = Uncounted::of(self);
        let late = self.actions.iter().filter(|action| action.code.pass() > 0);
        let late: Vec<Code> =
            late.filter(|action| !uncounted.orphans.explain(action)).map(|action| action.code).collect();
        // If e2fsck starts over to read more of the inode tables, what it corrected before no
        // longer counts.
        if !late.is_empty() && late.iter().all(|&code| restarts(code)) && begins_again(self) {
            return true;
        }
        // e2fsck does not count a directory that it writes anew, but it counts each name that it
        // changes there.
        let is_renaming =
            |action: &Action| action.code == Code::DIRECTORY_LOOSE && action.cost > Cost::Nothing;
        if self.actions.iter().any(is_renaming) {
            return false;
        }
        let mut errors = self.before.findings.iter().filter(|finding| finding.is_error());
        !self.is_counted_early()
            && errors.all(|finding| uncounted.has_finding(finding))
            && late.iter().all(|&code| uncounted.has_action(code))
    }

    /// Whether the plan makes one of the few repairs before the first pass that e2fsck counts.
    /// Unfinished orphans count only if the superblock had the error mark. With that mark, e2fsck
    /// does not finish orphans before the passes, and so the passes find and count them.
    fn is_counted_early(&self) -> bool {
        let is_counted = |code| match code {
            Code::REVISION_LOW | Code::BOTH_CHECKSUMS | Code::DEVICE_SHORT => true,
            Code::SUPERBLOCK_BACKUP | Code::DESCRIPTORS_BACKUP | Code::RESIZE_WITHOUT_FEATURE => true,
            Code::ORPHAN_UNFINISHED => self.had_error_mark,
            code => is_contradiction(code),
        };
        let is_link = |code| matches!(code, Code::ORPHAN_HEAD | Code::ORPHAN_LINK);
        self.actions.iter().any(|action| is_counted(action.code))
            || self.before.findings.iter().any(|finding| is_link(finding.code))
    }
}

/// What is corrected but does not count. e2fsck does not count most of what it repairs before the
/// first pass, the checksum of a directory block in which it filled in a file type, or the replay
/// of a log up to a transaction whose commit block has a wrong checksum.
struct Uncounted {
    /// Directory blocks in which file types are filled in: inode and logical block.
    filled: BTreeSet<(Option<InodeNr>, Option<u64>)>,
    /// Groups whose two uninit flags e2fsck clears before it reads their inode tables.
    opened: BTreeSet<Option<GroupNr>>,
    orphans: OrphanFindings,
    /// Codes of all findings.
    found: BTreeSet<Code>,
    /// Whether something is repaired that e2fsck does not look at.
    is_strict: bool,
    /// Whether orphans are finished, which frees what they held.
    frees: bool,
}

impl Uncounted {
    fn of(plan: &Plan<'_>) -> Self {
        let findings = &plan.before.findings;
        let unset = findings.iter().filter(|finding| finding.code == Code::TYPE_UNSET);
        let is_flag =
            |code| matches!(code, Code::ITABLE_UNUSED | Code::UNINIT_WITHOUT_FEATURE | Code::GROUP_CHECKSUM);
        let unused = findings.iter().filter(|finding| is_flag(finding.code));
        let is_own = |code: Code| !code.is_e2fsck() && code != Code::ORPHAN_UNFINISHED;
        Self {
            filled: unset.map(|finding| (finding.site.inode, finding.site.logical)).collect(),
            opened: unused.map(|finding| finding.site.group).collect(),
            orphans: OrphanFindings::of(plan),
            found: findings.iter().map(|finding| finding.code).collect(),
            is_strict: plan.actions.iter().any(|action| is_own(action.code)),
            frees: plan.actions.iter().any(|action| action.code == Code::ORPHAN_UNFINISHED),
        }
    }

    fn has_finding(&self, finding: &Finding) -> bool {
        let is_uncounted = match finding.code {
            Code::LEAF_CHECKSUM => self.filled.contains(&(finding.site.inode, finding.site.logical)),
            Code::INODE_UNINIT_USED => self.opened.contains(&finding.site.group),
            Code::JOURNAL_SUPERBLOCK => finding.detail.starts_with("s_nr_users"),
            Code::MMP_CHECKSUM | Code::MMP_MAGIC | Code::ORPHAN_UNFINISHED => true,
            // Only a wrong checksum of a commit block does not count. e2fsck counts the other
            // faults of a log: blocks that it skips, and descriptors that it does not read.
            Code::LOG_CORRUPT => finding.detail.ends_with(&CorruptionKind::JournalCommitChecksum.to_string()),
            _ => false,
        };
        is_uncounted || self.orphans.hide(finding)
    }

    fn has_action(&self, code: Code) -> bool {
        match code {
            Code::LEAF_CHECKSUM => !self.filled.is_empty(),
            Code::INODE_UNINIT_USED => !self.opened.is_empty(),
            // Three more kinds of actions are not counted:
            // - Those with our own codes. They repair faults that e2fsck does not look at, or do
            //   what the user asked for, which e2fsck does not count.
            // - Repairs of the maps of devices, pipes and sockets. e2fsck does not look at such
            //   maps.
            // - Those whose code no finding has, if they may follow from another action: from one
            //   with our own code, or in pass 5 from the finishing of orphans.
            code => {
                let follows = self.is_strict || self.frees && code.pass() == 5;
                !code.is_e2fsck() || is_impossible_special(code) || follows && !self.found.contains(&code)
            }
        }
    }
}
