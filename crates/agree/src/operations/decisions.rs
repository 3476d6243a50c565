//! Decisions of both sides, line by line of the trace.
//!
//! The kernel's decisions come from its tracepoints, with a marker before each line; ours are the
//! allocator's events. Within a line, decisions of both sides that answer the same request (inode,
//! logical block, length) are paired, in order. A request that only one side made counts as
//! different, and pairing resumes at the next request that both sides made (as `diff` does).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use blockyard_alloc::{AllocEvent, EventExtent, EventKind, EventSink, RequestFlags};
use blockyard_disk::num::{low16, low32, u32_from_usize, u64_from_usize};
use blockyard_sync::CpuSlot;

use super::compare::Share;
use super::conversions::{Again, Conversion};
use crate::recording::Spot;
use crate::trace_text::{Record, criterion};

/// The block allocator's answer to one request. A search that found nothing has an empty result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Line of the trace, from 0.
    pub line: u32,
    /// Inode.
    pub inode: u32,
    /// Whether the groups were searched. Otherwise a preallocation served the request, and `goal`,
    /// `found`, `groups`, `criterion` and `flags` are zero.
    pub searched: bool,
    /// The request, with the goal that the caller gave.
    pub orig: Spot,
    /// The goal after normalisation and stream replacement.
    pub goal: Spot,
    /// What was found.
    pub result: Spot,
    /// Candidates, modulo 65,536.
    pub found: u16,
    /// Groups scanned, modulo 65,536.
    pub groups: u16,
    /// Criterion, 0 to 4; 5 when all criteria failed.
    pub criterion: u8,
    /// Final flags, low 16 bits.
    pub flags: u16,
}

impl Decision {
    /// Whether both decisions answer the same request.
    fn is_about(&self, other: &Self) -> bool {
        self.inode == other.inode && self.orig.3 == other.orig.3 && self.orig.2 == other.orig.2
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spot = |Spot(group, start, len, logical): Spot| format!("{group}/{start}/{len}@{logical}");
        write!(f, "inode {} orig {} ", self.inode, spot(self.orig))?;
        if self.searched {
            write!(
                f,
                "goal {} result {} criterion {} found {} groups {} flags {:#x}",
                spot(self.goal),
                spot(self.result),
                self.criterion,
                self.found,
                self.groups,
                self.flags
            )
        } else {
            write!(f, "preallocated {} flags {:#x}", spot(self.result), self.flags)
        }
    }
}

/// A commit of the kernel. Operations continue while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The line in which the transaction was closed: later frees belong to the next transaction.
    pub closed: u32,
    /// The first line that could allocate, from its start, the clusters that the transaction freed.
    pub ended: u32,
}

/// What the kernel's trace says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Decisions in order.
    pub decisions: Vec<Decision>,
    /// Transactions in the order in which they ended.
    pub commits: Vec<Commit>,
    /// Conversions after the end of I/O, in order.
    pub conversions: Vec<Conversion>,
}

/// Flags of a request for a block that a write allocates immediately.
const PLACED_AT_ONCE: &str = "CREATE|UNWRIT";

/// Reads the kernel's trace.
///
/// # Errors
/// When an event does not look as documented.
pub fn parse(text: &str) -> anyhow::Result<Recorded> {
    let mut reading = Reading::default();
    for text in text.lines().filter(|text| !text.starts_with('#') && !text.is_empty()) {
        let Some(record) = Record::split(text) else { continue };
        reading.read(&record).with_context(|| format!("trace line {text:?}"))?;
    }
    Ok(reading.recorded)
}

/// The state while the kernel's trace is read.
#[derive(Default)]
struct Reading {
    recorded: Recorded,
    /// The line named by the latest marker.
    line: u32,
    /// The line in which the latest transaction was closed.
    closed: u32,
    here: InLine,
}

