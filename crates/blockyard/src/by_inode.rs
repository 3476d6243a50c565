//! Operations on an open image by inode number and generation instead of path, as a mount needs.

use blockyard_disk::{FileType, InodeNr};
use blockyard_engine::{
    AccessTimes, DirEntry as RawEntry, Error as EngineError, FileSystem as Engine, InodeId, NewInode,
    OpContext, RenameMode, SetAttributes, XattrMode,
};

use crate::batch::{read_batch, read_batch_with_dots};
use crate::error::{Error, Result};
use crate::file::{Abilities, File};
use crate::file_system::FileSystem;
use crate::metadata::{Flags, Metadata};
use crate::reference::{Access, Reference};

/// Operations on an image that take an [`InodeId`] (inode number and generation) instead of a path.
/// The generation tells an inode apart from later inodes with the same number. Once an inode is
/// deleted, every operation on its id fails with `ESTALE` ([`Error::is_stale`]), even if a new
/// inode has its number.
///
/// ```
/// # fn main() -> blockyard::Result<()> {
/// let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
/// let inodes = fs.by_inode();
/// let root = inodes.root()?;
/// let (id, file) = inodes.create(root, b"a", 0o644)?;
/// file.write_at(b"content", 0)?;
/// drop(file);
/// inodes.unlink(root, b"a")?;
/// assert!(inodes.metadata(id).unwrap_err().is_stale());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ByInode<'a> {
    fs: &'a FileSystem,
}

/// A hold on an inode. While the `Node` lives, the inode can be used by its [`InodeId`], even after
/// the inode's last name is removed. A mount keeps a `Node` for each inode that the kernel
/// remembers.
pub struct Node(Reference);

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Node").field(&self.0.id()).finish()
    }
}

impl Node {
    /// The inode's number and generation.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let node = inodes.hold(root)?;
    /// assert_eq!(node.id(), root);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn id(&self) -> InodeId {
        self.0.id()
    }
}

impl FileSystem {
    /// The same image, with operations by inode number and generation instead of path, as a mount
    /// needs.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// let inodes = fs.by_inode();
    /// assert_eq!(inodes.lookup(inodes.root()?, b"file")?.len(), 4);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn by_inode(&self) -> ByInode<'_> {
        ByInode::new(self)
    }
}

impl<'a> ByInode<'a> {
    pub(crate) const fn new(fs: &'a FileSystem) -> Self {
        Self { fs }
    }

    /// The root directory.
    ///
    /// # Errors
    /// The image is damaged or the device fails.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// assert!(inodes.metadata(inodes.root()?)?.is_dir());
    /// # Ok(())
    /// # }
    /// ```
    pub fn root(self) -> Result<InodeId> {
        self.identify(InodeNr::ROOT)
    }

    /// The number and generation of the inode that has this number now.
    ///
    /// # Errors
    /// `ESTALE` if the number is free, or belongs to an inode of the file system itself, such as
    /// the journal.
    ///
    /// ```
    /// use blockyard::InodeNr;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// assert_eq!(inodes.identify(InodeNr::ROOT)?, root);
    /// assert!(inodes.identify(InodeNr::new(4000)).unwrap_err().is_stale());
    /// # Ok(())
    /// # }
    /// ```
    pub fn identify(self, number: InodeNr) -> Result<InodeId> {
        self.on(number, |engine, _| {
            // The inodes of the file system itself are not files. Some, such as the resize inode,
            // use their block map in a way of their own.
            if engine.is_own_inode(number) {
                return Err(EngineError::StaleInode(number));
            }
            Ok(engine.identify(number)?.inode)
        })
    }

