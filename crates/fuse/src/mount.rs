//! Mounting an image, serving it, and unmounting it cleanly.
//!
//! The image is opened first, so that its errors are reported before anything is mounted. Root
//! mounts directly; other users go through fusermount3. Once the kernel has ended the connection,
//! remembered inodes are released and the image is closed.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use blockyard::{FileSystem, ImageOptions, OnDamage};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::adapter::{Adapter, Connection, Helped, Shared};
use crate::figures::Figures;
use crate::in_force::options_in_force;
use crate::options::Options;
use crate::record::Recorder;
use crate::server::Server;

/// The fewest threads that receive requests.
const RECEIVERS_MIN: usize = 4;
/// The most threads that receive requests.
const RECEIVERS_MAX: usize = 16;

/// Why a mount failed, at its start or its end.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The image cannot be opened, or cannot be closed cleanly.
    #[error(transparent)]
    Image(#[from] blockyard::Error),
    /// The directory cannot be mounted on.
    #[error("{}: {source}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// FUSE cannot be used.
    #[error("cannot mount at {}: {source}", directory.display())]
    Fuse {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The trace file, or the thread that writes it, cannot be made.
    #[error("{}: {source}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The connection to the kernel broke, or no thread could be started to serve it.
    #[error("the connection to the kernel ended: {0}")]
    Connection(io::Error),
}

/// What to mount, where and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// A file or block device.
    pub image: PathBuf,
    /// The directory.
    pub directory: PathBuf,
    /// The mount options.
    pub options: Options,
    /// The file in which requests are recorded as a trace. An existing file is replaced. `None`
    /// records nothing.
    pub record: Option<PathBuf>,
}

/// A mounted image.
pub struct Mount {
    connection: Connection,
    handle: Handle,
    receivers: usize,
}

/// What other threads can do with a mount.
#[derive(Clone)]
pub struct Handle {
    server: Arc<Server>,
    figures: Arc<Figures>,
    directory: PathBuf,
    /// The state of the session, which is dropped once the mount is no longer served.
    shared: Weak<Shared>,
    /// The mount's own device number; `None` before it is mounted.
    device: Option<DeviceNumber>,
}

/// A mount that its own threads serve.
pub struct Serving {
    thread: JoinHandle<io::Result<()>>,
    handle: Handle,
}

impl Mount {
    /// Opens the image and mounts it.
    ///
    /// # Errors
    /// [`MountError`]; nothing is mounted then.
    pub fn new(request: &Request) -> Result<Self, MountError> {
        let directory = directory_of(request)?;
        Self::over(open(request, &directory)?, request)
    }

    /// Mounts a file system that is already open, on any device. Only the request's options that
    /// belong to the mount itself apply. The request's image is only the source that `/proc/mounts`
    /// shows.
    ///
    /// # Errors
    /// [`MountError`]; nothing is mounted then.
    pub fn over(fs: FileSystem, request: &Request) -> Result<Self, MountError> {
        let directory = directory_of(request)?;
        let figures = Arc::new(Figures::default());
        let server = Arc::new(Server::new(fs, request.options.access_times)?);
        let cpus = thread::available_parallelism().map_or(RECEIVERS_MIN, NonZero::get);
        let receivers = (2 * cpus).clamp(RECEIVERS_MIN, RECEIVERS_MAX);
        let recorder = request.record.as_deref().map(|path| {
            Recorder::new(path).map_err(|source| MountError::Trace { path: path.to_owned(), source })
        });
        let recorder = recorder.transpose()?;
        let adapter = Adapter::new(Arc::clone(&server), Arc::clone(&figures), recorder, receivers);
        let shared = adapter.shared();
        let mut handle = Handle { server, figures, directory, shared, device: None };
        let connected = connect(adapter, request, &handle, receivers);
        match connected {
            Ok((connection, device)) => {
                handle.device = Some(device);
                Ok(Self { connection, handle, receivers })
            }
            Err(source) => {
                let directory = handle.directory.clone();
                handle.close()?;
                Err(MountError::Fuse { directory, source })
            }
        }
    }

    /// A handle to use while the mount is served.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves the mount in threads of its own.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn spawn(self) -> Result<Serving, MountError> {
        let Self { connection, handle, receivers } = self;
        tracing::info!(directory = %handle.directory.display(), receivers, "mounted");
        let body = move || connection.run();
        let thread = thread::Builder::new().name("blockyard-mount".to_owned()).spawn(body);
        match thread {
            Ok(thread) => Ok(Serving { thread, handle }),
            Err(error) => {
                // The connection was moved into `body` and dropped with it.
                handle.close()?;
                Err(MountError::Connection(error))
            }
        }
    }
}