/// What was seen in one line so far.
#[derive(Default)]
struct InLine {
    /// Decisions before this line.
    decisions_before: usize,
    /// Ranges that were mapped.
    pieces: usize,
    /// Blocks that a write allocated immediately, or failed to allocate.
    allocated: usize,
    again: Again,
    /// Whether the last search found nothing. If so, the next walk of write-back over a file's
    /// folios is a retry.
    fails: bool,
}

impl Reading {
    fn read(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        match record.event {
            "tracing_mark_write" => {
                if let Some(number) = record.fields.trim().strip_prefix("by line ") {
                    self.line = number.parse()?;
                    let decisions_before = self.recorded.decisions.len();
                    self.here = InLine { decisions_before, ..InLine::default() };
                }
            }
            "ext4_mballoc_alloc" => {
                let decision = searched(record, self.line)?;
                self.here.fails = decision.result.2 == 0;
                self.recorded.decisions.push(decision);
            }
            "ext4_mballoc_prealloc" => self.recorded.decisions.push(preallocated(record, self.line)?),
            "jbd2_commit_locking" => self.closed = self.line,
            "jbd2_commit_flushing" => self.here.again.commits += 1,
            "jbd2_end_commit" => {
                let has_decided = self.decisions_here() > 0;
                let ended = self.line + u32::from(has_decided);
                self.recorded.commits.push(Commit { closed: self.closed, ended });
            }
            "ext4_da_write_folios_start" if self.here.fails => {
                self.here.again.walks += 1;
                self.here.fails = false;
            }
            "ext4_ext_map_blocks_exit" => self.note_mapped(record),
            "ext4_ext_handle_unwritten_extents" if has_flag(record, "CONVERT") => {
                let conversion = self.conversion(record)?;
                self.recorded.conversions.push(conversion);
            }
            _ => {}
        }
        Ok(())
    }

    fn decisions_here(&self) -> usize {
        self.recorded.decisions.len() - self.here.decisions_before
    }

    /// Counts a finished request to map blocks.
    fn note_mapped(&mut self, record: &Record<'_>) {
        if record.word("flags").is_ok_and(|flags| flags == PLACED_AT_ONCE) {
            self.here.allocated += 1;
        } else if has_flag(record, "CREATE") && !has_flag(record, "CONVERT") {
            let found_nothing = record.word("ret").is_ok_and(|ret| ret.starts_with('-'));
            self.here.pieces += usize::from(!found_nothing);
        }
    }

    /// The conversion that happens now, and what came before it in the line.
    fn conversion(&self, record: &Record<'_>) -> anyhow::Result<Conversion> {
        let start: u32 = record.number("m_lblk")?;
        Ok(Conversion {
            line: self.line,
            decisions: self.decisions_here(),
            pieces: self.here.pieces,
            allocated: self.here.allocated,
            again: self.here.again,
            inode: record.number("ino")?,
            blocks: start..start.saturating_add(record.number("m_len")?),
            cpu: record.cpu,
        })
    }
}

/// A decision served by a preallocation: only the request and its result are known.
fn preallocated(record: &Record<'_>, line: u32) -> anyhow::Result<Decision> {
    Ok(Decision {
        line,
        inode: record.number("inode")?,
        searched: false,
        orig: record.spot("orig")?,
        goal: Spot::default(),
        result: record.spot("result")?,
        found: 0,
        groups: 0,
        criterion: 0,
        flags: 0,
    })
}

/// A decision made by searching the groups.
fn searched(record: &Record<'_>, line: u32) -> anyhow::Result<Decision> {
    Ok(Decision {
        searched: true,
        goal: record.spot("goal")?,
        found: low16(record.number("blks")?),
        groups: low16(record.number("grps")?),
        criterion: criterion(record.word("cr")?)?,
        flags: low16(record.flags()?),
        ..preallocated(record, line)?
    })
}

/// Whether a request to map blocks has a flag. `CONVERT` marks the request that converts an
/// unwritten extent after its I/O has ended.
fn has_flag(record: &Record<'_>, name: &str) -> bool {
    record.word("flags").is_ok_and(|flags| flags.split('|').any(|flag| flag == name))
}