    /// Looks up a name in a directory; `.` and `..` are names, too. Returns the attributes of the
    /// inode with this name, among them its [`InodeId`] ([`Metadata::id`]).
    ///
    /// # Errors
    /// There is no such name, or `parent` is not a directory.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// fs.create_dir("a")?;
    /// let found = inodes.lookup(root, b"a")?;
    /// assert_eq!(inodes.lookup(found.id(), b"..")?.id(), root);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lookup(self, parent: InodeId, name: &[u8]) -> Result<Metadata> {
        self.on(parent.number, |engine, _| {
            loop {
                let found = engine.find(parent, name)?;
                match engine.attributes(found.inode) {
                    // Another thread deleted the inode after the look-up. Look up the name again:
                    // it may refer to another inode now.
                    Err(EngineError::StaleInode(_)) => {}
                    attributes => return attributes.map(Metadata::new),
                }
            }
        })
    }

    /// Holds an inode for as long as the returned [`Node`] lives.
    ///
    /// # Errors
    /// `ESTALE` if the inode was deleted.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// fs.write("file", "text")?;
    /// let id = inodes.lookup(root, b"file")?.id();
    /// let node = inodes.hold(id)?;
    /// inodes.unlink(root, b"file")?;
    /// assert_eq!(inodes.metadata(id)?.nlink(), 0);
    /// drop(node);
    /// assert!(inodes.metadata(id).unwrap_err().is_stale());
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold(self, id: InodeId) -> Result<Node> {
        let reference = self.fs.reference(id, Access::Read);
        reference.map(Node).map_err(|reason| Error::of_inode(id.number, reason))
    }

    /// The attributes of an inode, as `stat` reports them.
    ///
    /// # Errors
    /// `ESTALE` if the inode was deleted.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// assert_eq!(inodes.metadata(root)?.mode(), 0o755);
    /// # Ok(())
    /// # }
    /// ```
    pub fn metadata(self, id: InodeId) -> Result<Metadata> {
        self.on(id.number, |engine, _| engine.attributes(id).map(Metadata::new))
    }

    /// Sets several attributes at once.
    ///
    /// # Errors
    /// As [`FileSystem::set_attributes`].
    ///
    /// ```
    /// use blockyard::SetAttributes;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let changes = SetAttributes { uid: Some(1000), ..SetAttributes::default() };
    /// inodes.set_attributes(root, &changes)?;
    /// assert_eq!(inodes.metadata(root)?.uid(), 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_attributes(self, id: InodeId, changes: &SetAttributes) -> Result<()> {
        self.on(id.number, |engine, ctx| engine.set_attributes(ctx, id, changes))
    }

    /// Records that a file or directory was read: sets its access time to now if `rule` says so.
    ///
    /// # Errors
    /// `ESTALE` if the inode was deleted.
    ///
    /// ```
    /// use blockyard::AccessTimes;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let before = inodes.metadata(root)?.accessed();
    /// inodes.note_access(root, AccessTimes::Always)?;
    /// assert!(inodes.metadata(root)?.accessed() >= before);
    /// # Ok(())
    /// # }
    /// ```
    pub fn note_access(self, id: InodeId, rule: AccessTimes) -> Result<()> {
        self.on(id.number, |engine, ctx| engine.note_access(ctx, id, rule))
    }

    /// Makes a file or directory durable, as [`File::sync_all`].
    ///
    /// # Errors
    /// As [`File::sync_all`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let (id, file) = inodes.create(root, b"file", 0o644)?;
    /// file.write_at(b"content", 0)?;
    /// inodes.sync_all(id)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync_all(self, id: InodeId) -> Result<()> {
        self.on(id.number, |engine, ctx| engine.fsync(ctx, id))
    }

    /// Makes the content of a file durable, as [`File::sync_data`].
    ///
    /// # Errors
    /// As [`File::sync_all`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let (id, file) = inodes.create(root, b"file", 0o644)?;
    /// file.write_at(b"content", 0)?;
    /// inodes.sync_data(id)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync_data(self, id: InodeId) -> Result<()> {
        self.on(id.number, |engine, ctx| engine.fdatasync(ctx, id))
    }

    /// Sets or clears the flags that users may change, as [`FileSystem::set_flags`].
    ///
    /// # Errors
    /// As [`FileSystem::set_flags`].
    ///
    /// ```
    /// use blockyard::Flags;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let (id, _file) = inodes.create(root, b"file", 0o644)?;
    /// inodes.set_flags(id, inodes.metadata(id)?.flags() | Flags::IMMUTABLE)?;
    /// assert!(inodes.unlink(root, b"file").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_flags(self, id: InodeId, flags: Flags) -> Result<()> {
        self.on(id.number, |engine, ctx| engine.set_flags(ctx, id, flags.bits()))
    }

    /// Sets a file's size.
    ///
    /// # Errors
    /// As [`File::set_len`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let (id, file) = inodes.create(root, b"file", 0o644)?;
    /// file.write_at(b"content", 0)?;
    /// inodes.truncate(id, 3)?;
    /// assert_eq!(inodes.metadata(id)?.len(), 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn truncate(self, id: InodeId, size: u64) -> Result<()> {
        self.on(id.number, |engine, ctx| engine.truncate(ctx, id, size))
    }

    /// Opens a file to read it, to write it, or both.
    ///
    /// # Errors
    /// `ESTALE` if the inode was deleted.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// fs.write("file", "text")?;
    /// let id = inodes.lookup(root, b"file")?.id();
    /// let mut buf = [0; 4];
    /// inodes.open(id, true, false)?.read_at(&mut buf, 0)?;
    /// assert_eq!(&buf, b"text");
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(self, id: InodeId, read: bool, write: bool) -> Result<File> {
        let access = if write { Access::Write } else { Access::Read };
        let reference = self.fs.reference(id, access);
        let reference = reference.map_err(|reason| Error::of_inode(id.number, reason))?;
        let path = format!("inode {}", id.number);
        Ok(File::new(reference, path.as_ref(), Abilities { read, write, append: false }))
    }

    /// Creates a regular file, open for reading and writing.
    ///
    /// # Errors
    /// As [`FileSystem::create_new`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let (id, file) = inodes.create(root, b"file", 0o600)?;
    /// file.write_at(b"content", 0)?;
    /// assert_eq!(inodes.metadata(id)?.len(), 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(self, parent: InodeId, name: &[u8], mode: u16) -> Result<(InodeId, File)> {
        let new = NewInode { kind: FileType::Regular, permissions: mode & 0o7777, device: None };
        let id = self.on(parent.number, |engine, ctx| engine.create_open(ctx, parent, name, &new))?;
        let reference = self.fs.opened_reference(id, Access::Write);
        let path = format!("inode {}", id.number);
        let abilities = Abilities { read: true, write: true, append: false };
        Ok((id, File::new(reference, path.as_ref(), abilities)))
    }

    /// Creates an inode of any type except a symbolic link, and holds it.
    ///
    /// # Errors
    /// As [`FileSystem::create_dir`].
    ///
    /// ```
    /// use blockyard::{FileType, NewInode};
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
    /// let node = inodes.make_node(root, b"a", &new)?;
    /// assert_eq!(inodes.lookup(root, b"a")?.id(), node.id());
    /// # Ok(())
    /// # }
    /// ```
    pub fn make_node(self, parent: InodeId, name: &[u8], new: &NewInode) -> Result<Node> {
        let id = self.on(parent.number, |engine, ctx| engine.create_open(ctx, parent, name, new))?;
        let access = if new.kind == FileType::Regular { Access::Write } else { Access::Read };
        Ok(Node(self.fs.opened_reference(id, access)))
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// As [`FileSystem::symlink`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let id = inodes.symlink(root, b"link", b"target")?;
    /// assert_eq!(inodes.read_link(id)?, b"target");
    /// # Ok(())
    /// # }
    /// ```
    pub fn symlink(self, parent: InodeId, name: &[u8], target: &[u8]) -> Result<InodeId> {
        self.on(parent.number, |engine, ctx| engine.symlink_id(ctx, parent, name, target))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As [`FileSystem::read_link`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// fs.symlink("target", "link")?;
    /// let id = inodes.lookup(root, b"link")?.id();
    /// assert_eq!(inodes.read_link(id)?, b"target");
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_link(self, id: InodeId) -> Result<Vec<u8>> {
        self.on(id.number, |engine, _| engine.read_link(id))
    }

    /// Adds a name to an inode.
    ///
    /// # Errors
    /// As [`FileSystem::hard_link`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let (id, _file) = inodes.create(root, b"one", 0o644)?;
    /// inodes.link(id, root, b"two")?;
    /// assert_eq!(inodes.metadata(id)?.nlink(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn link(self, id: InodeId, parent: InodeId, name: &[u8]) -> Result<()> {
        self.on(id.number, |engine, ctx| engine.link(ctx, id, parent, name))
    }

    /// Removes a name of an inode that is not a directory.
    ///
    /// # Errors
    /// As [`FileSystem::remove_file`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// fs.write("file", "text")?;
    /// inodes.unlink(root, b"file")?;
    /// assert!(inodes.lookup(root, b"file").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn unlink(self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.on(parent.number, |engine, ctx| engine.unlink(ctx, parent, name))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`FileSystem::remove_dir`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// fs.create_dir("a")?;
    /// inodes.rmdir(root, b"a")?;
    /// assert!(!fs.exists("a")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rmdir(self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.on(parent.number, |engine, ctx| engine.rmdir(ctx, parent, name))
    }

    /// Renames the entry `from` (its directory and name) to `to`.
    ///
    /// # Errors
    /// As [`FileSystem::rename_with`].
    ///
    /// ```
    /// use blockyard::RenameMode;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// fs.write("old", "text")?;
    /// fs.create_dir("a")?;
    /// let a = inodes.lookup(root, b"a")?.id();
    /// inodes.rename((root, b"old"), (a, b"new"), RenameMode::NoReplace)?;
    /// assert_eq!(fs.read("a/new")?, b"text");
    /// # Ok(())
    /// # }
    /// ```
    pub fn rename(self, from: (InodeId, &[u8]), to: (InodeId, &[u8]), mode: RenameMode) -> Result<()> {
        self.on(from.0.number, |engine, ctx| engine.rename(ctx, from, to, mode))
    }

    /// The next entries of a directory from position `from` (0 at first), without `.` and `..`.
    /// Returns up to `most` entries, and a few more if they have the same position as the last one.
    /// Each entry carries the position after it ([`DirEntry::next`](blockyard_engine::DirEntry)).
    /// The second value is the position from which to continue, or `None` at the end. Positions
    /// stay valid when entries are added or removed.
    ///
    /// If an error occurs after some entries were read, this call returns those entries, and a
    /// later call fails.
    ///
    /// # Errors
    /// As [`FileSystem::read_dir`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// for number in 0..100 {
    ///     fs.write(format!("file-{number}"), "text")?;
    /// }
    /// let (mut names, mut from) = (Vec::new(), Some(0));
    /// while let Some(position) = from {
    ///     let (entries, next) = inodes.read_dir(root, position, 10)?;
    ///     names.extend(entries.into_iter().map(|entry| entry.name));
    ///     from = next;
    /// }
    /// assert_eq!(names.len(), 101, "and lost+found");
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_dir(self, id: InodeId, from: u64, most: usize) -> Result<(Vec<RawEntry>, Option<u64>)> {
        self.on(id.number, |engine, _| read_batch(engine, id.into(), from, most))
    }

    /// As [`ByInode::read_dir`], with `.` and `..`, which come first.
    ///
    /// # Errors
    /// As [`FileSystem::read_dir`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let (entries, _) = inodes.read_dir_with_dots(root, 0, 10)?;
    /// assert_eq!((&entries[0].name[..], &entries[1].name[..]), (&b"."[..], &b".."[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_dir_with_dots(
        self,
        id: InodeId,
        from: u64,
        most: usize,
    ) -> Result<(Vec<RawEntry>, Option<u64>)> {
        self.on(id.number, |engine, _| read_batch_with_dots(engine, id.into(), from, most))
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if there is no attribute of that name.
    ///
    /// ```
    /// use blockyard::XattrMode;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// inodes.set_xattr(root, b"user.note", b"mine", XattrMode::Set)?;
    /// assert_eq!(inodes.xattr(root, b"user.note")?, b"mine");
    /// # Ok(())
    /// # }
    /// ```
    pub fn xattr(self, id: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.on(id.number, |engine, _| engine.xattr(id, name))
    }

    /// The names of all extended attributes of an inode.
    ///
    /// # Errors
    /// `ESTALE` if the inode was deleted.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// fs.set_xattr("/", "user.note", "mine")?;
    /// assert_eq!(inodes.xattr_names(root)?, [b"user.note"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn xattr_names(self, id: InodeId) -> Result<Vec<Vec<u8>>> {
        self.on(id.number, |engine, _| engine.xattr_names(id))
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As [`FileSystem::set_xattr`]. With [`XattrMode::Create`], also if the attribute exists; with
    /// [`XattrMode::Replace`], also if it does not.
    ///
    /// ```
    /// use blockyard::XattrMode;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// inodes.set_xattr(root, b"user.note", b"mine", XattrMode::Create)?;
    /// assert!(inodes.set_xattr(root, b"user.note", b"other", XattrMode::Create).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_xattr(self, id: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.on(id.number, |engine, ctx| engine.set_xattr(ctx, id, name, value, mode))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`FileSystem::remove_xattr`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// fs.set_xattr("/", "user.note", "mine")?;
    /// inodes.remove_xattr(root, b"user.note")?;
    /// assert!(inodes.xattr_names(root)?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_xattr(self, id: InodeId, name: &[u8]) -> Result<()> {
        self.on(id.number, |engine, ctx| engine.remove_xattr(ctx, id, name))
    }

    fn on<T>(
        self,
        inode: InodeNr,
        operation: impl FnOnce(&Engine, &OpContext) -> std::result::Result<T, EngineError>,
    ) -> Result<T> {
        self.fs.run(operation).map_err(|reason| Error::of_inode(inode, reason))
    }
}
