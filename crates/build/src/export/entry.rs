//! One archive entry: pax records for what does not fit in the header, then the header, then, if
//! the file has holes, the map of its data.

use crate::acl;
use crate::fflags::{self, SOCKET};
use crate::tree::{Node, NodeId, Tree};
use blockyard_disk::Timestamp;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::xattr::{self, Value};
use std::ops::Range;
use tar::{EntryType, Header};

/// Size in bytes of a header, and of the units that content is padded to.
pub(super) const RECORD: u64 = 512;
/// Longest name in bytes that fits in a header.
const NAME_MAX: usize = 100;
/// Largest user or group id that fits in a header: seven octal digits.
const ID_MAX: u32 = 0o777_7777;
/// Largest size and time that fit in a header: eleven octal digits.
const NUMBER_MAX: u64 = 0o777_7777_7777;

/// An entry, without the file's content.
pub(super) struct Entry {
    kind: EntryType,
    name: Vec<u8>,
    link: Vec<u8>,
    mode: u32,
    owner: (u32, u32),
    modified: Timestamp,
    device: (u32, u32),
    /// Bytes after the header: the map, and the content without holes.
    size: u64,
    map: Vec<u8>,
    /// The pax records.
    records: Vec<u8>,
}

impl Entry {
    /// The entry for a name; `None` is the root.
    pub(super) fn of(tree: &Tree, id: Option<NodeId>, path: &[u8]) -> Self {
        let node = id.map_or(&tree.root, |id| tree.node(id));
        let mut entry = Self::named(node, path);
        if let Some(id) = id {
            match node.kind {
                FileType::Symlink => {
                    entry.set_link(tree.directory(id.directory).text(node.target));
                }
                FileType::Regular => entry.set_content(tree, id, path),
                FileType::CharDevice | FileType::BlockDevice => {
                    entry.device = (rustix::fs::major(node.size), rustix::fs::minor(node.size));
                }
                FileType::Socket => entry.record(b"SCHILY.filetype", SOCKET),
                FileType::Directory | FileType::Fifo => {}
            }
        }
        entry.add_attributes(tree, id);
        entry
    }

    /// The entry for a further name of a file.
    pub(super) fn link(tree: &Tree, id: Option<NodeId>, path: &[u8], first: &[u8]) -> Self {
        let mut entry = Self::named(id.map_or(&tree.root, |id| tree.node(id)), path);
        entry.kind = EntryType::Link;
        entry.set_link(first);
        entry
    }

    fn named(node: &Node, path: &[u8]) -> Self {
        let kind = match node.kind {
            FileType::Regular => EntryType::Regular,
            FileType::Directory => EntryType::Directory,
            FileType::Symlink => EntryType::Symlink,
            FileType::CharDevice => EntryType::Char,
            FileType::BlockDevice => EntryType::Block,
            FileType::Fifo | FileType::Socket => EntryType::Fifo,
        };
        let mut name = if path.is_empty() { b".".to_vec() } else { path.to_vec() };
        if node.kind == FileType::Directory {
            name.push(b'/');
        }
        let mut entry = Self {
            kind,
            name: Vec::new(),
            link: Vec::new(),
            mode: u32::from(node.permissions),
            owner: (node.uid, node.gid),
            modified: node.modified,
            device: (0, 0),
            size: 0,
            map: Vec::new(),
            records: Vec::new(),
        };
        if name.len() > NAME_MAX {
            entry.record(b"path", &name);
        }
        entry.name = name;
        for (key, id) in [(&b"uid"[..], node.uid), (b"gid", node.gid)] {
            if id > ID_MAX {
                entry.record(key, id.to_string().as_bytes());
            }
        }
        let is_plain = u64::try_from(node.modified.seconds).is_ok_and(|seconds| seconds <= NUMBER_MAX);
        if node.modified.nanoseconds > 0 || !is_plain {
            entry.record(b"mtime", time(node.modified).as_bytes());
        }
        if node.accessed != node.modified {
            entry.record(b"atime", time(node.accessed).as_bytes());
        }
        entry
    }

    fn set_link(&mut self, link: &[u8]) {
        if link.len() > NAME_MAX {
            self.record(b"linkpath", link);
        }
        self.link = link.to_vec();
    }

    fn set_content(&mut self, tree: &Tree, id: NodeId, path: &[u8]) {
        let data = tree.data_of(id);
        self.size = data.iter().map(|range| range.end - range.start).sum();
        let size = tree.node(id).size;
        if tree.directory(id.directory).data(id.child).is_some() {
            self.record(b"GNU.sparse.major", b"1");
            self.record(b"GNU.sparse.minor", b"0");
            self.record(b"GNU.sparse.name", path);
            self.record(b"GNU.sparse.realsize", size.to_string().as_bytes());
            self.map = map(&data, size);
            self.size += u64_from_usize(self.map.len());
        }
        if self.size > NUMBER_MAX {
            self.record(b"size", self.size.to_string().as_bytes());
        }
    }

