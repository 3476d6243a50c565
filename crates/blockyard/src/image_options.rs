//! Options for opening or making an image, on a path, an open file, memory or any device.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZero;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blockyard_alloc::Policy;
use blockyard_device::{BlockDevice, FileDevice, ImagePath, MemoryDevice};
use blockyard_engine::{DataMode, FileSystem as Engine, OnDamage, OpenOptions as EngineOptions, mkfs};

use crate::background::Alarm;
use crate::context::Context;
use crate::error::{Bare, Error, Result};
use crate::file_system::FileSystem;
use crate::instance::Instance;

/// The largest number of CPU slots. Each slot takes memory in many structures.
const CPUS_MAX: u32 = 1024;

/// How to open or make an image.
///
/// ```
/// use blockyard::{ImageOptions, mkfs};
///
/// # fn main() -> blockyard::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let image = folder.path().join("disk.img");
/// let small = mkfs::Options::ext4().block_size(1024).label("data");
/// ImageOptions::new().mkfs(small).make(&image, 16 << 20)?.close()?;
/// let fs = ImageOptions::new().read_only(true).open(&image)?;
/// assert_eq!(fs.statfs()?.block_size, 1024);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImageOptions {
    engine: EngineOptions,
    offset: u64,
    background: bool,
    context: Context,
    mkfs: Option<mkfs::Options>,
}

impl Default for ImageOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(4, NonZero::get);
        let engine = EngineOptions { cpus: u32::try_from(cpus).unwrap_or(4), ..EngineOptions::default() };
        Self { engine, offset: 0, background: false, context: Context::new(), mkfs: None }
    }
}

