//! Checks one block of a directory: the structure of the entries, their names, the inodes that they
//! name, and whether the names belong in this block according to the index.

use std::collections::HashSet;

use blockyard_disk::checksum::verify_dir_leaf;
use blockyard_disk::dirblock::{self, DirDefect, DirLayout, Entries, Entry};
use blockyard_disk::dirhash::{DirHasher, HashSeed, HashVersion};
use blockyard_disk::htree::{Index, IndexKind};
use blockyard_disk::{Incompat, InodeNr};

use super::index::{Role, Spans};
use super::{ChildRef, Told, Visit, refer_dotdot, unread};
use crate::code::Code;
use crate::facts::Policy;
use crate::finding::{Sink, Site};
use crate::superblock::is_hidden;

/// Detail of a finding: the directory has no index, but the block looks like the root of one.
pub(crate) const ROOT_OF_AN_INDEX: &str = "it is the root of an index";

/// Bytes of the shortest encrypted name: one block of the cipher.
const ENCRYPTED_NAME_MIN: usize = 16;

/// What is remembered of a directory's names from block to block:
/// - Without an index: a hash of each name, to find repeated names. No hashes are kept for a
///   directory of one block or with casefold.
/// - With an index: the lowest and the highest hash below each node.
pub(super) struct Names {
    hasher: DirHasher,
    seen: Option<HashSet<u64>>,
    /// Filled only in a directory with an index.
    pub(super) spans: Spans,
}

impl Names {
    /// Number of names after which repeated ones are no longer looked for.
    const LIMIT: usize = 4 << 20;

    pub(super) fn new(wanted: bool) -> Self {
        let hasher = DirHasher::new(HashVersion::HalfMd4, HashSeed::new([0; 4]));
        Self { hasher, seen: wanted.then(HashSet::new), spans: Spans::new() }
    }

    /// Records the hash of a name, up to [`Self::LIMIT`] names. Returns whether the hash was
    /// recorded before. Then an earlier block has the same name, because two names hardly ever have
    /// the same hash of 64 bits.
    fn repeated(&mut self, name: &[u8]) -> bool {
        let hasher = self.hasher;
        self.seen.as_mut().filter(|seen| seen.len() < Self::LIMIT).is_some_and(|seen| {
            let hash = hasher.hash(name);
            !seen.insert(u64::from(hash.major) << 32 | u64::from(hash.minor))
        })
    }
}

/// Checks one block of a directory.
#[allow(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
pub(super) fn check(
    visit: &Visit<'_, '_>,
    bytes: &[u8],
    logical: u64,
    role: Role,
    site: Site,
    names: &mut Names,
    told: &mut Told,
    sink: &mut Sink,
) {
    match role {
        Role::Node => return,
        Role::Unreferenced => sink.add(Code::HTREE_UNREFERENCED, site, ""),
        // Where leaves have checksums, the missing checksum is reported instead.
        Role::Leaf(..) if !visit.layout.tail && looks_like_node(visit, bytes) => {
            sink.add(Code::HTREE_LEAF_DEPTH, site, "an index node in the place of a leaf");
        }
        _ => {}
    }
    let has_tail = dirblock::stored_checksum(bytes).is_some();
    let layout = match role {
        Role::Root => DirLayout { tail: false, ..visit.layout },
        _ => DirLayout { tail: visit.layout.tail && has_tail, ..visit.layout },
    };
    if visit.layout.tail && !matches!(role, Role::Root) {
        if !has_tail {
            let was_root = logical == 0 && looks_like_root(bytes);
            sink.add(Code::LEAF_NO_TAIL, site, if was_root { ROOT_OF_AN_INDEX } else { "" });
        } else if verify_dir_leaf(visit.fact.seed, bytes).is_err() {
            sink.add(Code::LEAF_CHECKSUM, site, "");
        }
    }
    let Ok(entries) = Entries::new(bytes, layout) else { return };
    let mut entries: Vec<Entry<'_>> = collect(entries, site, sink);
    debug_assert!(
        entries.iter().all(|entry| entry.at + 8 + entry.name.len() <= bytes.len()),
        "an entry leaves its block"
    );
    debug_assert!(entries.is_sorted_by(|a, b| a.at < b.at), "entries out of order");
    report_types(visit, bytes, &entries, site, sink);
    if logical == 0 {
        check_dots(visit, bytes, &mut entries, site, told, sink);
    }
    check_names(visit, &entries, role, site, names, told, sink);
}

/// Whether a block has what an index root has after `..`: four zero bytes, a hash version (any),
/// and the length of this information, 8.
fn looks_like_root(bytes: &[u8]) -> bool {
    bytes[24..28] == [0; 4] && bytes[29] == 8
}

/// Whether a block has the form of an index node. e2fsck takes such a block for a node wherever it
/// lies. An empty leaf does not have that form: it has no limit and no count.
fn looks_like_node(visit: &Visit<'_, '_>, bytes: &[u8]) -> bool {
    bytes[..4] == [0; 4] && Index::checked(bytes, IndexKind::Node, &visit.layout).is_ok()
}

