//! Parses the kernel's trace text into recorded events.
//!
//! A trace line is `COMM-PID [CPU] FLAGS COUNTER: EVENT: FIELDS`. The trace clock is `counter`, so
//! the order of lines is the order of events on all CPUs. A request opens with
//! `ext4_request_blocks` and closes with `ext4_allocate_blocks` of the same thread. If the thread
//! opens another request first, the earlier request has failed.
//!
//! Our own markers (`tracing_mark_write: ba ...`) carry what no tracepoint shows: `ba size INO
//! BYTES` after an operation, `ba open INO` and `ba close INO` for descriptors that can write.

use std::collections::HashMap;

use anyhow::Context;

use super::recording::{Commit, Delayed, DropInode, Free, Line, NewInode, Outcome, Request, Spot, Via};

const HINT_DATA: u32 = 0x20;

/// Names of the request flags, as the tracepoints print them.
const FLAGS: [(&str, u32); 12] = [
    ("HINT_MERGE", 0x1),
    ("HINT_FIRST", 0x8),
    ("HINT_DATA", HINT_DATA),
    ("HINT_NOPREALLOC", 0x40),
    ("HINT_GRP_ALLOC", 0x80),
    ("HINT_GOAL_ONLY", 0x100),
    ("HINT_TRY_GOAL", 0x200),
    ("DELALLOC_RESV", 0x400),
    ("STREAM_ALLOC", 0x800),
    ("USE_ROOT_BLKS", 0x1000),
    ("USE_RESV", 0x2000),
    ("STRICT_CHECK", 0x4000),
];

/// Names of the criteria, as the tracepoints print them.
const CRITERIA: [&str; 5] =
    ["CR_POWER2_ALIGNED", "CR_GOAL_LEN_FAST", "CR_BEST_AVAIL_LEN", "CR_GOAL_LEN_SLOW", "CR_ANY_FREE"];

/// What the parser must know of the file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether there is a journal. If so, freed clusters become reusable at the commit.
    pub(crate) journal: bool,
    /// Whether freed data is reusable at once, although there is a journal (`data=writeback`).
    pub(crate) writeback: bool,
}

/// The content of a trace.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    /// The events in order.
    pub(crate) events: Vec<Line>,
    /// Requests that began while another thread had one open.
    pub(crate) overlaps: u32,
}

/// Parses a whole trace.
///
/// # Errors
/// When one of the events we enabled does not look as documented; the message quotes the line.
pub(crate) fn parse(text: &str, rules: Rules) -> anyhow::Result<Parsed> {
    let mut parser = Parser { rules, ..Parser::default() };
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(record) = Record::split(line) {
            parser.take(&record).with_context(|| format!("trace line {line:?}"))?;
        }
    }
    Ok(Parsed { events: parser.events, overlaps: parser.overlaps })
}

impl Default for Rules {
    fn default() -> Self {
        Self { journal: true, writeback: false }
    }
}

/// One line, split into its parts.
pub(super) struct Record<'a> {
    pid: u32,
    pub(super) cpu: u32,
    pub(super) event: &'a str,
    pub(super) fields: &'a str,
}

impl<'a> Record<'a> {
    pub(super) fn split(line: &'a str) -> Option<Self> {
        let bracket = line.match_indices(" [").find(|(at, _)| {
            line.get(at + 2..at + 6)
                .is_some_and(|text| text.ends_with(']') && text[..3].bytes().all(|b| b.is_ascii_digit()))
        })?;
        let pid = line[..bracket.0].trim_end().rsplit('-').next()?.parse().ok()?;
        let cpu = line[bracket.0 + 2..bracket.0 + 5].parse().ok()?;
        let mut parts = line[bracket.0 + 6..].splitn(3, ": ");
        let (_when, event, fields) = (parts.next()?, parts.next()?, parts.next().unwrap_or(""));
        Some(Self { pid, cpu, event: event.trim(), fields })
    }

