//! An image opened for writing, for the commands that change images (`put`, `rm`, `chmod` ...).
//!
//! The engine knows only inode numbers and names; this module adds paths. Each path of a command is
//! handled independently: a failure is reported, and the command goes on with the next path, unless
//! the image can no longer be written or a signal ends the work. Even after an error, the image is
//! closed cleanly if it can still be written, so that it is consistent and holds everything that
//! was done.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use blockyard_alloc::Policy;
use blockyard_device::ImagePath;
use blockyard_disk::{FileType, InodeNr, Timestamp};
use blockyard_engine::{DirEntry, Error, FileSystem, OpContext, OpenOptions};
use blockyard_inspect::path::{self, LastLink, Tree, components, join, names_directory};

use super::interrupt::Interrupted;
use super::progress::Progress;
use super::rotational::Rotational;
use super::{Output, UsageError, clock, host, image};

/// Exit codes of the changing commands, for the help.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 done, 1 some of it failed (each failure is reported; the rest is done), 2 wrong \
                                     usage, 8 the image cannot be read or written.";

/// Directory entries read at a time.
const BATCH: usize = 1024;

/// Options of every changing command.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Allocation policy, with overrides (see `blockyard policy list`)
    #[arg(long, default_value = "linux-6.18", value_parser = Policy::parse)]
    policy: Policy,
    /// Whether the device has seek times, which decides how the search for blocks begins
    #[arg(long, value_enum, default_value = "auto")]
    rotational: Rotational,
    /// Time for changed inodes, in seconds since 1970 [default: E2FSPROGS_FAKE_TIME,
    /// SOURCE_DATE_EPOCH, or now]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(super) time: Option<i64>,
}

/// Why a name failed: its path, the error, and what may help.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}{hint}")]
pub(super) struct NameError {
    path: Box<str>,
    error: Error,
    /// Empty if nothing is known to help.
    hint: Box<str>,
}

impl NameError {
    /// Whether the path leads to nothing: a name in it is missing, or is no directory where one is
    /// needed.
    pub(super) const fn is_missing(&self) -> bool {
        matches!(self.error, Error::NotFound | Error::NotDirectory)
    }

    /// Whether the image is full.
    pub(super) const fn is_full(&self) -> bool {
        matches!(self.error, Error::NoSpace | Error::NoInodes)
    }
}

/// Adds the path to an engine error.
pub(super) trait AtPath<T> {
    /// The same result, with `path` added to the error.
    fn at(self, path: &[u8]) -> Result<T, NameError>;
}

impl<T> AtPath<T> for blockyard_engine::Result<T> {
    fn at(self, path: &[u8]) -> Result<T, NameError> {
        self.map_err(|error| NameError {
            path: String::from_utf8_lossy(path).into(),
            error,
            hint: Box::default(),
        })
    }
}

/// An image that is being changed.
pub(super) struct Volume<'a> {
    pub(super) fs: FileSystem,
    pub(super) ctx: OpContext,
    /// The fixed time (`--time` or an environment variable), if there is one. No later time is
    /// written.
    pub(super) fixed_time: Option<Timestamp>,
    image: &'a ImagePath,
    pub(super) output: &'a Output,
    /// The progress line. It is off until a command with much work sets one.
    pub(super) progress: Progress,
    failures: u64,
}