/// Checks entries in an area that is not a block (inline directories).
pub(super) fn check_area(visit: &Visit<'_, '_>, area: &[u8], site: Site, told: &mut Told, sink: &mut Sink) {
    let entries = collect(Entries::in_area(area, visit.layout), site, sink);
    report_types(visit, area, &entries, site, sink);
    check_names(visit, &entries, Role::Linear, site, &mut Names::new(false), told, sink);
}

/// Reports entries that record a type, on a file system where they should not.
fn report_types(visit: &Visit<'_, '_>, bytes: &[u8], entries: &[Entry<'_>], site: Site, sink: &mut Sink) {
    if visit.layout.file_types {
        return;
    }
    for entry in entries.iter().filter(|entry| entry.inode != 0 && bytes[entry.at + 7] != 0) {
        let detail = format!("{}: {}", printable(entry.name), bytes[entry.at + 7]);
        sink.add(Code::TYPE_WITHOUT_FEATURE, site.at_offset(entry.at), detail);
    }
}

/// The sound entries up to the first defect, which is reported.
fn collect<'a>(entries: Entries<'a>, site: Site, sink: &mut Sink) -> Vec<Entry<'a>> {
    let mut sound = Vec::with_capacity(24);
    for entry in entries {
        match entry {
            Ok(entry) => sound.push(entry),
            Err(defect) => {
                let (code, at) = code_of(defect);
                sink.add(code, site.at_offset(at), defect.to_string());
            }
        }
    }
    sound
}

fn code_of(defect: DirDefect) -> (Code, usize) {
    match defect {
        DirDefect::NameLen { at } => (Code::NAME_TOO_LONG, at),
        DirDefect::Name { at } => (Code::NAME_EMPTY, at),
        DirDefect::RecLen { at }
        | DirDefect::Overrun { at }
        | DirDefect::Remainder { at }
        | DirDefect::InodeNumber { at } => (Code::ENTRY_CORRUPT, at),
        DirDefect::BlockSize | DirDefect::Dot | DirDefect::DotDot | DirDefect::TailMissing => {
            (Code::ENTRY_CORRUPT, 0)
        }
    }
}

/// Checks `.` and `..`, and removes them from the start of the first block's entries.
fn check_dots(
    visit: &Visit<'_, '_>,
    bytes: &[u8],
    entries: &mut Vec<Entry<'_>>,
    site: Site,
    told: &mut Told,
    sink: &mut Sink,
) {
    let own = visit.fact.inode;
    // The index is in bounds, because even the shortest entry has room for a name of four bytes.
    let check_end = |entry: &Entry<'_>, code: Code, sink: &mut Sink| {
        if bytes[entry.at + 8 + entry.name.len()] != 0 {
            sink.add(code, site.at_offset(entry.at), "");
        }
    };
    match entries.first() {
        Some(dot) if dot.inode != 0 && dot.name == b"." => {
            if dot.inode != own.raw() {
                sink.add(Code::DOT_INODE, site.at_offset(0), format!("inode {}", dot.inode));
            }
            if dot.slack() >= dirblock::ENTRY_LEN_MIN {
                sink.add(Code::DOT_SLACK, site.at_offset(0), "");
            }
            check_end(dot, Code::DOT_UNTERMINATED, sink);
            check_type(visit, dot, 2, site, sink);
            visit.facts.refer(&visit.volume.geometry, own);
            entries.remove(0);
        }
        _ => sink.add(Code::DOT_MISSING, site.at_offset(0), ""),
    }
    match entries.first() {
        Some(dotdot) if dotdot.inode != 0 && dotdot.name == b".." => {
            told.dotdot = dotdot.inode;
            check_end(dotdot, Code::DOTDOT_UNTERMINATED, sink);
            check_type(visit, dotdot, 2, site, sink);
            refer_dotdot(visit, dotdot.inode, site.at_offset(dotdot.at), sink);
            entries.remove(0);
        }
        _ => sink.add(Code::DOTDOT_MISSING, site, ""),
    }
}

