//! A directory of the host as a source.

use crate::error::{Error, Result};
use crate::left_out::{LeftOut, kept};
use crate::parallel;
use crate::rules::Rules;
use crate::tree::{Directory, Node, NodeId, Origin, Text, Tree, below};
use blockyard_disk::Timestamp;
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use blockyard_disk::xattr::{self, Attribute, AttributeList, Value};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, SeekFrom, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Paths of more bytes are opened in steps (`PATH_MAX` is 4096).
const PATH_LONGEST: usize = 4000;

/// Linux's limit in bytes for a list of attribute names, and for a value.
const XATTR_MAX: usize = 64 << 10;

/// Size in bytes of the buffer for the first attempt to read a list of names.
const NAMES_INLINE: usize = 512;

/// Flags for opening directories.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Tree {
    /// Reads a directory of the host with `threads` threads: names, attributes and sizes, but no
    /// content. Symbolic links inside are not followed, but file systems mounted inside are
    /// entered. A relative path is resolved repeatedly, so the working directory must not change
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::Source`] if something cannot be read, or is of a type that no image can hold.
    pub fn read(top: &Path, threads: usize) -> Result<Self> {
        Self::read_by(top, threads, &Rules::default())
    }

    /// As [`Tree::read`], but skips names that the rules are sure to leave out. Such files are
    /// neither opened nor looked at, so they may be unreadable, large, or changing. All excluded
    /// names are skipped. A name that is not included is skipped only if no pattern to include may
    /// match something below it. A pattern without a leading slash may match below every name.
    /// [`Tree::apply`] must follow for the rest of the rules.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub fn read_by(top: &Path, threads: usize, rules: &Rules) -> Result<Self> {
        let at = |error: Errno| Error::source(top, error);
        let top_fd = rustix::fs::open(top, DIRECTORY - OFlags::NOFOLLOW, Mode::empty()).map_err(at)?;
        let stat = status(top_fd.as_fd(), b"").map_err(at)?;
        let root_flags = flags_of(&stat);
        let root = node(&stat, Text::default()).ok_or_else(|| at(Errno::NOTDIR))?;
        let root_attributes = attributes_of(format!("/proc/self/fd/{}/.", top_fd.as_raw_fd()).as_bytes());
        let (root_attributes, others) = root_attributes.map_err(|error| Error::source(top, error))?;
        let mut left_out = None;
        LeftOut::add(&mut left_out, || top.to_owned(), others);
        let mut tree = Self {
            top: top.to_owned(),
            origin: Origin::Directory(top_fd),
            has_root: true,
            root,
            root_flags,
            root_attributes,
            left_out,
            directories: vec![Directory::default()],
        };
        let mut level = vec![0];
        while !level.is_empty() {
            level = tree.read_level(&level, threads, rules)?;
        }
        Ok(tree)
    }

    /// Reads one file of any type on the host, as a tree with one name. A symbolic link is not
    /// followed.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub fn read_file(path: &Path) -> Result<Self> {
        let at = |error: Errno| Error::source(path, error);
        let top = path.parent().filter(|top| !top.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().ok_or_else(|| at(Errno::INVAL))?.as_bytes();
        let top_fd = rustix::fs::open(top, DIRECTORY - OFlags::NOFOLLOW, Mode::empty()).map_err(at)?;
        let stat = status(top_fd.as_fd(), b"").map_err(at)?;
        let root = node(&stat, Text::default()).ok_or_else(|| at(Errno::NOTDIR))?;
        let mut tree = Self {
            top: top.to_owned(),
            origin: Origin::Directory(top_fd),
            has_root: false,
            root: Node { permissions: 0o755, uid: 0, gid: 0, ..root },
            root_flags: InodeFlags::empty(),
            root_attributes: AttributeList::default(),
            left_out: None,
            directories: vec![Directory::default()],
        };
        let mut directory = Directory::default();
        let fd = tree.open_directory(0)?;
        Reader::new(&tree, 0, &Rules::default()).add(&mut directory, fd.as_fd(), name)?;
        tree.directories[0] = directory;
        Ok(tree)
    }

    /// Removes one name, and everything below it. Returns whether it existed.
    pub fn forget(&mut self, path: &[u8]) -> bool {
        let is_there = self.find(path).is_some();
        if is_there {
            self.retain(|found, _| found != path);
        }
        is_there
    }

    /// Reads one level of directories. Returns the next level: the directories in them.
    fn read_level(&mut self, level: &[u32], threads: usize, rules: &Rules) -> Result<Vec<u32>> {
        let read: Vec<Mutex<Directory>> = level.iter().map(|_| Mutex::default()).collect();
        let tree = &*self;
        parallel::each(
            threads,
            level.len(),
            || (),
            |(), part| {
                let directory = Reader::new(tree, level[part], rules).read()?;
                *read[part].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = directory;
                Ok(())
            },
        )?;
        let mut below = Vec::new();
        for (&number, directory) in level.iter().zip(read) {
            let mut directory = directory.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            for (child, node) in (0..).zip(&mut directory.nodes) {
                if node.kind == FileType::Directory {
                    node.directory = u32_from_usize(self.directories.len());
                    below.push(node.directory);
                    let own = Some(NodeId { directory: number, child });
                    self.directories.push(Directory { own, ..Directory::default() });
                }
            }
            directory.own = self.directory(number).own;
            self.directories[usize_from_u32(number)] = directory;
        }
        Ok(below)
    }

    /// Opens a directory of a host tree.
    pub(crate) fn open_directory(&self, number: u32) -> Result<OwnedFd> {
        let path = self.directory_path(number);
        let failed = |error: Errno| Error::source(&self.host_path(&path), error);
        let Origin::Directory(top) = &self.origin else { return Err(failed(Errno::NOTDIR)) };
        if path.len() <= PATH_LONGEST {
            let path = if path.is_empty() { &b"."[..] } else { &path };
            return rustix::fs::openat(top, path, DIRECTORY, Mode::empty()).map_err(failed);
        }
        let mut at: Option<OwnedFd> = None;
        for part in parts_of(&path) {
            let from = at.as_ref().map_or(top.as_fd(), AsFd::as_fd);
            at = Some(rustix::fs::openat(from, part, DIRECTORY, Mode::empty()).map_err(failed)?);
        }
        at.ok_or_else(|| failed(Errno::NOENT))
    }

    /// Opens a file in a directory that is already open.
    pub(crate) fn open_file(&self, directory: BorrowedFd<'_>, id: NodeId) -> Result<OwnedFd> {
        open_to_read(directory, self.name(id)).map_err(|error| Error::source(&self.host_path_of(id), error))
    }
}

/// Splits a path into as few parts as possible, each short enough to be opened. Each part costs a
/// system call, and in a deep tree almost every directory has a path of several parts.
fn parts_of(path: &[u8]) -> Vec<&[u8]> {
    let (mut parts, mut rest) = (Vec::new(), path);
    while rest.len() > PATH_LONGEST {
        let end = rest[..PATH_LONGEST].iter().rposition(|&byte| byte == b'/');
        let Some(end) = end else { unreachable!("no name has so many bytes") };
        parts.push(&rest[..end]);
        rest = &rest[end + 1..];
    }
    parts.push(rest);
    parts
}

/// Opens a file, without changing its access time if we are its owner or privileged.
fn open_to_read(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(directory, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::openat(directory, name, flags, Mode::empty()),
        other => other,
    }
}

/// Reads one directory.
struct Reader<'a> {
    tree: &'a Tree,
    number: u32,
    /// Names that these rules are sure to leave out are skipped.
    rules: &'a Rules,
    /// The directory's path with a trailing slash. Names are appended to it, to read attributes by
    /// path.
    path: RefCell<Vec<u8>>,
}

impl<'a> Reader<'a> {
    fn new(tree: &'a Tree, number: u32, rules: &'a Rules) -> Self {
        let mut path = tree.host_path(&tree.directory_path(number)).into_os_string().into_vec();
        path.push(b'/');
        Self { tree, number, rules, path: RefCell::new(path) }
    }

    fn failed(&self, name: &[u8], error: impl Into<io::Error>) -> Error {
        Error::source(&self.host_path(name), error)
    }

    /// The path of a name in the directory; of the directory itself for an empty name.
    fn host_path(&self, name: &[u8]) -> PathBuf {
        let place = self.tree.directory_path(self.number);
        self.tree.host_path(&if name.is_empty() { place } else { below(&place, name) })
    }

    fn read(&self) -> Result<Directory> {
        let fd = self.tree.open_directory(self.number)?;
        let names = names(&fd).map_err(|error| self.failed(b"", error))?;
        let mut directory = Directory::default();
        directory.nodes.reserve_exact(names.len());
        let place = self.tree.directory_path(self.number);
        for name in names {
            if self.rules.changes_names() && self.rules.skips(&below(&place, &name)) {
                continue;
            }
            // An empty lost+found is skipped: every file system has its own.
            let may_be_own = self.number == 0 && &*name == b"lost+found";
            if may_be_own && self.is_empty_directory(&fd, &name)? {
                continue;
            }
            self.add(&mut directory, fd.as_fd(), &name)?;
        }
        Ok(directory)
    }

    fn is_empty_directory(&self, fd: &OwnedFd, name: &[u8]) -> Result<bool> {
        let inside = match rustix::fs::openat(fd, name, DIRECTORY, Mode::empty()) {
            Ok(opened) => names(&opened).map_err(|error| self.failed(name, error))?,
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(error) => return Err(self.failed(name, error)),
        };
        Ok(inside.is_empty())
    }

    fn add(&self, directory: &mut Directory, fd: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        let failed = |error: Errno| self.failed(name, error);
        let stat = status(fd, name).map_err(failed)?;
        let text = directory.add_text(name);
        let child = u32_from_usize(directory.nodes.len());
        let Some(mut node) = node(&stat, text) else {
            return Err(self.failed(name, io::Error::other("of a type that no image can hold")));
        };
        if node.kind == FileType::Symlink {
            let target = rustix::fs::readlinkat(fd, name, Vec::new()).map_err(failed)?;
            node.size = target.as_bytes().len().try_into().unwrap_or(u64::MAX);
            node.target = directory.add_text(target.as_bytes());
        }
        if stat.stx_nlink > 1 && node.kind != FileType::Directory {
            let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
            directory.linked.push((child, (device, stat.stx_ino)));
        }
        if node.kind == FileType::Regular && stat.stx_blocks.saturating_mul(512) < node.size {
            let file = open_to_read(fd, name).map_err(failed)?;
            directory.data.push((child, data_ranges(&file, node.size).map_err(failed)?));
        }
        let flags = flags_of(&stat);
        if !flags.is_empty() {
            directory.flags.push((child, flags));
        }
        let (attributes, others) = self.attributes(fd, name)?;
        LeftOut::add(&mut directory.left_out, || self.host_path(name), others);
        if !attributes.is_empty() {
            directory.attributes.push((child, attributes));
        }
        directory.nodes.push(node);
        Ok(())
    }

    /// Reads attributes by path. That works for all types of file, without opening them. A path
    /// that is too long is replaced by one that begins with the open directory in `/proc/self/fd`.
    /// Such a path is slow: for a small file, Linux needs twice as long for it as for everything
    /// else.
    fn attributes(&self, fd: BorrowedFd<'_>, name: &[u8]) -> Result<(AttributeList, Vec<Vec<u8>>)> {
        let mut path = self.path.borrow_mut();
        let own = path.len();
        path.extend_from_slice(name);
        let found = if path.len() <= PATH_LONGEST {
            attributes_of(&path)
        } else {
            attributes_of(&[format!("/proc/self/fd/{}/", fd.as_raw_fd()).as_bytes(), name].concat())
        };
        path.truncate(own);
        found.map_err(|error| self.failed(name, error))
    }
}

/// The names of a directory, sorted, without `.` and `..`.
fn names(fd: &OwnedFd) -> io::Result<Vec<Box<[u8]>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.into());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The result of `statx` for a name in a directory; for the directory itself if the name is empty.
fn status(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Statx> {
    rustix::fs::statx(
        directory,
        name,
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH,
        StatxFlags::BASIC_STATS,
    )
}

/// Those flags of `chattr` that an image keeps and that `statx` reports.
fn flags_of(stat: &Statx) -> InodeFlags {
    let mut flags = InodeFlags::empty();
    flags.set(InodeFlags::IMMUTABLE, stat.stx_attributes.contains(StatxAttributes::IMMUTABLE));
    flags.set(InodeFlags::APPEND, stat.stx_attributes.contains(StatxAttributes::APPEND));
    flags.set(InodeFlags::NODUMP, stat.stx_attributes.contains(StatxAttributes::NODUMP));
    flags
}

/// Converts the result of `statx`; `None` for a type that no image can hold.
fn node(stat: &Statx, name: Text) -> Option<Node> {
    let kind = FileType::from_mode(stat.stx_mode)?;
    let size = match kind {
        FileType::Regular => stat.stx_size,
        FileType::CharDevice | FileType::BlockDevice => {
            rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor)
        }
        _ => 0,
    };
    let modified = Timestamp { seconds: stat.stx_mtime.tv_sec, nanoseconds: stat.stx_mtime.tv_nsec };
    Some(Node {
        name,
        kind,
        permissions: stat.stx_mode & 0o7777,
        links: 0,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        modified,
        accessed: modified,
        size,
        directory: 0,
        target: Text::default(),
        inode: 0,
        is_alias: false,
    })
}

/// The ranges of a file of `size` bytes that are not holes.
fn data_ranges(file: &OwnedFd, size: u64) -> rustix::io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            other => other?,
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        if start >= end {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

/// Those attributes of a file that are kept in an image, and the names of the others.
fn attributes_of(path: &[u8]) -> io::Result<(AttributeList, Vec<Vec<u8>>)> {
    let (mut list, mut others) = (AttributeList::default(), Vec::new());
    let mut names = [0; NAMES_INLINE];
    let names = match rustix::fs::llistxattr(path, &mut names) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok((list, others)),
        Ok(len) => names[..len].to_vec(),
        Err(Errno::RANGE) => {
            let mut names = vec![0; XATTR_MAX];
            let len = rustix::fs::llistxattr(path, &mut names)?;
            names.truncate(len);
            names
        }
        Err(error) => return Err(error.into()),
    };
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let Some((index, rest)) = kept(name) else {
            others.push(name.to_vec());
            continue;
        };
        let mut value = vec![0; XATTR_MAX];
        match rustix::fs::lgetxattr(path, name, &mut value) {
            // The attribute was removed meanwhile, or is listed but not readable.
            Err(Errno::NODATA | Errno::NOTSUP) => continue,
            len => value.truncate(len?),
        }
        if name.starts_with(b"system.posix_acl_") {
            match xattr::acl_from_posix(&value) {
                Ok(Some(stored)) => value = stored,
                // A list without entries means no list.
                Ok(None) => continue,
                Err(_) => return Err(io::Error::other("its access control list is malformed")),
            }
        }
        list.set(Attribute { index, name: rest.to_vec(), value: Value::Bytes(value) });
    }
    Ok((list, others))
}

#[cfg(test)]
mod tests {
    use super::{PATH_LONGEST, parts_of};

    #[test]
    fn long_paths_have_few_parts() {
        assert_eq!(parts_of(b"a/b"), [b"a/b"]);
        for (name, count) in [(vec![b'n'; 255], 100), (vec![b'n'], 10_000), (vec![b'n'; 7], 1001)] {
            let path = vec![&name[..]; count].join(&b'/');
            let parts = parts_of(&path);
            assert_eq!(parts.join(&b'/'), path);
            assert!(parts.iter().all(|part| part.len() <= PATH_LONGEST && !part.is_empty()));
            assert!(parts.len() <= path.len() / (PATH_LONGEST - 256) + 1, "{}", parts.len());
        }
    }
}