impl<'a> Volume<'a> {
    /// Opens the image, runs `body` on it, and closes it cleanly. Returns the exit code.
    pub(super) fn change(
        path: &'a ImagePath,
        options: &Options,
        output: &'a Output,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<ExitCode> {
        let mut volume = Self::open(path, options, output)?;
        let done = body(&mut volume);
        let Self { fs, ctx, progress, failures, .. } = volume;
        drop(progress);
        let closed = fs.close(&ctx).with_context(|| path.display().to_string());
        done.map_err(|error| of_side(error, path))?;
        closed?;
        Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn open(path: &'a ImagePath, options: &Options, output: &'a Output) -> Result<Self> {
        let fixed = clock::fixed(options.time)?;
        let device = image::device(path, true)?;
        // A fixed time means that the image must be repeatable, so neither the thread's number nor
        // the host's disk may affect it.
        let ctx = match fixed {
            Some(seconds) => OpContext::root_at(Timestamp::from_seconds(seconds)),
            None => OpContext::system(),
        };
        let rotational = options.rotational.of(Some(path.file()).filter(|_| fixed.is_none()));
        let open = OpenOptions { policy: options.policy, rotational, cpus: 1, ..OpenOptions::default() };
        let fs = FileSystem::open(Arc::new(device), open, &ctx).map_err(|error| {
            let hint = if matches!(error, Error::Corrupt(_)) { image::DAMAGED } else { "" };
            anyhow::anyhow!("{}: {error}{hint}", path.display())
        })?;
        if fs.is_read_only() {
            anyhow::bail!(
                "{}: can only be read: it has features that this version does not write",
                path.display()
            );
        }
        let opened = Self {
            fs,
            ctx,
            fixed_time: fixed.map(Timestamp::from_seconds),
            image: path,
            output,
            progress: Progress::none(),
            failures: 0,
        };
        opened.with_possible_time()
    }

    /// Refuses a time that the inodes cannot hold.
    fn with_possible_time(self) -> Result<Self> {
        let size = self.fs.geometry().inode_size();
        let most = if size > 128 { Timestamp::SECONDS_MAX } else { Timestamp::SECONDS_MAX_SHORT };
        let possible = Timestamp::SECONDS_MIN..=most;
        match self.fixed_time {
            Some(time) if !possible.contains(&time.seconds) => {
                let image = self.image;
                self.fs.close(&self.ctx).with_context(|| image.display().to_string())?;
                Err(UsageError::new(format!(
                    "--time {}: inodes of {size} bytes hold times from {} to {most} seconds after 1970",
                    time.seconds,
                    Timestamp::SECONDS_MIN
                ))
                .into())
            }
            _ => Ok(self),
        }
    }

    /// Counts and reports a failure. Returns the failure instead if it ends the work: after a
    /// signal, or if the image can no longer be written.
    pub(super) fn report(&mut self, failed: anyhow::Error) -> Result<()> {
        if self.fs.has_failed() || failed.is::<Interrupted>() {
            return Err(failed);
        }
        let told = super::describe(&of_side(failed, self.image));
        self.progress.beside(|| eprintln!("blockyard: {told}"));
        self.failures += 1;
        Ok(())
    }

    /// Returns the value of a result, or `None` if it was a failure that [`Self::report`] reported.
    pub(super) fn settle<T>(&mut self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(value) => Ok(Some(value)),
            Err(failed) => self.report(failed).map(|()| None),
        }
    }

    /// Prints one JSON object, with --json only.
    pub(super) fn json(&self, object: impl FnOnce() -> serde_json::Value) {
        if self.output.json {
            println!("{}", object());
        }
    }

    /// Prints a line of text, unless --quiet or --json is given.
    pub(super) fn say(&self, line: impl FnOnce() -> String) {
        if !self.output.json && !self.output.quiet {
            self.progress.beside(|| println!("{}", line()));
        }
    }

    /// The inode of a path. Links in the middle are followed. `last` says whether a link at the end
    /// is followed. With a trailing slash the path must lead to a directory.
    pub(super) fn resolve(&self, path: &[u8], last: LastLink) -> Result<InodeNr, NameError> {
        path::resolve(&Walk(&self.fs), path, last).at(path)
    }