impl Serving {
    /// Whether the mount has ended: it was unmounted, or the connection broke.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the unmount, then closes the image.
    ///
    /// # Errors
    /// Errors of the connection or the device.
    pub fn wait(self) -> Result<(), MountError> {
        let Self { thread, handle } = self;
        let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
        let closed = handle.close();
        ended.map_err(MountError::Connection)?;
        closed?;
        Ok(())
    }
}

impl Handle {
    /// The mount point, as an absolute path.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The server that answers the mount's requests.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Counts and latencies of all requests so far.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Whether a failure made the file system read-only. Whoever supervises the mount polls this.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        // A closed file system has not failed.
        self.server.file_system().with_engine(|engine, _| Ok(engine.has_failed())).unwrap_or(false)
    }

    /// Makes the kernel show the mount as read-only. Its other [`Options`] stay as they are.
    ///
    /// # Errors
    /// `EBUSY` while files are open for writing; `EPERM` for users other than root; `EINVAL` if the
    /// mount is not at its directory any more; the errors of [`options_in_force`].
    pub fn show_read_only(&self) -> io::Result<()> {
        if !self.is_at(CWD, &self.directory) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        // A remount may have changed options since the mount.
        let present = options_in_force(&self.directory)?;
        let options = Options::parse([&*present]).map_err(io::Error::other)?;
        let flags = flags_of(&options, true);
        Ok(rustix::mount::mount_remount(&*self.directory, flags, c"")?)
    }

    /// A report for people: remembered inodes, open files, commits, the allocator's counters, and
    /// requests.
    #[must_use]
    pub fn report(&self) -> String {
        let (nodes, files) = self.server.counts();
        let of_engine = self.server.file_system().with_engine(|engine, _| {
            Ok(format!("{} commits\n{}", engine.commits(), engine.allocator().mb_stats()))
        });
        let of_engine = of_engine.unwrap_or_else(|error| format!("{error}\n"));
        format!(
            "{}: {nodes} inodes remembered, {files} files open, {of_engine}{}",
            self.directory.display(),
            self.figures.table()
        )
    }

    /// Unmounts. A mount that is still in use is detached, and its data is written back. Another
    /// mount that covers this one, or took its place, is left alone. After [`Unmounted::InUse`],
    /// call [`Handle::close`] instead of waiting for the users. Their later operations then fail.
    ///
    /// # Errors
    /// The caller may not unmount it, its directory cannot be opened, or fusermount3 cannot be run
    /// or fails.
    pub fn unmount(&self) -> io::Result<Unmounted> {
        let directory = &*self.directory;
        if !self.is_at(CWD, directory) {
            return Ok(self.unreachable());
        }
        match rustix::mount::unmount(directory, UnmountFlags::empty()) {
            Ok(()) => return Ok(Unmounted::Whole),
            Err(rustix::io::Errno::BUSY) => {}
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(self.unreachable()),
            Err(rustix::io::Errno::PERM) => return self.unmount_helped(),
            Err(errno) => return Err(errno.into()),
        }
        let place = File::open(directory)?;
        if !self.is_at(&place, Path::new("")) {
            return Ok(self.unreachable());
        }
        rustix::mount::unmount(directory, UnmountFlags::DETACH)?;
        self.take_written(&place);
        Ok(Unmounted::InUse)
    }

    /// Whether a path leads to this mount. Sends no request to the server, which may be stuck.
    fn is_at(&self, from: impl AsFd, path: &Path) -> bool {
        self.device.is_some() && device_at(from, path).ok() == self.device
    }

    /// Has the kernel write back the cached data of a mount that its path no longer leads to: the
    /// mount was detached or moved, or another mount covers it.
    fn unreachable(&self) -> Unmounted {
        tracing::warn!(directory = %self.directory.display(), "the mount is not there any more");
        if let Some(shared) = self.shared.upgrade() {
            shared.hand_over_all_cached();
        }
        Unmounted::InUse
    }

    /// Has the kernel write back the data that it still caches. If some cannot be written, the
    /// kernel reports the error to the writers, and the unmount goes on.
    fn take_written(&self, place: &File) {
        if let Err(error) = rustix::fs::syncfs(place.as_fd()) {
            tracing::warn!(directory = %self.directory.display(), %error, "some written data could not be kept");
        }
    }

    /// Unmounts for users other than root, through fusermount3, which runs as root.
    fn unmount_helped(&self) -> io::Result<Unmounted> {
        let quiet = |arguments: &[&str]| {
            let mut command = std::process::Command::new("fusermount3");
            command.args(arguments).arg("--").arg(&self.directory);
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            command.status().map(|status| status.success())
        };
        if quiet(&["-u", "-q"])? {
            return Ok(Unmounted::Whole);
        }
        let place = File::open(&self.directory)?;
        if !self.is_at(&place, Path::new("")) {
            return Ok(self.unreachable());
        }
        if !quiet(&["-u", "-q", "-z"])? {
            return Err(io::Error::other("fusermount3 could not unmount it"));
        }
        self.take_written(&place);
        Ok(Unmounted::InUse)
    }

    /// Closes the image, so that it is durable and clean. Requests fail from then on. A second call
    /// does nothing and returns false, even before the first one ends.
    ///
    /// # Errors
    /// A device error.
    pub fn close(&self) -> blockyard::Result<bool> {
        self.server.end();
        match self.server.file_system().clone().close() {
            Err(error) if matches!(error.reason(), blockyard::Reason::Closed) => Ok(false),
            closed => closed.map(|()| true),
        }
    }
}