    /// The word after the label `name`.
    pub(super) fn word(&self, name: &str) -> anyhow::Result<&'a str> {
        let mut words = self.fields.split_whitespace();
        words
            .find(|word| word.trim_end_matches(':') == name)
            .and_then(|_| words.next())
            .with_context(|| format!("field {name} is missing"))
    }

    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> anyhow::Result<T> {
        let word = self.word(name)?;
        word.parse().ok().with_context(|| format!("field {name} is {word:?}"))
    }

    /// The sum of the flags after the label `flags`; there may be none.
    pub(super) fn flags(&self) -> anyhow::Result<u32> {
        let after =
            self.fields.split_once("flags ").map(|(_, after)| after).context("field flags is missing")?;
        let names = after.split(' ').next().unwrap_or("");
        Ok(names.split('|').filter(|name| !name.is_empty()).map(flag).sum())
    }

    pub(super) fn spot(&self, name: &str) -> anyhow::Result<Spot> {
        spot(self.word(name)?).with_context(|| format!("place {name}"))
    }
}

fn flag(name: &str) -> u32 {
    let known = FLAGS.iter().find(|(known, _)| *known == name).map(|(_, bit)| *bit);
    known.or_else(|| u32::from_str_radix(name.trim_start_matches("0x"), 16).ok()).unwrap_or(0)
}

/// Parses `group/start/len@logical`.
fn spot(text: &str) -> anyhow::Result<Spot> {
    let (place, logical) = text.split_once('@').context("no @")?;
    let mut numbers = place.split('/');
    let mut next = || numbers.next().context("too few numbers");
    Ok(Spot(next()?.parse()?, next()?.parse()?, next()?.parse()?, logical.parse()?))
}

pub(super) fn criterion(name: &str) -> anyhow::Result<u8> {
    if let Some(index) = CRITERIA.iter().position(|known| *known == name) {
        return Ok(u8::try_from(index)?);
    }
    Ok(u8::from_str_radix(name.trim_start_matches("0x"), 16)?)
}

#[derive(Default)]
struct Parser {
    rules: Rules,
    events: Vec<Line>,
    overlaps: u32,
    /// File sizes by inode.
    sizes: HashMap<u32, u64>,
    /// Number of descriptors open for writing, by inode.
    writers: HashMap<u32, u32>,
    /// By thread: the transaction of the handle that it started or restarted last.
    handles: HashMap<u32, u32>,
    /// By thread: the position in `events` of its open request.
    open: HashMap<u32, usize>,
    /// By thread: the position in `events` of its last [`DropInode`].
    drops: HashMap<u32, usize>,
    /// By thread: whether its latest free was one of metadata.
    metadata: HashMap<u32, bool>,
}

impl Parser {
    fn take(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        match record.event {
            "ext4_request_blocks" => self.request(record),
            "ext4_mb_new_inode_pa" | "ext4_mb_new_group_pa" => self.new_preallocation(record),
            "ext4_mballoc_alloc" => self.searched(record),
            "ext4_mballoc_prealloc" => self.preallocated(record),
            "ext4_allocate_blocks" => self.allocated(record),
            "ext4_discard_preallocations" => self.dropped(record),
            "ext4_mb_release_inode_pa" => self.released(record),
            "ext4_free_blocks" => {
                self.metadata.insert(record.pid, record.fields.contains("METADATA"));
                Ok(())
            }
            "ext4_mballoc_free" => self.freed(record),
            "jbd2_handle_start" | "jbd2_handle_restart" => {
                self.handles.insert(record.pid, record.number("tid")?);
                Ok(())
            }
            "jbd2_end_commit" => {
                self.events.push(Line::Commit(Commit { tid: record.number("transaction")? }));
                Ok(())
            }
            "ext4_da_reserve_space" | "ext4_da_release_space" | "ext4_da_update_reserve_space" => {
                self.delayed(record)
            }
            "ext4_allocate_inode" => {
                let ino = record.number("ino")?;
                self.sizes.insert(ino, 0);
                self.writers.remove(&ino);
                self.events.push(Line::Inode(NewInode { ino }));
                Ok(())
            }
            "ext4_da_write_end" | "ext4_write_end" => {
                let end = record.number::<u64>("pos")? + record.number::<u64>("copied")?;
                let size = self.sizes.entry(record.number("ino")?).or_default();
                *size = (*size).max(end);
                Ok(())
            }
            "tracing_mark_write" => self.marker(record.fields),
            _ => Ok(()),
        }
    }