    /// The directory in which the last name of a path is or would be, and that name.
    pub(super) fn parent<'p>(&self, path: &'p [u8]) -> Result<(InodeNr, &'p [u8]), NameError> {
        let mut names = components(path);
        let name = names.next_back().ok_or(Error::Invalid("the root directory itself")).at(path)?;
        Ok((path::walk(&Walk(&self.fs), names, LastLink::Follow).at(path)?, name))
    }

    /// The type of an inode.
    pub(super) fn kind(&self, inode: InodeNr) -> blockyard_engine::Result<FileType> {
        Ok(self.fs.attributes(inode)?.kind)
    }

    /// The inode of a name in a directory, if there is one.
    pub(super) fn find(&self, parent: InodeNr, name: &[u8]) -> blockyard_engine::Result<Option<InodeNr>> {
        match self.fs.lookup(parent, name) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where something called `name` goes if the user gives `path`: into the directory at `path` if
    /// there is one (links are followed), otherwise to `path` itself.
    pub(super) fn destination(&self, path: &[u8], name: &[u8], entry: Entry) -> Result<Place, NameError> {
        if let Ok(directory) = path::walk(&Walk(&self.fs), components(path), LastLink::Follow)
            && self.kind(directory).at(path)? == FileType::Directory
        {
            return Ok(Place { parent: directory, name: name.to_vec(), path: join(path, name) });
        }
        self.exactly(path, entry)
    }

    /// The place that a path names, whether or not anything is there. Its directory must exist. A
    /// path with a trailing slash is refused unless `entry` is a directory.
    pub(super) fn exactly(&self, path: &[u8], entry: Entry) -> Result<Place, NameError> {
        if names_directory(path) && entry == Entry::Other {
            return Err(Error::NotDirectory).at(path).map_err(|failed| self.naming_missing(failed, path));
        }
        let (parent, name) = self.parent(path).map_err(|failed| self.naming_missing(failed, path))?;
        Ok(Place { parent, name: name.to_vec(), path: path.to_vec() })
    }

    /// The inode of a path that the user gave as a destination. Callers check that it is a
    /// directory. If the path leads nowhere, the error says which directory is missing.
    pub(super) fn directory(&self, path: &[u8]) -> Result<InodeNr, NameError> {
        self.resolve(path, LastLink::Follow).map_err(|failed| self.naming_missing(failed, path))
    }

    /// Adds a hint to the error about a destination: the first directory of its path that is
    /// missing.
    fn naming_missing(&self, mut failed: NameError, path: &[u8]) -> NameError {
        if let Some(missing) = self.missing_directory(path).filter(|_| failed.is_missing()) {
            let missing = String::from_utf8_lossy(&missing);
            failed.hint = format!(": /{missing} is missing; `blockyard mkdir -p` makes it").into();
        }
        failed
    }

    /// The beginning of `path` up to its first missing name, without a leading slash. `None` if no
    /// name is missing, or if a symbolic link that leads nowhere comes first.
    fn missing_directory(&self, path: &[u8]) -> Option<Vec<u8>> {
        let names: Vec<&[u8]> = components(path).collect();
        for count in 1..=names.len() {
            let found = |last| path::walk(&Walk(&self.fs), names[..count].iter().copied(), last);
            if matches!(found(LastLink::Follow), Err(Error::NotFound)) {
                let is_missing = matches!(found(LastLink::Keep), Err(Error::NotFound));
                return is_missing.then(|| names[..count].join(&b'/'));
            }
        }
        None
    }

    /// Splits the operands into the sources and the destination in the image, which is the last
    /// operand. With several sources, the destination must be an existing directory.
    pub(super) fn sources_and_dest<'p>(&self, paths: &'p [OsString]) -> Result<(&'p [OsString], &'p [u8])> {
        let (dest, sources) = paths.split_last().context("no path is given")?;
        let dest = image::path_bytes(dest);
        if sources.len() > 1 {
            let inode = self.directory(dest)?;
            if self.kind(inode).at(dest)? != FileType::Directory {
                return Err(Error::NotDirectory).at(dest).map_err(Into::into);
            }
        }
        Ok((sources, dest))
    }

    /// The first entries of a directory that are `wanted`, at most [`BATCH`], without `.` and `..`;
    /// empty if there are none.
    pub(super) fn batch(
        &self,
        dir: InodeNr,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> blockyard_engine::Result<Vec<DirEntry>> {
        let mut found = Vec::new();
        self.fs.read_dir(dir, 0, |entry| {
            if entry.name != b"." && entry.name != b".." && wanted(&entry.name) {
                found.push(entry);
            }
            found.len() < BATCH
        })?;
        Ok(found)
    }
}

/// The tree of an open file system, for path walks.
struct Walk<'a>(&'a FileSystem);

impl Tree for Walk<'_> {
    type Node = InodeNr;
    type Error = Error;

    fn root(&self) -> blockyard_engine::Result<InodeNr> {
        Ok(InodeNr::ROOT)
    }

    fn look_up(&self, directory: &InodeNr, name: &[u8]) -> blockyard_engine::Result<InodeNr> {
        self.0.lookup(*directory, name)
    }

    fn kind(&self, node: &InodeNr) -> blockyard_engine::Result<FileType> {
        Ok(self.0.attributes(*node)?.kind)
    }

    fn read_link(&self, link: &InodeNr) -> blockyard_engine::Result<Vec<u8>> {
        self.0.read_link(*link)
    }

    fn too_many_symlinks(&self) -> Error {
        Error::Invalid("too many levels of symbolic links")
    }

    fn not_directory(&self) -> Error {
        Error::NotDirectory
    }

    fn is_missing(&self, error: &Error) -> bool {
        matches!(error, Error::NotFound)
    }
}

/// What gets a name: a directory, or anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Directory,
    Other,
}

impl Entry {
    /// The entry for a file type.
    pub(super) const fn of(kind: FileType) -> Self {
        if matches!(kind, FileType::Directory) { Self::Directory } else { Self::Other }
    }
}

/// Adds the image to an error, unless it concerns a file of the host, the usage or a signal.
pub(super) fn of_side(error: anyhow::Error, image: &ImagePath) -> anyhow::Error {
    if host::host_error(&error).is_some() || error.is::<UsageError>() || error.is::<Interrupted>() {
        return error;
    }
    anyhow::anyhow!("{}: {}", image.display(), super::describe(&error))
}

/// A place for a name.
#[derive(Clone)]
pub(super) struct Place {
    /// The directory.
    pub(super) parent: InodeNr,
    /// The name in it.
    pub(super) name: Vec<u8>,
    /// The path, for messages.
    pub(super) path: Vec<u8>,
}
