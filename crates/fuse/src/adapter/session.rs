//! Starting a session: connecting to the kernel, directly or through fusermount3, and negotiating
//! features.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, InitFlags, KernelConfig, MountOption, Session, SessionACL};

use super::Adapter;

/// Largest write and largest read-ahead, in bytes.
const WRITE_MAX: u32 = 1 << 20;
/// The most background requests (read-ahead, write-back and the like) that the kernel may have in
/// flight.
const BACKGROUND_MAX: u16 = 128;
/// Features that are requested if the kernel has them.
const CAPABILITIES: &[InitFlags] = &[
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_WRITEBACK_CACHE,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_HAS_IOCTL_DIR,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
];

/// A session: the connection to the kernel, before it is served.
pub(crate) type Connection = Session<Adapter>;

impl Adapter {
    /// Connects through an open `/dev/fuse` whose mount exists already. The kernel decides who may
    /// use the mount.
    pub(crate) fn connect(self, fuse: OwnedFd, receivers: usize) -> io::Result<Connection> {
        let shared = Arc::clone(&self.shared);
        let session = Session::from_fd(self, fuse, SessionACL::All, config(receivers, Vec::new()))?;
        // The notifier was not set before, so this succeeds.
        let _ = shared.notifier.set(session.notifier());
        Ok(session)
    }

    /// Lets fusermount3 mount at `directory`, as users other than root must, and connects.
    pub(crate) fn mount(
        self,
        directory: &Path,
        how: &Helped<'_>,
        receivers: usize,
    ) -> io::Result<Connection> {
        let shared = Arc::clone(&self.shared);
        let mut options = vec![
            MountOption::FSName(how.source.to_owned()),
            MountOption::Subtype("blockyard".to_owned()),
            MountOption::DefaultPermissions,
        ];
        options.extend(how.read_only.then_some(MountOption::RO));
        options.extend((!how.execution).then_some(MountOption::NoExec));
        let mut config = config(receivers, options);
        config.acl = if how.allow_other { SessionACL::All } else { SessionACL::Owner };
        let session = Session::new(self, directory, &config)?;
        let _ = shared.notifier.set(session.notifier());
        Ok(session)
    }
}

/// What is passed to fusermount3.
pub(crate) struct Helped<'a> {
    /// The source that the mount shows.
    pub(crate) source: &'a str,
    pub(crate) read_only: bool,
    pub(crate) execution: bool,
    pub(crate) allow_other: bool,
}

fn config(receivers: usize, options: Vec<MountOption>) -> Config {
    let mut config = Config::default();
    config.mount_options = options;
    config.acl = SessionACL::All;
    config.n_threads = Some(receivers);
    config.clone_fd = true;
    config
}

/// Negotiates the session's features with the kernel.
pub(super) fn negotiate(config: &mut KernelConfig, granularity: Duration) {
    for capability in CAPABILITIES {
        if let Err(missing) = config.add_capabilities(*capability) {
            tracing::debug!(?missing, "the kernel lacks features");
        }
    }
    let _ = config.set_max_write(WRITE_MAX);
    // If the value is too large, the error holds the largest one that works.
    if let Err(most) = config.set_max_readahead(WRITE_MAX) {
        let _ = config.set_max_readahead(most);
    }
    let _ = config.set_max_background(BACKGROUND_MAX);
    if let Err(nearest) = config.set_time_granularity(granularity) {
        tracing::debug!(?nearest, "the kernel shows times of another granularity");
    }
}
