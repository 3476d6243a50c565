//! Findings: what the checker reports, in an order that does not depend on threads.
//!
//! A finding is a [`Code`], a [`Site`] and a detail. Findings sort by (pass, site, code, detail):
//! two checks of the same image give the same list, whatever the number of threads.
//!
//! The number of findings is limited, per unit of work by [`Sink`] and per check by [`Ledger`].
//! Findings beyond the limits are only counted. But a repair must know every faulty inode. So if an
//! error of pass 1 or 4 is beyond a limit, a record of 8 bytes keeps its inode and code. In pass 1,
//! an inode has one record, and in pass 4, it has one for each code.

use blockyard_disk::{BlockNr, GroupNr, InodeNr};

use crate::code::{Code, Severity};

/// Where something was found. Coordinates that do not apply are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Site {
    /// Block group.
    pub group: Option<GroupNr>,
    /// Inode.
    pub inode: Option<InodeNr>,
    /// Logical block of the inode.
    pub logical: Option<u64>,
    /// Physical block.
    pub block: Option<BlockNr>,
    /// Byte offset inside the block or structure.
    pub offset: Option<usize>,
}

impl Site {
    /// The file system as a whole.
    pub const NOWHERE: Self = Self { group: None, inode: None, logical: None, block: None, offset: None };

    /// A group.
    #[must_use]
    pub const fn group(group: GroupNr) -> Self {
        Self { group: Some(group), ..Self::NOWHERE }
    }

    /// An inode.
    #[must_use]
    pub const fn inode(inode: InodeNr) -> Self {
        Self { inode: Some(inode), ..Self::NOWHERE }
    }

    /// A physical block.
    #[must_use]
    pub const fn block(block: BlockNr) -> Self {
        Self { block: Some(block), ..Self::NOWHERE }
    }

    /// The same site with a physical block.
    #[must_use]
    pub const fn at_block(mut self, block: BlockNr) -> Self {
        self.block = Some(block);
        self
    }

    /// The same site with a logical block.
    #[must_use]
    pub const fn at_logical(mut self, logical: u64) -> Self {
        self.logical = Some(logical);
        self
    }

    /// The same site with a byte offset.
    #[must_use]
    pub const fn at_offset(mut self, offset: usize) -> Self {
        self.offset = Some(offset);
        self
    }
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            self.group.map(|n| format!("group {n}")),
            self.inode.map(|n| format!("inode {n}")),
            self.logical.map(|n| format!("logical block {n}")),
            self.block.map(|n| format!("block {n}")),
            self.offset.map(|n| format!("byte {n}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "file system" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

/// One thing that is wrong, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The pass of the check that the code belongs to.
    pub pass: u8,
    /// Where it was found.
    pub site: Site,
    /// What was found: e2fsck's number for the problem, or one of ours if e2fsck has none.
    pub code: Code,
    /// Particulars: values found and expected. May be empty.
    pub detail: String,
    /// The path of the inode, as bytes, where it was cheap to find. It begins at the root, or at
    /// `<NUMBER>` for a directory that has no name.
    pub path: Option<Vec<u8>>,
}

impl Finding {
    /// A finding without a path.
    #[must_use]
    pub fn new(code: Code, site: Site, detail: String) -> Self {
        Self { pass: code.pass(), site, code, detail, path: None }
    }

    /// Whether the finding makes the file system unclean.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.code.severity() == Severity::Error
    }
}

/// The record of findings about an inode that were dropped at a limit. In pass 1, the first code
/// stands for all codes of the inode, because a repair examines the inode again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unkept {
    pub(crate) inode: InodeNr,
    pub(crate) code: Code,
}

impl Unkept {
    /// Whether `next` would tell a repair nothing new after this record.
    fn covers(self, next: Self) -> bool {
        let same_code = self.code == next.code || (self.code.pass() == 1 && next.code.pass() == 1);
        self.inode == next.inode && same_code
    }
}

/// Records the inode and code of a dropped finding, if a repair needs them. In passes 1 and 4, all
/// findings about an inode come in a row, so only the last record is compared.
fn remember(unkept: &mut Vec<Unkept>, code: Code, site: Site) {
    if code.severity() == Severity::Error
        && matches!(code.pass(), 1 | 4)
        && let Some(next) = site.inode.map(|inode| Unkept { inode, code })
        && !unkept.last().is_some_and(|last| last.covers(next))
    {
        unkept.push(next);
    }
}

/// Collects the findings of one unit of work.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    findings: Vec<Finding>,
    unkept: Vec<Unkept>,
    suppressed: u64,
    errors: u64,
}

impl Sink {
    /// The most findings kept for one unit of work.
    const LIMIT: usize = 4096;

    /// Adds a finding. Beyond the limit it is counted, and [`remember`] keeps what a repair needs.
    pub(crate) fn add(&mut self, code: Code, site: Site, detail: impl Into<String>) {
        self.errors += u64::from(code.severity() == Severity::Error);
        if self.findings.len() < Self::LIMIT {
            self.findings.push(Finding::new(code, site, detail.into()));
        } else {
            self.suppressed += 1;
            remember(&mut self.unkept, code, site);
        }
        debug_assert!(self.errors <= counted(&self.findings, self.suppressed), "more errors than findings");
    }

