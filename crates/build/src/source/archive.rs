//! A tar archive as a source. It is read once from start to end. The content of its files is
//! spooled, because the layout can only begin when all files are known.

mod bomb;
mod decompress;
mod entries;
mod pax;

use super::spool::Spool;
use super::staging::{Staged, Staging};
use crate::acl;
use crate::error::{Error, Result};
use crate::left_out::kept;
use crate::tree::{Origin, Tree};
use blockyard_disk::inode::FileType;
use blockyard_disk::xattr::{Attribute, AttributeList, Value};
pub(super) use decompress::decompressed;
use decompress::decompressed_apart;
use entries::{CONTINUATION, Entries, Entry, LISTED_DIRECTORY};
use pax::Extensions;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tar::EntryType;

/// In a layer, a name that begins with this prefix removes another name.
const WHITEOUT: &[u8] = b".wh.";
/// What follows the prefix in the name `.wh..wh..opq`. This name removes everything that the lower
/// layers have in the directory with the name.
const OPAQUE: &[u8] = b".wh..opq";
/// The most bytes that an attribute's value may have, as for system calls.
const VALUE_MAX: usize = 64 << 10;
/// Bytes read at a time.
pub(super) const CHUNK: usize = 1 << 20;

impl Tree {
    /// Reads a tar archive: plain, or compressed with gzip, zstd or xz. `name` is the archive's
    /// name in messages. The content of its files goes to an unnamed file in the folder `spool`,
    /// so the archive may be a stream. Another thread decompresses. After an error, that thread may
    /// keep the stream until the stream delivers something or ends.
    ///
    /// Supports the formats of POSIX (pax) and GNU tar: long names, times in nanoseconds, owners,
    /// hard links, devices, holes, extended attributes and access control lists. Leading slashes
    /// are removed from names and from the targets of hard links. Directories without an entry get
    /// mode 0755 and owner 0.
    ///
    /// # Errors
    /// [`Error::Source`] for a stream that cannot be read or is not an archive; [`Error::Refused`],
    /// with the entry, for names that lead out of the tree, for links to nothing, and for anything
    /// that no image can hold.
    pub fn read_archive(stream: impl Read + Send + 'static, name: &Path, spool: &Path) -> Result<Self> {
        let (mut staging, mut spool) = (Staging::new(name), Spool::new(spool)?);
        let mut reading = Reading { staging: &mut staging, spool: &mut spool, name, is_layer: false };
        let stream = BufReader::with_capacity(CHUNK, stream);
        decompressed_apart(stream, |stream| reading.entries(stream))
            .map_err(|error| Error::source(name, error))??;
        staging.into_tree(Origin::Spool(spool.into_file()))
    }
}

/// The state of reading an archive.
pub(super) struct Reading<'a> {
    pub(super) staging: &'a mut Staging,
    pub(super) spool: &'a mut Spool,
    pub(super) name: &'a Path,
    /// Whether the archive is a layer, whose names can remove names of the layers below.
    pub(super) is_layer: bool,
}