/// Collects the events of our allocator as decisions.
#[derive(Debug, Default)]
pub struct Collector {
    inside: Mutex<Collected>,
}

#[derive(Debug, Default)]
struct Collected {
    line: u32,
    /// Decisions in the current line so far.
    in_line: usize,
    decisions: Vec<Decision>,
}

impl Collector {
    /// Sets the line that the next events belong to.
    pub fn begin_line(&self, line: usize) {
        let mut inside = self.inside();
        inside.line = u32_from_usize(line);
        inside.in_line = 0;
    }

    /// The current line, and its number of decisions so far.
    #[must_use]
    pub fn place(&self) -> (u32, usize) {
        let inside = self.inside();
        (inside.line, inside.in_line)
    }

    /// Takes what was collected.
    #[must_use]
    pub fn take(self: &Arc<Self>) -> Vec<Decision> {
        std::mem::take(&mut self.inside().decisions)
    }

    fn inside(&self) -> MutexGuard<'_, Collected> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for Collector {
    fn emit(&self, _: CpuSlot, event: &AllocEvent) {
        let spot =
            |extent: EventExtent| Spot(extent.group, extent.start.cast_signed(), extent.len, extent.logical);
        // The kernel also records a search that found nothing, with an empty result.
        let searched = matches!(event.kind, EventKind::Search | EventKind::NoSpace);
        let mut inside = self.inside();
        inside.in_line += 1;
        let line = inside.line;
        inside.decisions.push(Decision {
            line,
            inode: event.inode,
            searched,
            orig: spot(event.original),
            goal: if searched { spot(event.goal) } else { Spot::default() },
            result: spot(event.result),
            found: if searched { low16(low32(event.found.into())) } else { 0 },
            groups: if searched { event.scanned } else { 0 },
            criterion: if searched { event.criterion } else { 0 },
            // The kernel looks at the caller's credentials instead of setting this flag.
            flags: if searched { event.flags & !low16(RequestFlags::USE_ROOT.bits()) } else { 0 },
        });
    }
}

/// How well decisions agree.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DecisionShares {
    /// Decisions with equal results, both by a search or both from a preallocation.
    pub placements: Share,
    /// Searches that ended by the same criterion.
    pub criteria: Share,
    /// Decisions equal in every field.
    pub all: Share,
}

/// Where two lists of decisions first diverge, as positions in both lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parting {
    /// Where they first differ in the request, in the clusters chosen, or in whether the clusters
    /// came from a search or from a preallocation.
    pub choice: Option<(usize, usize)>,
    /// Where any field first differs, for example the criterion by which the same clusters were
    /// found.
    pub any: Option<(usize, usize)>,
}

impl Parting {
    fn or(self, later: Self) -> Self {
        Self { choice: self.choice.or(later.choice), any: self.any.or(later.any) }
    }

    /// The same positions in lists that have `a` and `b` more decisions at the front.
    fn behind(self, a: usize, b: usize) -> Self {
        let shifted = |(at, at_ours): (usize, usize)| (a + at, b + at_ours);
        Self { choice: self.choice.map(shifted), any: self.any.map(shifted) }
    }
}

/// Compares two lists of decisions. Also returns where they first diverge.
#[must_use]
pub fn compare(theirs: &[Decision], ours: &[Decision]) -> (DecisionShares, Parting) {
    let mut shares = DecisionShares::default();
    let mut first = Parting::default();
    let (mut a, mut b) = (0, 0);
    while a < theirs.len() || b < ours.len() {
        let line = [theirs.get(a), ours.get(b)].into_iter().flatten().map(|decision| decision.line).min();
        let of_line = |list: &[Decision], from: usize| {
            list[from..].iter().take_while(|decision| Some(decision.line) == line).count()
        };
        let (in_a, in_b) = (of_line(theirs, a), of_line(ours, b));
        let (theirs, ours) = (&theirs[a..a + in_a], &ours[b..b + in_b]);
        first = first.or(add_line(&mut shares, theirs, ours).behind(a, b));
        (a, b) = (a + in_a, b + in_b);
    }
    (shares, first)
}

