//! An open image, and the operations on it by path.

mod attributes;
mod content;
mod names;
mod open;
mod trees;
mod xattrs;

use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;

use blockyard_disk::FileType;
use blockyard_engine::{Error as EngineError, FileSystem as Engine, Found, InodeId, OpContext, Statistics};
use blockyard_inspect::path::LastLink;

use crate::context::Context;
use crate::error::{Bare, Error, Reason, Result};
use crate::instance::Instance;
use crate::paths::Place;
use crate::reference::{Access, Reference};

/// How many times an operation on a path is tried while other threads keep changing the path. After
/// that it fails with "not found".
const TRIES: usize = 100;

/// An open ext2, ext3 or ext4 image.
///
/// Clones are cheap, and each one is the same open image. Open files keep the image open, too.
/// [`FileSystem::close`] closes the image for all clones and files. Otherwise it closes when the
/// last of them is dropped. All methods may be called from many threads.
///
/// ```
/// use blockyard::FileSystem;
///
/// # fn main() -> blockyard::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let image = folder.path().join("disk.img");
/// let fs = FileSystem::make_image(&image, 32 << 20)?;
/// std::thread::scope(|scope| {
///     for number in 0..4 {
///         let fs = &fs;
///         scope.spawn(move || fs.write(format!("part-{number}"), [number; 4096]));
///     }
/// });
/// assert_eq!(fs.read_dir("/")?.count(), 5, "four files and lost+found");
/// fs.close()
/// # }
/// ```
#[derive(Clone)]
pub struct FileSystem {
    instance: Arc<Instance>,
    context: Context,
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSystem").field("context", &self.context).finish_non_exhaustive()
    }
}

impl FileSystem {
    pub(crate) fn new(instance: Instance, context: Context) -> Self {
        Self { instance: Arc::new(instance), context }
    }