    /// The first finding.
    pub(crate) fn first(&self) -> Option<&Finding> {
        self.findings.first()
    }

    /// The findings that were kept.
    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }

    /// Takes over the findings of another sink.
    pub(crate) fn merge(&mut self, other: Self) {
        self.errors += other.errors;
        self.suppressed += other.suppressed;
        self.unkept.extend(other.unkept);
        self.findings.extend(other.findings);
        debug_assert!(self.errors <= counted(&self.findings, self.suppressed), "more errors than findings");
    }

    /// How many findings were errors, kept or not.
    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }
}

/// The number of findings, kept or not.
fn counted(kept: &[Finding], suppressed: u64) -> u64 {
    blockyard_disk::num::u64_from_usize(kept.len()) + suppressed
}

/// All findings of a check, with a limit on how many are kept.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    findings: Vec<Finding>,
    unkept: Vec<Unkept>,
    suppressed: u64,
    errors: u64,
    /// What the check could not judge. If it is set and there are no errors, there is no verdict.
    unjudged: Option<&'static str>,
}

impl Ledger {
    /// The most findings kept for a check.
    const LIMIT: usize = 200_000;

    /// Adds the findings of a unit of work. Units must come in an order that does not depend on
    /// threads.
    pub(crate) fn absorb(&mut self, sink: Sink) {
        let room = Self::LIMIT.saturating_sub(self.findings.len());
        let dropped = sink.findings.len().saturating_sub(room);
        self.suppressed += sink.suppressed + blockyard_disk::num::u64_from_usize(dropped);
        self.errors += sink.errors;
        let mut found = sink.findings.into_iter();
        self.findings.extend(found.by_ref().take(room));
        found.for_each(|finding| remember(&mut self.unkept, finding.code, finding.site));
        self.unkept.extend(sink.unkept);
        assert!(self.findings.len() <= Self::LIMIT, "{} findings are kept", self.findings.len());
        assert!(self.errors <= counted(&self.findings, self.suppressed), "more errors than findings");
    }

    /// Sorts all findings except the first `earlier` ones by inode. Findings about the same inode
    /// keep their order.
    pub(crate) fn sort_by_inode(&mut self, earlier: usize) {
        self.findings[earlier..].sort_by_key(|finding| finding.site.inode);
    }

    /// Records that something could not be judged.
    pub(crate) fn leave_unjudged(&mut self, what: &'static str) {
        self.unjudged = self.unjudged.or(Some(what));
    }

    /// What could not be judged, unless the file system is unclean anyway.
    pub(crate) fn no_verdict(&self) -> Option<&'static str> {
        self.unjudged.filter(|_| self.errors == 0)
    }

    /// The findings so far.
    pub(crate) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter()
    }

    /// The findings so far that make the file system unclean.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.is_error())
    }

    /// The records of findings that were not kept.
    pub(crate) fn unkept(&self) -> &[Unkept] {
        &self.unkept
    }

    /// How many errors there are, if not all of them were kept.
    pub(crate) fn errors_if_crowded(&self) -> Option<u64> {
        let kept = blockyard_disk::num::u64_from_usize(self.errors().count());
        (self.errors > kept).then_some(self.errors)
    }

    /// Whether e2fsck would have given up.
    pub(crate) fn is_fatal(&self) -> bool {
        self.findings.iter().any(|finding| finding.code.is_fatal())
    }

    /// The inodes that findings are about, with repetitions.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = InodeNr> + use<'_> {
        self.findings.iter().filter_map(|finding| finding.site.inode)
    }

    /// Gives findings about inodes their paths.
    pub(crate) fn set_paths(&mut self, path: impl Fn(InodeNr) -> Option<Vec<u8>>) {
        for finding in &mut self.findings {
            finding.path = finding.site.inode.and_then(&path);
        }
    }

    /// The kept findings in their final order, how many errors there were, kept or not, and how
    /// many findings were not kept.
    pub(crate) fn finish(mut self) -> (Vec<Finding>, u64, u64) {
        let kept = self.findings.iter().filter(|finding| finding.is_error()).count();
        assert!(
            blockyard_disk::num::u64_from_usize(kept) <= self.errors,
            "{kept} errors kept of {}",
            self.errors
        );
        self.findings.sort();
        (self.findings, self.errors, self.suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the findings beyond the limit, a repair needs only the errors of passes 1 and 4. If notes
    /// were recorded, too, a round of the repair would try to repair them and decide nothing. The
    /// repair would then end before pass 5.
    #[test]
    fn only_what_a_repair_asks_for_is_remembered_beyond_the_limit() {
        let mut sink = Sink::default();
        for nr in 0..u32::try_from(Sink::LIMIT).unwrap() {
            sink.add(Code::EA_FLAG_ON_FILE, Site { inode: Some(InodeNr::new(nr)), ..Site::NOWHERE }, "");
        }
        let beyond = Site { inode: Some(InodeNr::new(1 << 20)), ..Site::NOWHERE };
        for code in [Code::EA_FLAG_ON_FILE, Code::BLOCKS_WRONG, Code::DOT_UNTERMINATED] {
            sink.add(code, beyond, "");
        }
        assert_eq!(sink.unkept, [Unkept { inode: InodeNr::new(1 << 20), code: Code::BLOCKS_WRONG }]);
    }
}