    fn add_attributes(&mut self, tree: &Tree, id: Option<NodeId>) {
        for attribute in tree.attributes(id).into_iter().flat_map(|list| list.iter()) {
            let (Some(name), Value::Bytes(value)) =
                (xattr::join_name(attribute.index, &attribute.name), &attribute.value)
            else {
                continue;
            };
            match &name[..] {
                b"system.posix_acl_access" | b"system.posix_acl_default" => {
                    let key = if name.ends_with(b"access") {
                        &b"SCHILY.acl.access"[..]
                    } else {
                        b"SCHILY.acl.default"
                    };
                    if let Some(text) = acl::text(value) {
                        self.record(key, text.as_bytes());
                    }
                }
                _ => self.record(&key_of(&name), value),
            }
        }
        let flags = tree.flags(id);
        if !flags.is_empty() {
            self.record(b"SCHILY.fflags", fflags::text(flags).as_bytes());
        }
    }

    /// Adds a pax record: its length as a decimal number, a blank, the key, `=`, the value, and a
    /// newline. The length counts all of these, including its own digits.
    fn record(&mut self, key: &[u8], value: &[u8]) {
        let bare = key.len() + value.len() + 3;
        let mut length = bare;
        while length != bare + length.to_string().len() {
            length = bare + length.to_string().len();
        }
        self.records.extend_from_slice(format!("{length} ").as_bytes());
        self.records.extend_from_slice(key);
        self.records.push(b'=');
        self.records.extend_from_slice(value);
        self.records.push(b'\n');
    }

    /// Bytes of content that follow [`Entry::bytes`].
    pub(super) fn content_len(&self) -> u64 {
        self.size - u64_from_usize(self.map.len())
    }

    /// Everything before the content.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !self.records.is_empty() {
            let size = u64_from_usize(self.records.len());
            bytes.extend_from_slice(&header(EntryType::XHeader, b"././@PaxHeader", size, |_| {}));
            bytes.extend_from_slice(&self.records);
            bytes.resize(bytes.len().next_multiple_of(usize_from_u64(RECORD)), 0);
        }
        let size = if self.size > NUMBER_MAX { 0 } else { self.size };
        bytes.extend_from_slice(&header(self.kind, &self.name, size, |header| {
            let link = &self.link[..self.link.len().min(NAME_MAX)];
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
            header.set_mode(self.mode);
            let id = |id: u32| u64::from(if id > ID_MAX { 0 } else { id });
            header.set_uid(id(self.owner.0));
            header.set_gid(id(self.owner.1));
            let seconds = u64::try_from(self.modified.seconds).unwrap_or(0);
            header.set_mtime(if seconds > NUMBER_MAX { 0 } else { seconds });
            if let Some(ustar) = header.as_ustar_mut() {
                ustar.set_device_major(self.device.0);
                ustar.set_device_minor(self.device.1);
            }
        }));
        bytes.extend_from_slice(&self.map);
        bytes
    }
}

fn header(kind: EntryType, name: &[u8], size: u64, set: impl FnOnce(&mut Header)) -> [u8; 512] {
    let mut header = Header::new_ustar();
    let name = &name[..name.len().min(NAME_MAX)];
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    if let Some(ustar) = header.as_ustar_mut() {
        ustar.set_device_major(0);
        ustar.set_device_minor(0);
    }
    set(&mut header);
    header.set_cksum();
    *header.as_bytes()
}

/// The map of a file with holes. Version 1.0 of GNU tar's sparse format puts it before the content.
/// It has one number per line: the count of ranges, then the offset and the length of each range.
/// Zeroes pad it to a multiple of 512 bytes. If a file ends with a hole, or has no data, the map
/// ends with an empty range at the file's end.
fn map(data: &[Range<u64>], size: u64) -> Vec<u8> {
    let end = (data.last().map_or(0, |last| last.end) < size || data.is_empty()).then_some(size..size);
    let mut text = format!("{}\n", data.len() + usize::from(end.is_some()));
    for range in data.iter().cloned().chain(end) {
        text.push_str(&format!("{}\n{}\n", range.start, range.end - range.start));
    }
    let mut bytes = text.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(usize_from_u64(RECORD)), 0);
    bytes
}

/// Seconds since 1970, with a fraction unless it is 0. Before 1970 the fraction counts backwards
/// too: -0.25 is a quarter of a second before 1970.
fn time(at: Timestamp) -> String {
    let (seconds, nanoseconds) = (at.seconds, at.nanoseconds);
    match (seconds, nanoseconds) {
        (_, 0) => seconds.to_string(),
        (i64::MIN..=-1, _) => format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanoseconds),
        (0.., _) => format!("{seconds}.{nanoseconds:09}"),
    }
}

/// The name of an attribute as a key, with `=` (which would end the key) and `%` escaped as GNU tar
/// does.
fn key_of(name: &[u8]) -> Vec<u8> {
    let mut key = b"SCHILY.xattr.".to_vec();
    for &byte in name {
        match byte {
            b'=' => key.extend_from_slice(b"%3D"),
            b'%' => key.extend_from_slice(b"%25"),
            other => key.push(other),
        }
    }
    key
}