    /// The same open image, used for another user, with another clock or on another CPU slot.
    ///
    /// ```
    /// use blockyard::Context;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let theirs = fs.with_context(Context::new().user(1000, 1000));
    /// theirs.write("file", "text")?;
    /// assert_eq!(fs.metadata("file")?.uid(), 1000);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_context(&self, context: Context) -> Self {
        Self { instance: Arc::clone(&self.instance), context }
    }

    /// Writes everything, marks the image clean and closes it for everyone, open files included.
    /// Waits for operations that are running. Nothing is written to an image that was opened
    /// read-only. Returns an error if data cannot be written; dropping the last clone would only
    /// log it.
    ///
    /// # Errors
    /// A device error; the instance became read-only after a failed operation; or it is already
    /// closed.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// fs.close()?;
    /// assert!(file.write_at(b"late", 0).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(self) -> Result<()> {
        self.instance.close(&self.context.now()).map_err(Error::whole)
    }

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// As [`FileSystem::close`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", b"content")?;
    /// fs.sync()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync(&self) -> Result<()> {
        self.with_engine(Engine::sync)
    }

    /// Commits pending frees, then discards the free blocks in a range of bytes of the image, as
    /// `fstrim` does. An image file gets holes there and takes less space on its host. Free runs of
    /// less than `at_least` bytes are skipped. A group whose free blocks were all discarded earlier
    /// is skipped, too, if nothing in it was freed after that. Returns the number of bytes
    /// discarded.
    ///
    /// # Errors
    /// The range holds no block of the file system; `at_least` is longer than a group; the image is
    /// open read-only; or a device error.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("large", vec![7; 1 << 20])?;
    /// fs.sync()?;
    /// fs.remove_file("large")?;
    /// assert!(fs.trim(.., 0)? >= 1 << 20);
    /// assert_eq!(fs.trim(.., 0)?, 0, "nothing became free since");
    /// # Ok(())
    /// # }
    /// ```
    pub fn trim(&self, bytes: impl RangeBounds<u64>, at_least: u64) -> Result<u64> {
        let start = match bytes.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match bytes.end_bound() {
            Bound::Included(&at) => at.saturating_add(1),
            Bound::Excluded(&at) => at,
            Bound::Unbounded => u64::MAX,
        };
        self.with_engine(|engine, ctx| {
            engine.commit(ctx)?;
            engine.trim(ctx, start..end, at_least)
        })
    }

    /// Sizes and counts, as `statfs` reports them.
    ///
    /// # Errors
    /// The file system was closed.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let room = fs.statfs()?;
    /// assert!(room.blocks_available < room.blocks && room.name_max == 255);
    /// # Ok(())
    /// # }
    /// ```
    pub fn statfs(&self) -> Result<Statistics> {
        self.with_engine(|engine, _| Ok(engine.statistics()))
    }

    /// Whether changes are refused: the image was opened read-only, has features that allow only
    /// reading, or became read-only after a failed operation.
    ///
    /// # Errors
    /// The file system was closed.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// assert!(!fs.is_read_only()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_read_only(&self) -> Result<bool> {
        self.with_engine(|engine, _| Ok(engine.is_read_only()))
    }

    /// Runs an operation of the engine that this crate does not wrap. The closure must use only the
    /// engine that it gets, not this `FileSystem` or its files.
    ///
    /// # Errors
    /// The operation failed, or the file system was closed.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.with_engine(|engine, _| Ok(engine.superblock().geometry().inodes_count()))?;
    /// assert!(inodes > 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_engine<T>(
        &self,
        operation: impl FnOnce(&Engine, &OpContext) -> std::result::Result<T, EngineError>,
    ) -> Result<T> {
        self.run(operation).map_err(Error::whole)
    }

    /// Runs one operation. It must not start another one: see [`SharedEngine::run`].
    ///
    /// [`SharedEngine::run`]: crate::shared_engine::SharedEngine::run
    pub(crate) fn run<T, E: Into<Reason>>(
        &self,
        operation: impl FnOnce(&Engine, &OpContext) -> std::result::Result<T, E>,
    ) -> Bare<T> {
        let ctx = self.context.now();
        self.instance.run(&ctx, |engine| operation(engine, &ctx))
    }

    /// Adds the path to an error.
    #[expect(clippy::unused_self, reason = "`fs.at(path, ..)` reads well in its callers")]
    pub(crate) fn at<T>(&self, path: &Path, done: Bare<T>) -> Result<T> {
        done.map_err(|reason| Error::at(path, reason))
    }

    /// Looks up a path.
    pub(crate) fn locate(&self, path: &Path, last: LastLink) -> Bare<Place> {
        self.run(|engine, _| Place::locate(engine, path, last))
    }

    /// Opens a reference to an inode.
    pub(crate) fn reference(&self, id: InodeId, access: Access) -> Bare<Reference> {
        Reference::open(&self.instance, &self.context, id, access)
    }

    /// Wraps a reference that the engine already holds.
    pub(crate) fn opened_reference(&self, id: InodeId, access: Access) -> Reference {
        Reference::to_opened(&self.instance, &self.context, id, access)
    }

    /// Runs an operation that first looks up names. Repeats it if an inode is deleted between its
    /// look-up and its use, or if the operation returns `None`. Gives up after [`TRIES`] attempts.
    pub(crate) fn again_while_stale<T>(&self, mut attempt: impl FnMut() -> Bare<Option<T>>) -> Bare<T> {
        for _ in 0..TRIES {
            match attempt() {
                Ok(Some(done)) => return Ok(done),
                Ok(None) | Err(Reason::FileSystem(EngineError::StaleInode(_))) => {}
                Err(error) => return Err(error),
            }
        }
        Err(EngineError::NotFound.into())
    }

    /// Runs an operation on the inode that a path leads to.
    pub(crate) fn on_found<T>(
        &self,
        path: &Path,
        last: LastLink,
        operation: impl Fn(&Engine, &OpContext, Found) -> std::result::Result<T, EngineError>,
    ) -> Result<T> {
        self.on_path(path, |engine, ctx| {
            let found = Place::locate(engine, path, last)?.found().ok_or(EngineError::NotFound)?;
            Ok(operation(engine, ctx, found)?)
        })
    }

    /// Runs an operation that removes or renames the last name of a path.
    pub(crate) fn on_name<T>(
        &self,
        path: &Path,
        operation: impl Fn(&Engine, &OpContext, &Place) -> Bare<T>,
    ) -> Result<T> {
        self.on_path(path, |engine, ctx| operation(engine, ctx, &Place::locate_name(engine, path)?))
    }

    /// Runs an operation that creates a name, of a new or an existing inode of type `kind`. It is
    /// an error if the path exists already.
    pub(crate) fn on_new<T>(
        &self,
        path: &Path,
        kind: FileType,
        operation: impl Fn(&Engine, &OpContext, &Place) -> Bare<T>,
    ) -> Result<T> {
        self.on_path(path, |engine, ctx| operation(engine, ctx, &Place::locate_new(engine, path, kind)?))
    }

    fn on_path<T>(&self, path: &Path, operation: impl Fn(&Engine, &OpContext) -> Bare<T>) -> Result<T> {
        let done = self.again_while_stale(|| self.run(|engine, ctx| operation(engine, ctx).map(Some)));
        self.at(path, done)
    }
}