    fn marker(&mut self, text: &str) -> anyhow::Result<()> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            ["ba", "size", ino, size] => {
                self.sizes.insert(ino.parse()?, size.parse()?);
            }
            ["ba", "open", ino] => *self.writers.entry(ino.parse()?).or_default() += 1,
            ["ba", "close", ino] => {
                let writers = self.writers.entry(ino.parse()?).or_default();
                *writers = writers.saturating_sub(1);
            }
            _ => {}
        }
        Ok(())
    }

    fn request(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        self.open.remove(&record.pid);
        self.drops.remove(&record.pid);
        if !self.open.is_empty() {
            // The request of another thread is still open: either it failed, or the two overlapped.
            self.overlaps += 1;
        }
        let ino = record.number("ino")?;
        let flags = record.flags()?;
        let request = Request {
            ino,
            cpu: record.cpu,
            len: record.number("len")?,
            log: record.number("lblk")?,
            goal: record.number("goal")?,
            left: (record.number("lleft")?, record.number("pleft")?),
            right: (record.number("lright")?, record.number("pright")?),
            flags,
            size: self.sizes.get(&ino).copied().unwrap_or(0),
            open: self.writers.get(&ino).is_some_and(|&writers| writers > 0),
            did: Outcome::default(),
        };
        self.open.insert(record.pid, self.events.len());
        self.events.push(Line::Req(request));
        Ok(())
    }

    /// The outcome of the thread's open request; `None` if it has none, as when the trace began
    /// inside the request.
    fn outcome(&mut self, record: &Record<'_>) -> Option<&mut Outcome> {
        match self.events.get_mut(*self.open.get(&record.pid)?) {
            Some(Line::Req(request)) => Some(&mut request.did),
            _ => None,
        }
    }

    fn new_preallocation(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        let new = (record.number("pstart")?, record.number("lstart")?, record.number("len")?);
        if let Some(did) = self.outcome(record) {
            did.new = Some(new);
        }
        Ok(())
    }

    fn searched(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        let (orig, goal, result) = (record.spot("orig")?, record.spot("goal")?, record.spot("result")?);
        let (found, groups) = (record.number("blks")?, record.number("grps")?);
        let (cr, flags) = (criterion(record.word("cr")?)?, record.flags()?);
        if let Some(did) = self.outcome(record) {
            *did = Outcome { via: Via::Search, orig, goal, result, found, groups, cr, flags, ..did.clone() };
        }
        Ok(())
    }

    fn preallocated(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        let (orig, result) = (record.spot("orig")?, record.spot("result")?);
        if let Some(did) = self.outcome(record) {
            *did = Outcome { via: Via::Prealloc, orig, result, ..did.clone() };
        }
        Ok(())
    }

    fn allocated(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        let (block, len) = (record.number("block")?, record.number("len")?);
        if let Some(did) = self.outcome(record) {
            (did.block, did.len) = (block, len);
        }
        self.open.remove(&record.pid);
        Ok(())
    }

    fn dropped(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        self.open.remove(&record.pid);
        self.drops.remove(&record.pid);
        // The kernel reports each call that discards an inode's preallocations (the last writer's
        // close, a truncation, an eviction), even if the inode had none. Such calls are left out.
        if record.number::<u32>("len")? > 0 {
            self.drops.insert(record.pid, self.events.len());
            self.events.push(Line::Drop(DropInode { ino: record.number("ino")?, released: Vec::new() }));
        }
        Ok(())
    }

    fn released(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        let piece = (record.number("block")?, record.number("count")?);
        if let Some(Line::Drop(dropped)) = self.drops.get(&record.pid).and_then(|&at| self.events.get_mut(at))
        {
            dropped.released.push(piece);
        }
        Ok(())
    }

    fn freed(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        self.open.remove(&record.pid);
        let extent = record.word("extent")?;
        let mut numbers = extent.split('/');
        let mut next = || numbers.next().context("too few numbers");
        let metadata = self.metadata.get(&record.pid).copied().unwrap_or(false);
        let deferred = self.rules.journal && (metadata || !self.rules.writeback);
        let tid = if deferred {
            Some(*self.handles.get(&record.pid).context("free without a handle")?)
        } else {
            None
        };
        self.events.push(Line::Free(Free {
            ino: record.number("inode")?,
            group: next()?.parse()?,
            start: next()?.parse()?,
            len: next()?.parse()?,
            tid,
        }));
        Ok(())
    }

    /// Adds a change of the reserved delayed clusters. Consecutive changes become one event,
    /// because a write reserves block by block.
    fn delayed(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        let delta: i64 = match record.event {
            // The kernel's format has no blank before the next label.
            "ext4_da_reserve_space" => {
                record.word("reserve_blocks")?.trim_end_matches("reserved_data_blocks").parse()?
            }
            "ext4_da_release_space" => -record.number::<i64>("freed_blocks")?,
            _ => -record.number::<i64>("used_blocks")?,
        };
        match self.events.last_mut() {
            Some(Line::Delayed(last)) => last.delta += delta,
            _ => self.events.push(Line::Delayed(Delayed { delta })),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# tracer: nop
   sh -x [1]-28456   [001] ...1.    1: tracing_mark_write: ba open 12
         python3-28456   [001] .....    2: jbd2_handle_start: dev 7,0 tid 2 type 4 line_no 2822 requested_blocks 47
         python3-28456   [001] .....    3: ext4_da_write_end: dev 7,0 ino 12 pos 262144 len 32768 copied 32768
         python3-28456   [001] ...1.    4: ext4_da_reserve_space: dev 7,0 ino 12 mode 0100644 i_blocks 0 reserve_blocks 1reserved_data_blocks 1
         python3-28456   [001] ...1.    5: ext4_da_reserve_space: dev 7,0 ino 12 mode 0100644 i_blocks 0 reserve_blocks 1reserved_data_blocks 2
         python3-28456   [001] .....    6: ext4_request_blocks: dev 7,0 ino 12 flags HINT_DATA|DELALLOC_RESV|USE_RESV len 74 lblk 0 goal 32768 lleft 0 lright 0 pleft 0 pright 0 
         python3-28456   [001] ...1.    7: ext4_mb_new_inode_pa: dev 7,0 ino 12 pstart 33024 len 128 lstart 0
         python3-28456   [001] .....    8: ext4_mballoc_alloc: dev 7,0 inode 12 orig 1/0/74@0 goal 0/-1/128@0 result 1/256/128@0 blks 1 grps 1 cr CR_POWER2_ALIGNED flags HINT_DATA|DELALLOC_RESV|STREAM_ALLOC|USE_RESV tail 0 broken 128
         python3-28456   [001] .....    9: ext4_allocate_blocks: dev 7,0 ino 12 flags HINT_DATA|DELALLOC_RESV|USE_RESV len 74 block 33024 lblk 0 goal 32768 lleft 0 lright 0 pleft 0 pright 0
         python3-28456   [000] .....   10: ext4_discard_preallocations: dev 7,0 ino 12 len: 1
         python3-28456   [000] ...1.   11: ext4_mb_release_inode_pa: dev 7,0 ino 12 block 33098 count 54
         python3-28456   [000] .....   12: ext4_free_blocks: dev 7,0 ino 12 mode 0100644 block 33024 count 74 flags VALIDATED|1ST_CLUSTER|LAST_CLUSTER
         python3-28456   [000] .....   13: ext4_mballoc_free: dev 7,0 inode 12 extent 1/256/74 
    jbd2/loop0-8-28452   [000] .....   14: jbd2_end_commit: dev 7,0 transaction 2 sync 0 head 2
         python3-28456   [000] .....   15: ext4_request_blocks: dev 7,0 ino 9 flags  len 1 lblk 0 goal 1 lleft 0 lright 0 pleft 0 pright 0 
";

    #[test]
    fn a_request_is_put_together_from_its_tracepoints() {
        let parsed = parse(TRACE, Rules::default()).unwrap();
        let request = parsed.events.iter().find_map(|line| match line {
            Line::Req(request) => Some(request.clone()),
            _ => None,
        });
        let request = request.unwrap();
        assert_eq!(
            (request.ino, request.cpu, request.len, request.size, request.open),
            (12, 1, 74, 294_912, true)
        );
        assert_eq!(request.flags, 0x2420);
        assert_eq!(request.did.via, Via::Search);
        assert_eq!(request.did.goal, Spot(0, -1, 128, 0));
        assert_eq!((request.did.block, request.did.len), (33_024, 74));
        assert_eq!(request.did.new, Some((33_024, 0, 128)));
        assert_eq!(request.did.flags, 0x2c20);
    }

    #[test]
    fn drops_frees_commits_and_reservations_keep_their_order() {
        let parsed = parse(TRACE, Rules::default()).unwrap();
        let kinds: Vec<&Line> = parsed.events.iter().filter(|line| !matches!(line, Line::Req(_))).collect();
        assert_eq!(
            kinds,
            [
                &Line::Delayed(Delayed { delta: 2 }),
                &Line::Drop(DropInode { ino: 12, released: vec![(33_098, 54)] }),
                &Line::Free(Free { ino: 12, group: 1, start: 256, len: 74, tid: Some(2) }),
                &Line::Commit(Commit { tid: 2 }),
            ]
        );
    }

    #[test]
    fn a_request_that_is_never_closed_has_failed() {
        let parsed = parse(TRACE, Rules::default()).unwrap();
        let Some(Line::Req(last)) = parsed.events.last() else { panic!("no request at the end") };
        assert_eq!((last.ino, last.flags, last.did.via), (9, 0, Via::Failed));
    }

    #[test]
    fn data_of_a_writeback_mount_is_free_at_once() {
        let parsed = parse(TRACE, Rules { journal: true, writeback: true }).unwrap();
        let free = parsed
            .events
            .iter()
            .find_map(|line| if let Line::Free(free) = line { Some(free.tid) } else { None });
        assert_eq!(free, Some(None));
    }

    /// The events parsed from lines of a thread with number 7 on CPU 1.
    fn events(lines: &[&str], rules: Rules) -> Parsed {
        let lines = lines.iter().map(|line| format!("  lab-7   [001] .....   1: {line}\n"));
        parse(&lines.collect::<String>(), rules).unwrap()
    }

    fn request(lines: &[&str]) -> Request {
        let parsed = events(lines, Rules::default());
        let found = parsed.events.into_iter().find_map(|line| match line {
            Line::Req(request) => Some(request),
            _ => None,
        });
        found.unwrap()
    }

    const ASKS: &str = "ext4_request_blocks: dev 7,0 ino 13 flags HINT_DATA|0x8000 len 5 lblk 40 goal 900 lleft 39 lright 60 pleft 850 pright 999 ";

    /// Every field has its own value, so one that is read after the wrong label is noticed.
    #[test]
    fn every_field_of_a_request_has_its_label() {
        let request = request(&[
            ASKS,
            "ext4_mb_new_group_pa: dev 7,0 ino 13 pstart 904 len 8 lstart 41",
            "ext4_mballoc_alloc: dev 7,0 inode 13 orig 1/2/5@40 goal 1/3/8@42 result 1/4/9@43 blks 6 grps 3 cr CR_BEST_AVAIL_LEN flags HINT_DATA|HINT_NOPREALLOC tail 0 broken 0",
            "ext4_allocate_blocks: dev 7,0 ino 13 flags HINT_DATA len 4 block 901 lblk 40 goal 900 lleft 39 lright 60 pleft 850 pright 999",
        ]);
        let did = Outcome {
            via: Via::Search,
            orig: Spot(1, 2, 5, 40),
            goal: Spot(1, 3, 8, 42),
            result: Spot(1, 4, 9, 43),
            found: 6,
            groups: 3,
            cr: 2,
            flags: 0x60,
            new: Some((904, 41, 8)),
            block: 901,
            len: 4,
        };
        let (left, right) = ((39, 850), (60, 999));
        let expected = Request {
            ino: 13,
            cpu: 1,
            len: 5,
            log: 40,
            goal: 900,
            left,
            right,
            flags: 0x8020,
            size: 0,
            open: false,
            did,
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn a_preallocation_that_serves_is_told_apart_from_a_search() {
        let request =
            request(&[ASKS, "ext4_mballoc_prealloc: dev 7,0 inode 13 orig 1/74/1@74 result 1/330/2@75"]);
        let served = (request.did.via, request.did.orig, request.did.result);
        assert_eq!(served, (Via::Prealloc, Spot(1, 74, 1, 74), Spot(1, 330, 2, 75)));
    }

    /// The bytes copied count, not those requested. A write inside a file does not shrink it. A new
    /// inode is empty, whoever had its number before.
    #[test]
    fn sizes_follow_writes_and_markers() {
        let mark = "tracing_mark_write: ba size 13 5000";
        let short = "ext4_da_write_end: dev 7,0 ino 13 pos 0 len 9 copied 4";
        let beyond = "ext4_write_end: dev 7,0 ino 13 pos 4998 len 10 copied 7";
        let made = "ext4_allocate_inode: dev 7,0 ino 13 dir 2 mode 0100644";
        for (lines, size) in [
            (vec![mark, ASKS], 5000),
            (vec![short, ASKS], 4),
            (vec![mark, short, ASKS], 5000),
            (vec![mark, beyond, ASKS], 5005),
            (vec![mark, made, ASKS], 0),
        ] {
            assert_eq!(request(&lines).size, size, "{lines:?}");
        }
    }

    #[test]
    fn a_file_is_open_until_its_last_writer_has_closed_it() {
        let (open, close) = ("tracing_mark_write: ba open 13", "tracing_mark_write: ba close 13");
        for (lines, is_open) in [
            (vec![open, ASKS], true),
            (vec![open, open, close, ASKS], true),
            (vec![open, open, close, close, ASKS], false),
            (vec![open, "tracing_mark_write: ba close 14", ASKS], true),
        ] {
            assert_eq!(request(&lines).open, is_open, "{lines:?}");
        }
    }

    #[test]
    fn reserved_blocks_are_added_up_until_something_else_comes() {
        let lines = [
            "ext4_da_reserve_space: dev 7,0 ino 12 mode 0100644 i_blocks 0 reserve_blocks 5reserved_data_blocks 0",
            "ext4_da_release_space: dev 7,0 ino 12 mode 0100644 i_blocks 0 freed_blocks 2 reserved_data_blocks 5",
            "ext4_da_update_reserve_space: dev 7,0 ino 12 mode 0100644 i_blocks 0 used_blocks 7 reserved_data_blocks 3 quota_claim 1",
            "jbd2_end_commit: dev 7,0 transaction 8 sync 0 head 2",
            "ext4_da_release_space: dev 7,0 ino 12 mode 0100644 i_blocks 0 freed_blocks 1 reserved_data_blocks 5",
        ];
        let delayed = |delta| Line::Delayed(Delayed { delta });
        assert_eq!(
            events(&lines, Rules::default()).events,
            [delayed(-4), Line::Commit(Commit { tid: 8 }), delayed(-1)]
        );
    }

    /// Freed metadata waits for the commit even where freed data does not. A restarted handle
    /// belongs to another transaction. Without a journal, nothing waits.
    #[test]
    fn frees_wait_for_the_transaction_of_the_latest_handle() {
        let data = "ext4_free_blocks: dev 7,0 ino 12 mode 0100644 block 33024 count 74 flags VALIDATED";
        let metadata =
            "ext4_free_blocks: dev 7,0 ino 12 mode 0100644 block 33024 count 74 flags METADATA|FORGET";
        let freed = "ext4_mballoc_free: dev 7,0 inode 12 extent 3/256/74 ";
        let begun = "jbd2_handle_start: dev 7,0 tid 2 type 4 line_no 1 requested_blocks 47";
        let again = "jbd2_handle_restart: dev 7,0 tid 9 type 4 line_no 1 requested_blocks 47";
        let (all, data_at_once) = (Rules::default(), Rules { journal: true, writeback: true });
        let none = Rules { journal: false, writeback: false };
        for (lines, rules, tid) in [
            ([begun, data, freed], all, Some(2)),
            ([begun, data, freed], data_at_once, None),
            ([begun, metadata, freed], data_at_once, Some(2)),
            ([again, metadata, freed], data_at_once, Some(9)),
            ([begun, metadata, freed], none, None),
        ] {
            let expected = Free { ino: 12, group: 3, start: 256, len: 74, tid };
            assert_eq!(events(&lines, rules).events, [Line::Free(expected)], "{lines:?}");
        }
    }

    #[test]
    fn a_request_inside_that_of_another_thread_is_counted() {
        assert_eq!(events(&[ASKS, ASKS], Rules::default()).overlaps, 0);
        let other = format!("  lab-7 [001] ..... 1: {ASKS}\n  lab-8 [000] ..... 2: {ASKS}\n");
        assert_eq!(parse(&other, Rules::default()).unwrap().overlaps, 1);
    }

    #[test]
    fn criteria_have_the_numbers_of_the_kernel() {
        for (name, number) in [("CR_POWER2_ALIGNED", 0), ("CR_ANY_FREE", 4), ("0x5", 5), ("0xa", 10)] {
            assert_eq!(criterion(name).unwrap(), number);
        }
        assert!(criterion("CR_NONE").is_err());
    }
}