/// Adds the decisions of one line. Returns where they first differ.
fn add_line(shares: &mut DecisionShares, theirs: &[Decision], ours: &[Decision]) -> Parting {
    let mut first = Parting::default();
    let (mut a, mut b) = (0, 0);
    while a < theirs.len() || b < ours.len() {
        let (only_theirs, only_ours) = unpaired(&theirs[a..], &ours[b..]);
        if only_theirs + only_ours > 0 {
            first = first.or(Parting { choice: Some((a, b)), any: Some((a, b)) });
            add_unpaired(shares, &theirs[a..a + only_theirs], &ours[b..b + only_ours]);
        }
        (a, b) = (a + only_theirs, b + only_ours);
        let (Some(one), Some(other)) = (theirs.get(a), ours.get(b)) else { break };
        let same_place = add_pair(shares, one, other);
        let choice = (!same_place).then_some((a, b));
        first = first.or(Parting { choice, any: (one != other).then_some((a, b)) });
        (a, b) = (a + 1, b + 1);
    }
    first
}

/// How many decisions of each list come before the next pair about the same request: as few as
/// possible, or all when no such pair comes soon.
fn unpaired(theirs: &[Decision], ours: &[Decision]) -> (usize, usize) {
    /// The most decisions that may be skipped, in both lists together.
    const SKIPPED_MAX: usize = 256;
    let meets =
        |a: usize, b: usize| matches!((theirs.get(a), ours.get(b)), (Some(a), Some(b)) if a.is_about(b));
    (0..=SKIPPED_MAX)
        .flat_map(|skipped| (0..=skipped).map(move |a| (a, skipped - a)))
        .find(|&(a, b)| meets(a, b))
        .unwrap_or((theirs.len(), ours.len()))
}

/// Adds two decisions about the same request. Returns whether they chose the same clusters.
fn add_pair(shares: &mut DecisionShares, a: &Decision, b: &Decision) -> bool {
    let count = |yes: bool| Share { equal: u64::from(yes), of: 1 };
    let same_place = a.searched == b.searched && a.result == b.result;
    shares.placements.add(count(same_place));
    shares.all.add(count(a == b));
    if a.searched || b.searched {
        shares.criteria.add(count(a.searched == b.searched && a.criterion == b.criterion));
    }
    same_place
}