/// How an unmount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount is gone, because nobody was using it.
    Whole,
    /// The path of its directory no longer leads to the mount. But the mount may still be in use:
    /// some of its files are open, another mount covers it, or it was moved.
    InUse,
}

/// The absolute path of the mount point.
fn directory_of(request: &Request) -> Result<PathBuf, MountError> {
    let wrong = |source| MountError::Directory { directory: request.directory.clone(), source };
    let directory = request.directory.canonicalize().map_err(wrong)?;
    if !directory.metadata().map_err(wrong)?.is_dir() {
        return Err(wrong(io::Error::from_raw_os_error(rustix::io::Errno::NOTDIR.raw_os_error())));
    }
    Ok(directory)
}

fn open(request: &Request, directory: &Path) -> Result<FileSystem, MountError> {
    let options = &request.options;
    let mut image = ImageOptions::new()
        .read_only(options.read_only)
        .offset(options.offset.unwrap_or(0))
        .background(true)
        .policy(options.policy)
        .data_mode(options.data)
        .delayed_allocation(options.delayed_allocation)
        .on_damage(options.errors.map_or(OnDamage::AsSuperblock, OnDamage::Do))
        .commit_interval(options.commit);
    if !options.read_only {
        image = image.last_mounted(directory);
    }
    Ok(image.open(&request.image)?)
}

/// Major and minor device number of a mounted file system.
type DeviceNumber = (u32, u32);

/// The device number that a path shows, without a request to the file system there.
fn device_at(from: impl AsFd, path: &Path) -> io::Result<DeviceNumber> {
    let how = AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    let found = rustix::fs::statx(from, path, how, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

fn connect(
    adapter: Adapter,
    request: &Request,
    handle: &Handle,
    receivers: usize,
) -> io::Result<(Connection, DeviceNumber)> {
    let options = &request.options;
    let source = source_of(request);
    let with_device = |connection| Ok((connection, device_at(CWD, &handle.directory)?));
    if rustix::process::geteuid().is_root() {
        let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        mount_as_root(&fuse, &source, handle, options)?;
        let connected = adapter.connect(OwnedFd::from(fuse), receivers);
        return connected.and_then(with_device).inspect_err(|_| {
            // Best effort: if the mount stays, it has no connection and answers only ENOTCONN.
            let _ = rustix::mount::unmount(&*handle.directory, UnmountFlags::DETACH);
        });
    }
    if let Err(errno) =
        rustix::fs::access("/dev/fuse", rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK)
    {
        let why = format!(
            "/dev/fuse: {}; users other than root must be able to read and write it",
            io::Error::from(errno)
        );
        return Err(io::Error::other(why));
    }
    let how = Helped {
        source: &source.to_string_lossy(),
        read_only: options.read_only,
        execution: options.execution,
        allow_other: options.allow_other,
    };
    adapter.mount(&handle.directory, &how, receivers).and_then(with_device)
}

/// The path that `/proc/mounts` shows as the source: absolute, or as it was given if no such file
/// is found.
fn source_of(request: &Request) -> PathBuf {
    request.image.canonicalize().unwrap_or_else(|_| request.image.clone())
}

fn mount_as_root(fuse: &File, source: &Path, handle: &Handle, options: &Options) -> io::Result<()> {
    let mode = handle.directory.metadata()?.mode();
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions",
        fuse.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if options.allow_other {
        data += ",allow_other";
    }
    let data = CString::new(data).map_err(io::Error::other)?;
    let flags = flags_of(options, handle.server.file_system().is_read_only().unwrap_or(true));
    let name = CString::new(source.as_os_str().as_bytes()).map_err(io::Error::other)?;
    Ok(rustix::mount::mount(&*name, &*handle.directory, c"fuse.blockyard", flags, Some(&*data))?)
}

/// The kernel's mount flags. A mount also shows as read-only if the image can only be read.
fn flags_of(options: &Options, is_read_only: bool) -> MountFlags {
    let mut flags = options.mount_flags();
    flags.set(MountFlags::RDONLY, options.read_only || is_read_only);
    flags
}
