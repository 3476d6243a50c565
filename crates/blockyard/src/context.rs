//! The user, the time and the CPU slot with which operations run.

use std::fmt;
use std::sync::Arc;

use blockyard_disk::Timestamp;
use blockyard_engine::OpContext;
use blockyard_sync::CpuSlot;

/// The source of the current time.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Clock {
    /// The system's clock.
    #[default]
    System,
    /// Always this time. Repeatable runs need a fixed time.
    Fixed(Timestamp),
    /// The time that this function returns.
    Custom(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

impl Clock {
    fn now(&self) -> Timestamp {
        match self {
            Self::System => OpContext::system().now,
            Self::Fixed(time) => *time,
            Self::Custom(clock) => clock(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("System"),
            Self::Fixed(time) => f.debug_tuple("Fixed").field(time).finish(),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// The user for whom operations run, the clock that they use, and their CPU slot: a number that
/// stands for a CPU in the allocator and in counters. The default is root, the system's clock, and
/// a slot for each thread.
///
/// New files belong to the context's user and group. In a directory with the set-group-ID bit they
/// belong to the directory's group instead. Only root may use the reserved blocks, unless
/// [`Context::privileged`] says otherwise. Permissions and access control lists are not checked.
///
/// ```
/// use blockyard::{Clock, Context, ImageOptions, Timestamp};
///
/// # fn main() -> blockyard::Result<()> {
/// let context = Context::new().user(1000, 100).clock(Clock::Fixed(Timestamp::from_seconds(1_700_000_000)));
/// let fs = ImageOptions::new().make_in_memory(16 << 20)?.with_context(context);
/// fs.write("note", b"mine")?;
/// let found = fs.metadata("note")?;
/// assert_eq!((found.uid(), found.gid()), (1000, 100));
/// assert_eq!(found.attributes().modified.seconds, 1_700_000_000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Context {
    uid: u32,
    gid: u32,
    privileged: bool,
    caches_writes: bool,
    clock: Clock,
    slot: Option<u32>,
}

impl Default for Context {
    fn default() -> Self {
        Self { uid: 0, gid: 0, privileged: true, caches_writes: false, clock: Clock::System, slot: None }
    }
}

impl Context {
    /// The default: root, the system's clock, and a CPU slot for each thread.
    ///
    /// ```
    /// use blockyard::Context;
    /// let context = Context::new().user(1000, 1000);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the owner and group of new files (see [`Context`] for directories with the set-group-ID
    /// bit). Also allows the use of the reserved blocks if `uid` is 0, and forbids it otherwise;
    /// [`Context::privileged`] can change that afterwards.
    ///
    /// ```
    /// use blockyard::Context;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let theirs = fs.with_context(Context::new().user(1000, 100));
    /// theirs.create_dir("home")?;
    /// assert_eq!(fs.metadata("home")?.gid(), 100);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn user(mut self, uid: u32, gid: u32) -> Self {
        (self.uid, self.gid, self.privileged) = (uid, gid, uid == 0);
        self
    }

    /// Whether operations may use the blocks reserved for root, whoever the user is.
    ///
    /// ```
    /// use blockyard::Context;
    /// let builder = Context::new().user(1000, 1000).privileged(true);
    /// ```
    #[must_use]
    pub const fn privileged(mut self, yes: bool) -> Self {
        self.privileged = yes;
        self
    }

    /// Whether the caller caches writes, as a kernel does, and passes them on later. Then a write
    /// does not change the file's times: the caller sets them. A write at an offset (not an append)
    /// also succeeds on an immutable file, because the caller may have accepted the data before the
    /// file became immutable.
    ///
    /// ```
    /// use blockyard::Context;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// let before = fs.metadata("file")?.modified();
    /// fs.with_context(Context::new().caches_writes(true)).write("file", "other")?;
    /// assert_eq!(fs.metadata("file")?.modified(), before);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn caches_writes(mut self, yes: bool) -> Self {
        self.caches_writes = yes;
        self
    }

    /// The source of the current time.
    ///
    /// ```
    /// use blockyard::{Clock, Context, Timestamp};
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let clock = Clock::Fixed(Timestamp::from_seconds(1_000_000_000));
    /// fs.with_context(Context::new().clock(clock)).write("file", "text")?;
    /// assert_eq!(fs.metadata("file")?.attributes().modified.seconds, 1_000_000_000);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Uses one CPU slot for all threads instead of one for each. The slot affects which blocks are
    /// chosen, so set it for repeatable runs.
    ///
    /// ```
    /// use blockyard::Context;
    /// let always_the_same = Context::new().cpu_slot(0);
    /// ```
    #[must_use]
    pub const fn cpu_slot(mut self, slot: u32) -> Self {
        self.slot = Some(slot);
        self
    }

    /// The context in the engine's form, with the current time.
    pub(crate) fn now(&self) -> OpContext {
        OpContext {
            cpu: self.slot.map_or_else(CpuSlot::of_thread, CpuSlot::new),
            uid: self.uid,
            gid: self.gid,
            privileged: self.privileged,
            caches_writes: self.caches_writes,
            ..OpContext::root_at(self.clock.now())
        }
    }
}