/// Adds decisions that have no partner on the other side, as unequal ones: as many as the longer
/// of the two lists has.
fn add_unpaired(shares: &mut DecisionShares, theirs: &[Decision], ours: &[Decision]) {
    let missing = |a: usize, b: usize| Share { equal: 0, of: u64_from_usize(a.max(b)) };
    let searches = |list: &[Decision]| list.iter().filter(|decision| decision.searched).count();
    shares.placements.add(missing(theirs.len(), ours.len()));
    shares.all.add(missing(theirs.len(), ours.len()));
    shares.criteria.add(missing(searches(theirs), searches(ours)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# tracer: nop
  lab-28456   [000] .....    1: tracing_mark_write: by line 3
  lab-28456   [000] .....    2: ext4_mballoc_alloc: dev 7,0 inode 12 orig 1/0/74@0 goal 0/-1/128@0 result 1/256/128@0 blks 1 grps 1 cr CR_POWER2_ALIGNED flags HINT_DATA|DELALLOC_RESV|STREAM_ALLOC|USE_RESV tail 0 broken 128
  lab-28456   [000] .....    3: tracing_mark_write: by line 4
  lab-28456   [000] .....    4: ext4_mballoc_prealloc: dev 7,0 inode 12 orig 1/74/1@74 result 1/330/1@74
  kworker/u8:1-53   [001] .....   5: ext4_ext_map_blocks_exit: dev 7,0 ino 12 flags CREATE|UNWRIT|PRE_IO|IO_SUBMIT lblk 8 pblk 90 len 4 mflags MU ret 4
  kworker/u8:1-53   [001] .....   5: ext4_ext_handle_unwritten_extents: dev 7,0 ino 12 m_lblk 8 m_pblk 90 m_len 4 flags CREATE|UNWRIT|PRE_IO|IO_SUBMIT allocated 4 newblock 90
  kworker/u8:1-53   [001] .....   5: ext4_ext_handle_unwritten_extents: dev 7,0 ino 12 m_lblk 8 m_pblk 90 m_len 4 flags CREATE|UNWRIT|CONVERT|IO_SUBMIT allocated 4 newblock 90
  jbd2/loop0-8-28452   [000] ...1.   6: jbd2_commit_locking: dev 7,0 transaction 2 sync 0
  jbd2/loop0-8-28452   [000] .....   6: jbd2_end_commit: dev 7,0 transaction 2 sync 0 head 2
  jbd2/loop0-8-28452   [000] ...1.   7: jbd2_commit_locking: dev 7,0 transaction 3 sync 0
  lab-28456   [000] .....    8: tracing_mark_write: by line 9
  jbd2/loop0-8-28452   [000] .....   9: jbd2_end_commit: dev 7,0 transaction 3 sync 0 head 2
";

    #[test]
    fn decisions_commits_and_conversions_belong_to_lines() {
        let recorded = parse(TRACE).unwrap();
        // The first commit ended after a decision of line 4, so line 5 is the first that could use
        // its freed clusters from the start.
        assert_eq!(recorded.commits, [Commit { closed: 4, ended: 5 }, Commit { closed: 4, ended: 9 }]);
        assert_eq!(
            recorded.conversions,
            [Conversion {
                line: 4,
                decisions: 1,
                pieces: 1,
                allocated: 0,
                again: Again::default(),
                inode: 12,
                blocks: 8..12,
                cpu: 1,
            }]
        );
        let lines: Vec<_> = recorded.decisions.iter().map(|one| (one.line, one.searched)).collect();
        assert_eq!(lines, [(3, true), (4, false)]);
        assert_eq!(recorded.decisions[0].goal, Spot(0, -1, 128, 0));
    }

    /// Blocks that a write tries to allocate immediately count as `allocated`, even if it gets
    /// none. A range that write-back maps counts only as one of the `pieces`.
    #[test]
    fn blocks_placed_at_once_are_counted() {
        let mapped = |flags: &str, ret: i32| {
            format!(
                "  lab-28456 [000] ..... 2: ext4_ext_map_blocks_exit: dev 7,0 ino 12 flags {flags} lblk 8 pblk 90 len 1 mflags NMU ret {ret}"
            )
        };
        let convert = "  kworker/u8:1-53 [001] ..... 5: ext4_ext_handle_unwritten_extents: dev 7,0 ino 12 m_lblk 8 m_pblk 90 m_len 4 flags CREATE|UNWRIT|CONVERT|IO_SUBMIT allocated 4 newblock 90";
        let line = |number| format!("  lab-28456 [000] ..... 1: tracing_mark_write: by line {number}");
        let text = [
            line(3),
            mapped("CREATE|UNWRIT", 1),
            convert.to_owned(),
            mapped("CREATE|UNWRIT|PRE_IO|IO_SUBMIT", 1),
            mapped("CREATE|UNWRIT", -28),
            convert.to_owned(),
            line(4),
            convert.to_owned(),
        ];
        let recorded = parse(&text.join("\n")).unwrap();
        let counts: Vec<_> = recorded.conversions.iter().map(|one| (one.pieces, one.allocated)).collect();
        assert_eq!(counts, [(0, 1), (1, 2), (0, 0)]);
    }

    /// A range for which a search found nothing does not count. A walk of write-back over a file's
    /// folios counts only if it is a retry.
    #[test]
    fn what_is_done_to_try_again_is_counted() {
        let walk =
            "  kworker/u8:1-53 [001] ..... 5: ext4_da_write_folios_start: dev 7,0 ino 12 start_pos 0x0";
        let convert = "  kworker/u8:1-53 [001] ..... 5: ext4_ext_handle_unwritten_extents: dev 7,0 ino 12 m_lblk 8 m_pblk 90 m_len 4 flags CREATE|UNWRIT|CONVERT|IO_SUBMIT allocated 4 newblock 90";
        let text = [
            "  lab-28456 [000] ..... 1: tracing_mark_write: by line 3",
            walk,
            "  kworker/u8:1-53 [001] ..... 2: ext4_mballoc_alloc: dev 7,0 inode 12 orig 1/0/74@0 goal 0/-1/128@0 result 0/0/0@0 blks 0 grps 0 cr 0x5 flags HINT_DATA|DELALLOC_RESV tail 0 broken 0",
            "  kworker/u8:1-53 [001] ..... 5: ext4_ext_map_blocks_exit: dev 7,0 ino 12 flags CREATE|UNWRIT|PRE_IO|IO_SUBMIT lblk 8 pblk 0 len 4 mflags  ret -28",
            convert,
            "  jbd2/loop0-8-28452 [000] ..... 6: jbd2_commit_flushing: dev 7,0 transaction 2 sync 0",
            convert,
            "  jbd2/loop0-8-28452 [000] ..... 6: jbd2_end_commit: dev 7,0 transaction 2 sync 0 head 2",
            walk,
            convert,
            walk,
            convert,
        ];
        let recorded = parse(&text.join("\n")).unwrap();
        let again = |one: &Conversion| (one.pieces, one.again.commits, one.again.walks);
        let again: Vec<_> = recorded.conversions.iter().map(again).collect();
        assert_eq!(again, [(0, 0, 0), (0, 1, 0), (0, 1, 1), (0, 1, 1)]);
    }

    #[test]
    fn what_one_side_lacks_counts_as_different() {
        let theirs = parse(TRACE).unwrap().decisions;
        let mut ours = theirs.clone();
        ours[0].criterion = 1;
        let (shares, first) = compare(&theirs, &ours);
        assert_eq!((shares.placements.equal, shares.criteria), (2, Share { equal: 0, of: 1 }));
        assert_eq!(first, Parting { choice: None, any: Some((0, 0)) }, "the same choice, found otherwise");
        let (shares, first) = compare(&theirs, &ours[..1]);
        assert_eq!((shares.placements, first.choice), (Share { equal: 1, of: 2 }, Some((1, 1))));
    }

    #[test]
    fn a_request_that_comes_earlier_on_one_side_costs_only_itself() {
        let one = |logical: u32| Decision {
            line: 7,
            inode: 12,
            searched: true,
            orig: Spot(0, 0, 1, logical),
            goal: Spot::default(),
            result: Spot(1, 10, 1, logical),
            found: 1,
            groups: 1,
            criterion: 0,
            flags: 0,
        };
        let theirs = [10, 20, 30, 0, 40, 50].map(one);
        let ours = [10, 0, 20, 30, 40].map(one);
        let (shares, first) = compare(&theirs, &ours);
        assert_eq!(shares.criteria, Share { equal: 4, of: 7 });
        assert_eq!(first, Parting { choice: Some((1, 1)), any: Some((1, 1)) });
        let apart = [60, 70].map(one);
        assert_eq!(compare(&theirs, &apart).0.placements, Share { equal: 0, of: 6 });
    }

    /// A decision whose labelled fields all differ.
    fn decision_with(flags: u16) -> Decision {
        Decision {
            line: 6,
            inode: 12,
            searched: true,
            orig: Spot(1, 2, 5, 40),
            goal: Spot(1, 3, 8, 42),
            result: Spot(1, 4, 9, 43),
            found: 6,
            groups: 3,
            criterion: 2,
            flags,
        }
    }

    /// Every field has its own value, so one that is read after the wrong label is noticed.
    #[test]
    fn every_field_of_a_decision_has_its_label() {
        let text = "\
  lab-28456 [000] ..... 1: tracing_mark_write: by line 6
  lab-28456 [000] ..... 2: ext4_mballoc_alloc: dev 7,0 inode 12 orig 1/2/5@40 goal 1/3/8@42 result 1/4/9@43 blks 65542 grps 3 cr CR_BEST_AVAIL_LEN flags HINT_DATA|HINT_NOPREALLOC tail 0 broken 128
  kworker/u8:1-53 [003] ..... 5: ext4_ext_handle_unwritten_extents: dev 7,0 ino 14 m_lblk 8 m_pblk 90 m_len 4 flags CREATE|UNWRIT|CONVERT|IO_SUBMIT allocated 5 newblock 90
";
        let recorded = parse(text).unwrap();
        let expected = decision_with(0x60);
        assert_eq!(recorded.decisions, [expected]);
        let [conversion] = &recorded.conversions[..] else { panic!("{recorded:?}") };
        assert_eq!((conversion.inode, conversion.blocks.clone(), conversion.cpu), (14, 8..12, 3));
    }

    #[test]
    fn our_events_are_noted_as_the_kernel_does() {
        let collector = Arc::new(Collector::default());
        collector.begin_line(6);
        let extent = |start, len, logical| EventExtent { group: 1, start, len, logical };
        let flags = RequestFlags::DATA | RequestFlags::USE_ROOT;
        let event = AllocEvent {
            original: extent(2, 5, 40),
            goal: extent(3, 8, 42),
            result: extent(4, 9, 43),
            inode: 12,
            found: 65_542,
            scanned: 3,
            flags: low16(flags.bits()),
            criterion: 2,
            kind: EventKind::Search,
            cpu: 0,
        };
        collector.emit(CpuSlot::ZERO, &event);
        collector.emit(CpuSlot::ZERO, &AllocEvent { kind: EventKind::NoSpace, ..event });
        collector.emit(CpuSlot::ZERO, &AllocEvent { kind: EventKind::Prealloc, ..event });
        assert_eq!(collector.place(), (6, 3));
        let [found, nothing, preallocated] = &collector.take()[..] else { panic!("three decisions") };
        let expected = decision_with(0x20);
        assert_eq!((found, nothing), (&expected, &expected));
        let (goal, searched) = (Spot::default(), false);
        let served = Decision { goal, searched, found: 0, groups: 0, criterion: 0, flags: 0, ..expected };
        assert_eq!(preallocated, &served);
    }

    /// The second of three requests has a different length on each side. So these are two requests,
    /// not one request with two results.
    #[test]
    fn each_share_counts_what_it_names() {
        let one = |logical, len, result, criterion| Decision {
            line: 7,
            inode: 12,
            searched: true,
            orig: Spot(0, 0, len, logical),
            goal: Spot::default(),
            result: Spot(1, result, len, logical),
            found: 1,
            groups: 1,
            criterion,
            flags: 0,
        };
        let share = |equal, of| Share { equal, of };
        let theirs = [one(0, 4, 10, 0), one(4, 4, 20, 0), one(8, 4, 30, 0)];
        let ours = [one(0, 4, 10, 1), one(4, 5, 20, 0), one(8, 4, 31, 0)];
        let (shares, first) = compare(&theirs, &ours);
        let (placements, criteria, all) = (share(1, 3), share(1, 3), share(0, 3));
        assert_eq!((shares, first.choice), (DecisionShares { placements, criteria, all }, Some((1, 1))));
        let (shares, _) = compare(&theirs, &[]);
        let none = share(0, 3);
        assert_eq!(shares, DecisionShares { placements: none, criteria: none, all: none });
    }
}
