//! Names of a damaged directory: broken entries are skipped, and the others judged one by one.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_disk::dirblock::{NAME_LEN_MAX, decode_rec_len};
use blockyard_disk::inode::FileType;
use blockyard_disk::{BlockNr, InodeNr};

use super::{Change, Mending};
use crate::facts::{Kind, Policy};
use crate::map::Run;
use crate::repair::editor::Editor;
use crate::repair::entries::{Name, entries};
use crate::repair::log::{Cost, NameChange};
use crate::superblock::is_hidden;

/// Bytes of the shortest encrypted name.
const ENCRYPTED_NAME_MIN: usize = 16;

/// The names of a directory.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The inode that `..` names; the root when that is not known.
    pub(super) dotdot: u32,
    /// Names by the logical block that holds them.
    pub(super) blocks: BTreeMap<u64, Vec<Name>>,
    /// The physical block of each logical block.
    pub(super) places: BTreeMap<u64, BlockNr>,
    /// Whether entries could not be read.
    pub(super) broken: bool,
}

/// Reads every block of a directory.
pub(super) fn read(ed: &Editor<'_, '_>, at: &Mending<'_>, runs: &[Run]) -> Read {
    let volume = ed.volume();
    let mut read = Read::default();
    for run in runs {
        for offset in 0..run.length {
            let (logical, place) = (run.logical + offset, BlockNr::new(run.physical + offset));
            let Ok(block) = volume.block(place) else { continue };
            let is_node = logical > 0 && is_index_node(ed, &block);
            let mut names = if is_node { Vec::new() } else { entries(ed, &block, &mut read.broken) };
            if logical == 0 {
                read.dotdot = take_dotdot(&mut names);
            }
            names.retain(|name| name.bytes != b"." && name.bytes != b"..");
            if !is_node {
                read.blocks.insert(logical, names);
                read.places.insert(logical, place);
            }
        }
    }
    finish(ed, at, read)
}

/// Reads a directory that is kept in its inode.
pub(super) fn read_inline(ed: &Editor<'_, '_>, at: &Mending<'_>, head: [u8; 60], tail: &[u8]) -> Read {
    let mut read =
        Read { dotdot: u32::from_le_bytes([head[0], head[1], head[2], head[3]]), ..Read::default() };
    for (logical, area) in (0..).zip([&head[4..], tail]) {
        let names = entries(ed, area, &mut read.broken);
        read.blocks.insert(logical, names);
    }
    finish(ed, at, read)
}

fn finish(ed: &Editor<'_, '_>, at: &Mending<'_>, mut read: Read) -> Read {
    let inodes = ed.volume().geometry.inodes_count();
    if at.inode == InodeNr::ROOT || read.dotdot == 0 || read.dotdot > inodes {
        // Pass 3 sets the right parent later.
        read.dotdot = InodeNr::ROOT.raw();
    }
    read
}

fn take_dotdot(names: &mut Vec<Name>) -> u32 {
    let found = names.iter().position(|name| name.bytes == b"..");
    found.map_or(0, |at| names.remove(at).inode)
}

/// Whether a block looks like a node of an index: one free entry fills the block, and the node's
/// limit of entries is right for the block size.
fn is_index_node(ed: &Editor<'_, '_>, block: &[u8]) -> bool {
    let layout = ed.volume().dir_layout();
    let rec_len = decode_rec_len(u16::from_le_bytes([block[4], block[5]]), block.len());
    let limit = usize::from(u16::from_le_bytes([block[8], block[9]]));
    block[..4] == [0; 4]
        && rec_len == block.len()
        && block[6] == 0
        && limit == blockyard_disk::htree::IndexKind::Node.limit(&layout)
}

/// What judging did to the names of a directory.
pub(super) struct Judged {
    pub(super) cost: Cost,
    /// Names that were changed or removed.
    pub(super) changes: Vec<NameChange>,
    /// Names that were removed.
    pub(super) gone: Vec<Name>,
}