fn check_names(
    visit: &Visit<'_, '_>,
    entries: &[Entry<'_>],
    role: Role,
    site: Site,
    names: &mut Names,
    told: &mut Told,
    sink: &mut Sink,
) {
    for entry in entries.iter().filter(|entry| entry.inode != 0) {
        check_entry(visit, entry, site, told, sink);
        if let Role::Leaf(hasher, bounds) = role {
            let hash = hasher.hash(entry.name).major;
            let span = names.spans.entry(bounds.node).or_insert((hash, hash));
            *span = (span.0.min(hash), span.1.max(hash));
            let site = site.at_offset(entry.at);
            if hash < bounds.low {
                sink.add(Code::HTREE_BELOW_MINIMUM, site, format!("{hash:#010x} below {:#010x}", bounds.low));
            } else if hash > bounds.high {
                let code = if hash > bounds.tolerated { Code::HTREE_ABOVE_MAXIMUM } else { Code::HTREE_LOST };
                sink.add(code, site, format!("{hash:#010x} above {:#010x}", bounds.high));
            }
        }
    }
    if !visit.fact.casefold {
        report_duplicates(entries, site, names, sink);
    }
}

fn report_duplicates(entries: &[Entry<'_>], site: Site, names: &mut Names, sink: &mut Sink) {
    let mut sorted: Vec<&Entry<'_>> = entries.iter().filter(|entry| entry.inode != 0).collect();
    sorted.sort_unstable_by_key(|entry| (entry.name.len(), entry.name, entry.at));
    for pair in sorted.windows(2).filter(|pair| pair[0].name == pair[1].name) {
        let same = pair[0].inode == pair[1].inode;
        let code = if same { Code::DUPLICATE_ENTRY } else { Code::DUPLICATE_NAME };
        sink.add(code, site.at_offset(pair[1].at), printable(pair[1].name));
    }
    sorted.dedup_by_key(|entry| entry.name);
    for entry in sorted {
        if names.repeated(entry.name) {
            sink.add(Code::NAME_REPEATED, site.at_offset(entry.at), printable(entry.name));
        }
    }
}

fn printable(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

/// Checks what one entry names, and counts the reference if it is valid.
fn check_entry(visit: &Visit<'_, '_>, entry: &Entry<'_>, site: Site, told: &mut Told, sink: &mut Sink) {
    let volume = visit.volume;
    let own = visit.fact.inode;
    let site = site.at_offset(entry.at);
    let mut add = |code: Code| sink.add(code, site, format!("{} -> {}", printable(entry.name), entry.inode));
    match entry.name {
        b"." => return add(Code::DUPLICATE_DOT),
        b".." => return add(Code::DUPLICATE_DOTDOT),
        _ => {}
    }
    let inode = InodeNr::new(entry.inode);
    if entry.inode > volume.geometry.inodes_count() || is_hidden(volume, inode) {
        return add(Code::ENTRY_INODE);
    }
    if inode == own {
        return add(Code::ENTRY_SELF);
    }
    if inode == InodeNr::ROOT {
        return add(Code::ENTRY_ROOT);
    }
    if !visit.fact.encrypted && entry.name.iter().any(|&byte| byte == 0 || byte == b'/') {
        add(Code::NAME_CHARACTER);
    }
    let kind = visit.facts.kind(&volume.geometry, inode);
    if !kind.is_used() {
        return add(unread(visit, inode).unwrap_or(Code::ENTRY_UNUSED));
    }
    if visit.fact.encrypted {
        check_policy(visit, entry, kind.dirent_type()).into_iter().for_each(&mut add);
    }
    if kind.is_ea_inode() && volume.incompat.contains(Incompat::EA_INODE) {
        add(Code::ENTRY_EA_INODE);
    }
    if kind.dirent_type() != 0 {
        check_type(visit, entry, kind.dirent_type(), site, sink);
    }
    visit.facts.refer(&volume.geometry, inode);
    if kind.is_directory() {
        told.children.push(ChildRef { child: entry.inode, parent: own.raw() });
    }
    if own == InodeNr::ROOT && entry.name == b"lost+found" {
        told.lost_found = Some(entry.inode);
    }
}

/// What is wrong with an entry of an encrypted directory.
fn check_policy(visit: &Visit<'_, '_>, entry: &Entry<'_>, dirent_type: u8) -> Option<Code> {
    let geometry = &visit.volume.geometry;
    if entry.name.len() < ENCRYPTED_NAME_MIN {
        return Some(Code::ENCRYPTED_NAME_SHORT);
    }
    // Only regular files, directories and symbolic links can be encrypted.
    if !matches!(dirent_type, 1 | 2 | 7) {
        return None;
    }
    let own = visit.facts.policy(geometry, visit.fact.inode)?;
    match (own, visit.facts.policy(geometry, InodeNr::new(entry.inode))) {
        (_, None) => Some(Code::ENCRYPTED_NOT),
        (Policy::Unusable, _) | (_, Some(Policy::Unusable)) => None,
        (Policy::Known(own), Some(Policy::Known(other))) if own == other => None,
        _ => Some(Code::ENCRYPTED_OTHERWISE),
    }
}

fn check_type(visit: &Visit<'_, '_>, entry: &Entry<'_>, expected: u8, site: Site, sink: &mut Sink) {
    if !visit.layout.file_types {
        return;
    }
    let site = site.at_offset(entry.at);
    if entry.file_type == 0 {
        sink.add(Code::TYPE_UNSET, site, printable(entry.name));
    } else if entry.file_type != expected {
        let detail = format!("{}: {}, should be {expected}", printable(entry.name), entry.file_type);
        sink.add(Code::TYPE_WRONG, site, detail);
    }
}