impl ImageOptions {
    /// The defaults: the whole of a file or device, for reading and writing, with a journal and
    /// Linux's allocation policy.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().make_in_memory(16 << 20)?;
    /// assert!(!fs.is_read_only()?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the image without writing to it. A journal that needs recovery is replayed in memory.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let image = folder.path().join("disk.img");
    /// # blockyard::FileSystem::make_image(&image, 16 << 20)?.close()?;
    /// let fs = ImageOptions::new().read_only(true).open(&image)?;
    /// assert_eq!(fs.create("file").unwrap_err().errno(), 30);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn read_only(mut self, yes: bool) -> Self {
        self.engine.read_only = yes;
        self
    }

    /// Opens the image even while another instance or process writes to it. What is read may then
    /// be inconsistent. Has an effect only if the image is opened read-only.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let image = folder.path().join("disk.img");
    /// let writer = blockyard::FileSystem::make_image(&image, 16 << 20)?;
    /// assert!(ImageOptions::new().read_only(true).open(&image).unwrap_err().is_busy());
    /// let reader = ImageOptions::new().read_only(true).shared(true).open(&image)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn shared(mut self, yes: bool) -> Self {
        self.engine.shared = yes;
        self
    }

    /// The byte of the file or device where the image begins. When an image is opened and a
    /// partition begins at this byte, the image ends where the partition ends. Making an image
    /// ignores partitions.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let disk = folder.path().join("disk.img");
    /// ImageOptions::new().offset(1 << 20).make(&disk, 16 << 20)?.close()?;
    /// let fs = ImageOptions::new().offset(1 << 20).open(&disk)?;
    /// assert!(fs.exists("lost+found")?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn offset(mut self, bytes: u64) -> Self {
        self.offset = bytes;
        self
    }

    /// Starts threads that do the background work of a mount: they commit old transactions, and
    /// write back dirty data that is old or exceeds half of [`ImageOptions::dirty_data_bytes`].
    ///
    /// Without these threads, an old transaction is committed by the next operation that changes
    /// something, and data is not written back because of its age. Data is written back if space
    /// or memory runs short, if a caller asks for it, or if it replaces older content (its file is
    /// renamed over another, or closed after it was truncated to nothing).
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().background(true).make_in_memory(16 << 20)?;
    /// fs.write("file", "durable in some seconds")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn background(mut self, yes: bool) -> Self {
        self.background = yes;
        self
    }

    /// The user, the clock and the CPU slot with which the file system is used.
    ///
    /// ```
    /// use blockyard::{Context, ImageOptions};
    /// # fn main() -> blockyard::Result<()> {
    /// let theirs = Context::new().user(1000, 1000);
    /// let fs = ImageOptions::new().context(theirs).make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// assert_eq!(fs.metadata("file")?.uid(), 1000);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn context(mut self, context: Context) -> Self {
        self.context = context;
        self
    }

    /// The file system to make: block size, features, label and so on. The default is
    /// [`mkfs::Options::ext4`] with a random UUID.
    ///
    /// ```
    /// use blockyard::{ImageOptions, mkfs};
    /// # fn main() -> blockyard::Result<()> {
    /// let older = mkfs::Options::ext4().block_size(1024).features("^metadata_csum,^64bit");
    /// let fs = ImageOptions::new().mkfs(older).make_in_memory(16 << 20)?;
    /// assert_eq!(fs.statfs()?.block_size, 1024);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn mkfs(mut self, options: mkfs::Options) -> Self {
        self.mkfs = Some(options);
        self
    }

    /// The allocation policy: how blocks and inodes are chosen.
    ///
    /// ```
    /// use blockyard::{ImageOptions, alloc::Policy};
    /// let options = ImageOptions::new().policy(Policy::parse("yard").unwrap());
    /// ```
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.engine.policy = policy;
        self
    }

    /// How the journal treats file data.
    ///
    /// ```
    /// use blockyard::{DataMode, ImageOptions};
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().data_mode(DataMode::Journal).make_in_memory(16 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn data_mode(mut self, mode: DataMode) -> Self {
        self.engine.data = mode;
        self
    }

    /// The most bytes of metadata to keep in the cache.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().cache_bytes(4 << 20).make_in_memory(1 << 30)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn cache_bytes(mut self, bytes: usize) -> Self {
        self.engine.cache_bytes = bytes;
        self
    }

    /// The most bytes of dirty file data. Writes that would exceed it first write data back.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().dirty_data_bytes(1 << 20).make_in_memory(16 << 20)?;
    /// fs.write("file", vec![7; 4 << 20])?;
    /// assert!(fs.open("file")?.extents()?[0].physical.is_some(), "written back to make room");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn dirty_data_bytes(mut self, bytes: usize) -> Self {
        self.engine.dirty_data_bytes = bytes;
        self
    }

    /// Bytes of clean file data to cache. The default is 0, which keeps none: the operating system
    /// caches image files already.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().clean_data_bytes(8 << 20).make_in_memory(16 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn clean_data_bytes(mut self, bytes: usize) -> Self {
        self.engine.clean_data_bytes = bytes;
        self
    }

    /// The age at which a transaction of the journal is committed, in whole seconds (fractions are
    /// cut off).
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// use std::time::Duration;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new()
    ///     .background(true)
    ///     .commit_interval(Duration::from_secs(1))
    ///     .make_in_memory(16 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn commit_interval(mut self, age: Duration) -> Self {
        self.engine.commit_interval_seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        self
    }

    /// The age at which the threads of [`ImageOptions::background`] write file data back, in whole
    /// seconds (fractions are cut off).
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// use std::time::Duration;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new()
    ///     .background(true)
    ///     .write_back_age(Duration::from_secs(5))
    ///     .make_in_memory(16 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn write_back_age(mut self, age: Duration) -> Self {
        self.engine.data_expires_seconds = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
        self
    }

    /// The number of CPU slots, at most 1024. A slot stands for a CPU in the allocator and in
    /// counters. If there are more threads than slots, threads share slots.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().cpus(1).make_in_memory(16 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn cpus(mut self, slots: u32) -> Self {
        self.engine.cpus = if slots < CPUS_MAX { slots } else { CPUS_MAX };
        self
    }

    /// What to do when an operation finds that the image is damaged.
    ///
    /// ```
    /// use blockyard::{ImageOptions, OnDamage};
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().on_damage(OnDamage::AsSuperblock).make_in_memory(16 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn on_damage(mut self, what: OnDamage) -> Self {
        self.engine.on_damage = what;
        self
    }

    /// The mount point to record in the superblock (`s_last_mounted`).
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().last_mounted("/mnt/data").make_in_memory(16 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn last_mounted(mut self, place: impl AsRef<Path>) -> Self {
        self.engine.last_mounted = Some(place.as_ref().as_os_str().as_bytes().to_vec());
        self
    }

    /// Whether blocks are chosen at write-back, which gives better layouts, or at each write.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().delayed_allocation(false).make_in_memory(16 << 20)?;
    /// fs.write("file", [7; 4096])?;
    /// assert!(fs.open("file")?.extents()?[0].physical.is_some(), "placed with the write");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn delayed_allocation(mut self, yes: bool) -> Self {
        self.engine.delayed_allocation = yes;
        self
    }

    /// The seed of random choices. For repeatable runs, also give the [`Context`] a fixed time and
    /// CPU slot.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = ImageOptions::new().seed(7).make_in_memory(16 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.engine.seed = seed;
        self
    }

    /// Sets all options of the engine, and so replaces what other methods set in them before. The
    /// offset, the background threads, the context and the options of mkfs stay as they are.
    ///
    /// ```
    /// use blockyard::{ImageOptions, engine};
    /// # fn main() -> blockyard::Result<()> {
    /// let options = engine::OpenOptions { cpus: 8, ..engine::OpenOptions::default() };
    /// let fs = ImageOptions::new().engine(options).make_in_memory(16 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn engine(mut self, options: EngineOptions) -> Self {
        self.engine = options;
        self
    }

    /// Opens an image in a file or on a block device.
    ///
    /// # Errors
    /// As [`FileSystem::open_image`].
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let image = folder.path().join("disk.img");
    /// # blockyard::FileSystem::make_image(&image, 16 << 20)?.close()?;
    /// let fs = ImageOptions::new().open(&image)?;
    /// fs.write("file", "text")?;
    /// fs.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(self, image: impl AsRef<Path>) -> Result<FileSystem> {
        let image = image.as_ref();
        self.open_path(image).map_err(|reason| Error::at(image, reason))
    }

    fn open_path(self, image: &Path) -> Bare<FileSystem> {
        let place = ImagePath::at(image, self.offset);
        let device = if self.engine.read_only {
            let device = place.open_read_only()?;
            if !self.engine.shared {
                device.lock_for_reading()?;
            }
            device
        } else {
            place.open()?
        };
        self.open_bare(Arc::new(device))
    }

    /// Opens an image in a file that is already open. If the file is open only for reading, the
    /// image is open read-only.
    ///
    /// # Errors
    /// As [`FileSystem::open_image`]; or the file is open only for writing, or to append.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let image = folder.path().join("disk.img");
    /// # blockyard::FileSystem::make_image(&image, 16 << 20)?.close()?;
    /// let fs = blockyard::ImageOptions::new().open_file(std::fs::File::open(&image)?)?;
    /// assert!(fs.is_read_only()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_file(self, file: fs::File) -> Result<FileSystem> {
        self.open_opened(file).map_err(Error::whole)
    }

    fn open_opened(self, file: fs::File) -> Bare<FileSystem> {
        let device = FileDevice::from_file(file)?;
        if device.is_read_only() && !self.engine.shared {
            device.lock_for_reading()?;
        }
        let device = device.part_at(self.offset)?;
        self.open_bare(Arc::new(device))
    }

    /// Opens an image on any device. [`ImageOptions::offset`] does not apply.
    ///
    /// # Errors
    /// As [`FileSystem::open_image`].
    ///
    /// ```
    /// use blockyard::{ImageOptions, device::MemoryDevice};
    /// use std::sync::Arc;
    ///
    /// # fn main() -> blockyard::Result<()> {
    /// let memory = Arc::new(MemoryDevice::new(16 << 20));
    /// ImageOptions::new().make_on(Arc::clone(&memory))?.close()?;
    /// let fs = ImageOptions::new().open_device(Arc::clone(&memory))?;
    /// assert!(ImageOptions::new().open_device(memory).unwrap_err().is_busy());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_device(self, device: impl BlockDevice + 'static) -> Result<FileSystem> {
        self.open_bare(Arc::new(device)).map_err(Error::whole)
    }

    /// Makes an image of `bytes` bytes in a file or on a block device, and opens it. A file loses
    /// all content from [`ImageOptions::offset`] on. A block device must have `bytes` bytes from
    /// that offset on, and keeps the content after them.
    ///
    /// # Errors
    /// As [`FileSystem::make_image`]; or the options of [`ImageOptions::mkfs`] are wrong.
    ///
    /// ```
    /// use blockyard::ImageOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let image = folder.path().join("disk.img");
    /// let fs = ImageOptions::new().make(&image, 1 << 30)?;
    /// fs.close()?;
    /// assert_eq!(std::fs::metadata(&image).unwrap().len(), 1 << 30);
    /// # Ok(())
    /// # }
    /// ```
    pub fn make(self, image: impl AsRef<Path>, bytes: u64) -> Result<FileSystem> {
        let image = image.as_ref();
        self.make_file(image, bytes).map_err(|reason| Error::at(image, reason))
    }

    /// Plans the file system first. If that fails, the file keeps its content.
    fn make_file(mut self, image: &Path, bytes: u64) -> Bare<FileSystem> {
        let options = self.mkfs.take().unwrap_or_else(fresh);
        mkfs::plan(bytes, &options).map_err(|error| with_smallest(error, bytes, &options))?;
        let device = ImagePath::at(image, self.offset).create(bytes)?;
        self.mkfs(options).make_bare(Arc::new(device))
    }

    /// Makes an image of `bytes` bytes in memory and opens it. The image is gone when the file
    /// system closes. To keep it, make it on a [`MemoryDevice`] with [`ImageOptions::make_on`],
    /// and [save](MemoryDevice::save) the device once the image is closed.
    ///
    /// # Errors
    /// The size is too small or too large, or the options of [`ImageOptions::mkfs`] are wrong.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = blockyard::ImageOptions::new().make_in_memory(1 << 40)?;
    /// assert!(fs.statfs()?.blocks_free > 200_000_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn make_in_memory(self, bytes: u64) -> Result<FileSystem> {
        self.make_bare(Arc::new(MemoryDevice::new(bytes))).map_err(Error::whole)
    }

    /// Makes an image on any device and opens it. The device's content is lost.
    /// [`ImageOptions::offset`] does not apply.
    ///
    /// # Errors
    /// As [`ImageOptions::make`].
    ///
    /// ```
    /// use blockyard::{ImageOptions, device::MemoryDevice};
    /// use std::sync::Arc;
    /// # fn main() -> blockyard::Result<()> {
    /// let memory = Arc::new(MemoryDevice::new(1 << 40));
    /// ImageOptions::new().make_on(Arc::clone(&memory))?.close()?;
    /// assert!(memory.resident_bytes() < 64 << 20, "a device in memory keeps holes");
    /// # Ok(())
    /// # }
    /// ```
    pub fn make_on(self, device: impl BlockDevice + 'static) -> Result<FileSystem> {
        self.make_bare(Arc::new(device)).map_err(Error::whole)
    }

    fn make_bare(mut self, device: Arc<dyn BlockDevice>) -> Bare<FileSystem> {
        let options = self.mkfs.take().unwrap_or_else(fresh);
        // Fails if this process has the device open already.
        let claim = blockyard_device::Claim::write(&device)?;
        mkfs::format(&*device, &options).map_err(|error| with_smallest(error, device.size(), &options))?;
        // `open_bare` claims the device again.
        drop(claim);
        self.open_bare(device)
    }

    fn open_bare(mut self, device: Arc<dyn BlockDevice>) -> Bare<FileSystem> {
        let alarm = Alarm::new();
        if self.background {
            self.engine.on_much_dirty_data = Some(alarm.notice());
            self.engine.has_timer = true;
        }
        let engine = Engine::open(device, self.engine, &self.context.now())?;
        let instance = Instance::new(engine);
        if self.background {
            instance.start_background(&alarm, &self.context)?;
        }
        Ok(FileSystem::new(instance, self.context))
    }
}