impl Reading<'_> {
    /// Reads all entries of a stream that never blocks for long.
    pub(super) fn all(&mut self, stream: impl Read + Send) -> Result<()> {
        let name = self.name;
        let stream = BufReader::with_capacity(CHUNK, stream);
        decompressed(stream, |stream| self.entries(stream)).map_err(|error| Error::source(name, error))?
    }

    /// Reads all entries of an uncompressed archive.
    pub(super) fn entries(&mut self, stream: &mut dyn BufRead) -> Result<()> {
        let name = self.name;
        let failed = |error: io::Error| Error::source(name, error);
        if stream.fill_buf().map_err(failed)?.is_empty() {
            return Err(failed(io::Error::new(io::ErrorKind::UnexpectedEof, "empty: not a tar archive")));
        }
        let mut entries = Entries::new(stream);
        let mut last: Option<Vec<u8>> = None;
        loop {
            // An error before an entry has a name is reported with the previous entry.
            let entry = entries.next().map_err(|error| match &last {
                Some(path) => {
                    self.failed(path, io::Error::new(error.kind(), format!("after this entry: {error}")))
                }
                None if error.kind() == io::ErrorKind::UnexpectedEof => failed(io::Error::new(
                    error.kind(),
                    "not a tar archive, or one that ends within its first entry",
                )),
                None => failed(error),
            })?;
            let Some(entry) = entry else { return Ok(()) };
            last = Some(entry.path.clone());
            self.add(entry, &mut entries)?;
        }
    }

    fn failed(&self, path: &[u8], error: io::Error) -> Error {
        Error::source(&self.name.join(OsStr::from_bytes(path)), error)
    }

    /// Reads one entry with its content.
    fn add(&mut self, mut entry: Entry, content: &mut Entries<impl BufRead>) -> Result<()> {
        let path = std::mem::take(&mut entry.path);
        if self.is_layer && self.is_whiteout(&path)? {
            return Ok(());
        }
        let kind = match entry.header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => FileType::Regular,
            EntryType::Directory => FileType::Directory,
            EntryType::Symlink => FileType::Symlink,
            EntryType::Char => FileType::CharDevice,
            EntryType::Block => FileType::BlockDevice,
            EntryType::Fifo if entry.extensions.is_socket => FileType::Socket,
            EntryType::Fifo => FileType::Fifo,
            EntryType::Link => {
                let existing = self.link_name(&entry, &path)?;
                return self.staging.link(&path, existing);
            }
            // The content of such an entry is a list of names. It is skipped: a listed file that is
            // not in the archive cannot be in the image.
            other if other.as_byte() == LISTED_DIRECTORY => FileType::Directory,
            other => {
                let reason = match other.as_byte() {
                    CONTINUATION => "continues a file of another volume; join the volumes first".to_owned(),
                    byte => format!("an entry of the unknown type {:?}", char::from(byte)),
                };
                return Err(self.staging.refused(&path, reason));
            }
        };
        // Old archives mark a directory only by the slash at the end of its name.
        let kind = if kind == FileType::Regular && path.ends_with(b"/") { FileType::Directory } else { kind };
        let mut what = self.described(&entry, &path, kind)?;
        if kind == FileType::Regular {
            self.store(content, &path, &entry.extensions, &mut what)?;
        }
        self.staging.enter(&path, what)
    }

    /// Whether an entry is a whiteout or bookkeeping, not a file of the image. Applies a whiteout,
    /// which removes names of the layers below.
    fn is_whiteout(&mut self, path: &[u8]) -> Result<bool> {
        // The name of a whiteout may end with a slash, as when it removes a directory.
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let path = &path[..end];
        let at = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (place, name) = path.split_at(at);
        // Names that begin with the prefix twice, and everything below them, are bookkeeping of the
        // union file system (aufs) on which the layers were made.
        let is_note =
            |name: &[u8]| name.strip_prefix(WHITEOUT).is_some_and(|rest| rest.starts_with(WHITEOUT));
        if place.split(|&byte| byte == b'/').any(is_note) {
            return Ok(true);
        }
        let Some(hidden) = name.strip_prefix(WHITEOUT) else { return Ok(false) };
        if hidden == OPAQUE {
            self.staging.hide_content(place)?;
        } else if !is_note(name) {
            if hidden.is_empty() {
                return Err(self.staging.refused(path, "a whiteout that names nothing"));
            }
            self.staging.hide(&[place, hidden].concat())?;
        }
        Ok(true)
    }

    fn link_name<'e>(&self, entry: &'e Entry, path: &[u8]) -> Result<&'e [u8]> {
        let name = entry.link.as_deref();
        name.ok_or_else(|| self.staging.refused(path, "a link without a target"))
    }

    /// Combines the header and the extensions of an entry.
    fn described(&mut self, entry: &Entry, path: &[u8], kind: FileType) -> Result<Staged> {
        let (header, extensions) = (&entry.header, &entry.extensions);
        let attributes = self.attributes(path, extensions)?;
        let failed = |error: io::Error| self.failed(path, error);
        let id = |extended: Option<u64>, field: io::Result<u64>| -> Result<u32> {
            let id = extended.map_or(field, Ok).map_err(failed)?;
            u32::try_from(id)
                .map_err(|_| self.staging.refused(path, format!("owner {id}: no image can hold it")))
        };
        let mut what = Staged {
            kind,
            permissions: u16::try_from(header.mode().map_err(failed)? & 0o7777).unwrap_or(0),
            uid: id(extensions.uid, header.uid())?,
            gid: id(extensions.gid, header.gid())?,
            attributes,
            ..Staged::directory(extensions.modified.unwrap_or_default())
        };
        if let Some(mode) = acl::settle(&mut what.attributes, kind) {
            what.permissions = what.permissions & 0o7000 | mode;
        }
        what.flags = extensions.flags;
        what.accessed = extensions.accessed.unwrap_or(what.modified);
        match kind {
            FileType::Symlink => {
                what.target = self.link_name(entry, path)?.to_vec();
                self.staging.check_target(path, &what.target)?;
                what.permissions = 0o777;
            }
            FileType::CharDevice | FileType::BlockDevice => {
                let major = header.device_major().map_err(failed)?.unwrap_or(0);
                let minor = header.device_minor().map_err(failed)?.unwrap_or(0);
                what.size = rustix::fs::makedev(major, minor);
            }
            _ => {}
        }
        Ok(what)
    }

    /// The extended attributes of an entry. Access control lists come as text, or as attributes in
    /// the form of system calls. If there are both, the text wins.
    fn attributes(&mut self, path: &[u8], extensions: &Extensions) -> Result<AttributeList> {
        let mut left_out = Vec::new();
        let mut list = AttributeList::default();
        for (name, value) in &extensions.attributes {
            let Some((index, rest)) = kept(name) else {
                left_out.push(name.clone());
                continue;
            };
            if value.len() > VALUE_MAX {
                let name = String::from_utf8_lossy(name);
                return Err(self
                    .staging
                    .refused(path, format!("{name} has more than 64 KiB, which no file can hold")));
            }
            let value = if acl::is_list(name) { acl::stored(value) } else { Ok(Some(value.clone())) };
            let Some(value) = value.map_err(|reason| self.staging.refused(path, reason))? else { continue };
            list.set(Attribute { index, name: rest.to_vec(), value: Value::Bytes(value) });
        }
        self.staging.leave_out(path, left_out);
        let (access, default) = (extensions.access_list.as_ref(), extensions.default_list.as_ref());
        acl::add_text(&mut list, access, default).map_err(|reason| self.staging.refused(path, reason))?;
        Ok(list)
    }

    /// Copies the content of a file to the spool.
    fn store(
        &mut self,
        content: &mut Entries<impl BufRead>,
        path: &[u8],
        extensions: &Extensions,
        what: &mut Staged,
    ) -> Result<()> {
        let map = match &extensions.sparse_map {
            Some(map) => Some(map.clone()),
            None if extensions.has_map_in_content => {
                Some(pax::map_in_content(content).map_err(|error| self.failed(path, error))?)
            }
            None => None,
        };
        what.size = content.left();
        if let Some(map) = map {
            what.size = extensions.real_size.unwrap_or_else(|| map.last().map_or(0, |last| last.end));
            let ends = map.iter().scan(0, |before, range| Some(std::mem::replace(before, range.end)));
            let is_ordered = map.iter().zip(ends).all(|(range, before)| before <= range.start);
            let held = map.iter().try_fold(0u64, |sum, range| sum.checked_add(range.end - range.start));
            let is_inside = map.last().is_none_or(|last| last.end <= what.size);
            if !is_ordered || !is_inside || held.is_none_or(|held| held > content.left()) {
                return Err(self.staging.refused(path, "its map of holes is malformed"));
            }
            what.data = Some(map.into_iter().filter(|range| !range.is_empty()).collect());
        }
        let stored = self.spool.store(content, what.size, what.data.as_deref());
        what.stored = stored.map_err(|error| self.failed(path, error))?;
        Ok(())
    }
}