/// Drops impossible names, repeated entries with the same name and inode, and names that the change
/// removes. In the entries that stay, corrects the file types and, unless names are encrypted,
/// impossible characters.
pub(super) fn judge(ed: &Editor<'_, '_>, at: &Mending<'_>, change: &Change, read: &mut Read) -> Judged {
    let cost = if read.broken { Cost::Doubtful } else { Cost::Nothing };
    let mut judged = Judged { cost, changes: Vec::new(), gone: Vec::new() };
    let mut seen: BTreeMap<Vec<u8>, BTreeSet<u32>> = BTreeMap::new();
    let mut named = BTreeSet::new();
    for names in read.blocks.values_mut() {
        names.retain_mut(|name| {
            let known = seen.entry(name.bytes.clone()).or_default();
            let old = name.clone();
            let stays = !change.less.contains(&name.inode)
                && stays(ed, at, name)
                && known.insert(name.inode)
                && (!change.once.contains(&name.inode) || named.insert(name.inode));
            if !stays {
                let what = format!("name of inode {} removed", old.inode);
                judged.changes.push(NameChange { name: old.bytes.clone(), what, cost: Cost::Removed });
                judged.gone.push(old);
            } else if old.bytes != name.bytes {
                judged.changes.push(renamed(old.bytes, &name.bytes));
            }
            stays
        });
    }
    judged
}

/// The record of a name that was changed.
fn renamed(old: Vec<u8>, new: &[u8]) -> NameChange {
    let what = format!("renamed to {}", new.escape_ascii());
    NameChange { name: old, what, cost: Cost::Moved }
}

/// Whether a name may stay. If so, sets its type, and replaces bytes that no unencrypted name may
/// have.
fn stays(ed: &Editor<'_, '_>, at: &Mending<'_>, name: &mut Name) -> bool {
    let volume = ed.volume();
    let geometry = &volume.geometry;
    let inode = InodeNr::new(name.inode);
    if name.inode > geometry.inodes_count()
        || is_hidden(volume, inode)
        || inode == at.inode
        || inode == InodeNr::ROOT
    {
        return false;
    }
    let kind: Kind = at.facts.kind(geometry, inode);
    if !kind.is_used() {
        return false;
    }
    let own = at.facts.policy(geometry, at.inode);
    if let Some(own) = own {
        let type_matters = matches!(kind.dirent_type(), 1 | 2 | 7);
        let same = match (own, at.facts.policy(geometry, inode)) {
            (_, None) => false,
            (Policy::Unusable, _) | (_, Some(Policy::Unusable)) => true,
            (Policy::Known(own), Some(Policy::Known(other))) => own == other,
            _ => false,
        };
        if name.bytes.len() < ENCRYPTED_NAME_MIN || (type_matters && !same) {
            return false;
        }
    } else {
        for byte in name.bytes.iter_mut().filter(|byte| **byte == 0 || **byte == b'/') {
            *byte = b'.';
        }
        if name.bytes == b"." || name.bytes == b".." {
            name.bytes.push(b'_');
        }
    }
    if volume.dir_layout().file_types && kind.dirent_type() != 0 {
        name.file_type = kind.dirent_type();
    }
    if !volume.dir_layout().file_types {
        name.file_type = 0;
    }
    debug_assert!(
        FileType::from_dirent_byte(kind.dirent_type()).is_some() || kind.dirent_type() == 0,
        "a type"
    );
    true
}

/// Makes names that occur twice differ by a suffix; returns the changes. As observed in e2fsck, the
/// entry with the greatest inode number keeps the name. Names that occur once never change, even
/// if they already look like a name with a suffix.
pub(super) fn separate(names: &mut [Name]) -> Vec<NameChange> {
    let mut holders: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for name in names.iter() {
        let holder = holders.entry(name.bytes.clone()).or_default();
        *holder = name.inode.max(*holder);
    }
    let mut taken: BTreeSet<Vec<u8>> = holders.keys().cloned().collect();
    let mut changes = Vec::new();
    for name in names.iter_mut().filter(|name| holders.get(&name.bytes) != Some(&name.inode)) {
        let bytes = unlike(&name.bytes, &taken);
        taken.insert(bytes.clone());
        changes.push(renamed(std::mem::replace(&mut name.bytes, bytes.clone()), &bytes));
    }
    changes
}

/// Returns the name, with a suffix if the name is taken already.
pub(super) fn unlike(name: &[u8], taken: &BTreeSet<Vec<u8>>) -> Vec<u8> {
    let mut number = 0;
    let mut bytes = name.to_vec();
    while taken.contains(&bytes) {
        number += 1;
        let end = format!("~{number}");
        bytes = name[..name.len().min(NAME_LEN_MAX - end.len())].to_vec();
        bytes.extend_from_slice(end.as_bytes());
    }
    bytes
}