impl FileSystem {
    /// Opens an image, in a file or on a block device, for reading and writing. A journal that
    /// needs recovery is replayed. [`ImageOptions`] has all other options.
    ///
    /// # Errors
    /// The file is missing or holds no file system; the file system is damaged or has unsupported
    /// features; or the image is open elsewhere or mounted by the kernel ([`Error::is_busy`]).
    ///
    /// ```no_run
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = blockyard::FileSystem::open_image("disk.img")?;
    /// println!("{}", fs.read_to_string("etc/hostname")?);
    /// fs.close()
    /// # }
    /// ```
    pub fn open_image(image: impl AsRef<Path>) -> Result<Self> {
        ImageOptions::new().open(image)
    }

    /// Makes an ext4 image of `bytes` bytes and opens it. The previous content of the file is lost.
    ///
    /// The smallest image has 104 KiB. Images of 2 MiB and more have a journal. With other options
    /// ([`ImageOptions::mkfs`]) the smallest size may differ; [`mkfs::smallest`] finds it.
    ///
    /// # Errors
    /// The file cannot be created, the file is in use, or the size is too small or too large. If
    /// the size is too small, the error names the smallest possible size.
    ///
    /// ```no_run
    /// # fn main() -> blockyard::Result<()> {
    /// let fs = blockyard::FileSystem::make_image("disk.img", 1 << 30)?;
    /// fs.write("hello", "world")?;
    /// fs.close()
    /// # }
    /// ```
    pub fn make_image(image: impl AsRef<Path>, bytes: u64) -> Result<Self> {
        ImageOptions::new().make(image, bytes)
    }
}

/// Adds the smallest possible size to an error about a size that is too small.
fn with_smallest(error: mkfs::Error, bytes: u64, options: &mkfs::Options) -> mkfs::Error {
    let mkfs::Error::Size(problem) = error else { return error };
    match mkfs::smallest(options) {
        Some(least) if least > bytes => {
            mkfs::Error::Size(format!("{problem}; the smallest with these options has {least} bytes"))
        }
        _ => mkfs::Error::Size(problem),
    }
}

/// Options for ext4 with a random UUID and hash seed, created at the present time.
fn fresh() -> mkfs::Options {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    mkfs::Options::ext4().identity(RandomState::new().hash_one(now), now)
}
