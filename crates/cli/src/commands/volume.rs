//! An image opened for changing: what `put`, `rm`, `mkdir`, `mv` and `ln` share.
//!
//! Paths are a layer above the engine, which knows inode numbers and names. Each name that is worked on stands for
//! itself: one that fails is reported and the others go on. The image is closed in order also after an error, so that
//! it is consistent and holds everything that was done.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use blockyard_alloc::Policy;
use blockyard_device::ImagePath;
use blockyard_disk::{FileType, InodeNr, Timestamp};
use blockyard_engine::{DirEntry, Error, FileSystem, OpContext, OpenOptions};

use super::progress::Progress;
use super::rotational::Rotational;
use super::{Output, image};

/// Exit codes of the changing commands, for their help.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 done, 1 some of it failed (each reported; the rest is done), 2 wrong \
                                     usage, 8 the image cannot be read or written.";

/// Symbolic links that one path may pass, as on Linux.
const SYMLINKS_MAX: u32 = 40;
/// Directory entries read at a time.
const BATCH: usize = 1024;

/// Options that every changing command takes.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Allocation policy, with overrides (see `blockyard policy list`)
    #[arg(long, default_value = "linux-6.18", value_parser = Policy::parse)]
    policy: Policy,
    /// Whether the device has seek times, which decides how the search for blocks begins
    #[arg(long, value_enum, default_value = "auto")]
    rotational: Rotational,
    /// Time that goes into changed inodes, in seconds since 1970 (default: now)
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    time: Option<i64>,
}

/// Owner and group of what is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl std::str::FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not UID:GID, two numbers");
        let (uid, gid) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| text.parse().map_err(|_| wrong());
        Ok(Self { uid: number(uid)?, gid: number(gid)? })
    }
}

/// Why one name could not be worked on: the path it is about, and what is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub(super) struct NameError {
    path: String,
    error: Error,
}

impl NameError {
    /// Whether the path leads nowhere, and nothing else is wrong.
    pub(super) const fn is_missing(&self) -> bool {
        matches!(self.error, Error::NotFound | Error::NotDirectory)
    }
}

/// Puts the path to an engine error.
pub(super) trait AtPath<T> {
    /// The error with the path it is about.
    fn at(self, path: &[u8]) -> Result<T, NameError>;
}

impl<T> AtPath<T> for blockyard_engine::Result<T> {
    fn at(self, path: &[u8]) -> Result<T, NameError> {
        self.map_err(|error| NameError { path: String::from_utf8_lossy(path).into_owned(), error })
    }
}

/// An image that is changed.
pub(super) struct Volume<'a> {
    pub(super) fs: FileSystem,
    pub(super) ctx: OpContext,
    image: &'a ImagePath,
    pub(super) output: &'a Output,
    /// What a command of much work shows; nothing until it sets it.
    pub(super) progress: Progress,
    failures: u64,
}

impl<'a> Volume<'a> {
    /// Opens the image, lets `body` work on it, and closes it in order; gives the exit code.
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
        done.with_context(|| path.display().to_string())?;
        closed?;
        Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn open(path: &'a ImagePath, options: &Options, output: &'a Output) -> Result<Self> {
        let device = image::device(path, true)?;
        let mut ctx = OpContext::system();
        if let Some(seconds) = options.time {
            ctx.now = Timestamp { seconds, nanoseconds: 0 };
        }
        let rotational = options.rotational.of(Some(path.file()));
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
        Ok(Self { fs, ctx, image: path, output, progress: Progress::none(), failures: 0 })
    }

    /// Counts and reports a name that failed; what ends the work (the image can no longer be written) is given back.
    pub(super) fn report(&mut self, failed: anyhow::Error) -> Result<()> {
        if self.fs.has_failed() {
            return Err(failed);
        }
        self.progress.beside(|| {
            eprintln!("blockyard: {}: {}", self.image.display(), super::describe(&failed));
        });
        self.failures += 1;
        Ok(())
    }

    /// As [`Self::report`], for a result.
    pub(super) fn settle<T>(&mut self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(value) => Ok(Some(value)),
            Err(failed) => self.report(failed).map(|()| None),
        }
    }

    /// Prints one JSON object, when asked for.
    pub(super) fn json(&self, object: impl FnOnce() -> serde_json::Value) {
        if self.output.json {
            println!("{}", object());
        }
    }

    /// Prints a line of text, unless it is to be quiet or JSON.
    pub(super) fn say(&self, line: impl FnOnce() -> String) {
        if !self.output.json && !self.output.quiet {
            self.progress.beside(|| println!("{}", line()));
        }
    }

    /// The inode of a path. Links in the middle are followed; at the end with `follow_last`.
    pub(super) fn resolve(&self, path: &[u8], follow_last: bool) -> Result<InodeNr, NameError> {
        self.walk(components(path).collect(), follow_last).at(path)
    }

    /// The directory that holds the last name of a path, and that name.
    pub(super) fn parent<'p>(&self, path: &'p [u8]) -> Result<(InodeNr, &'p [u8]), NameError> {
        let mut names: VecDeque<&[u8]> = components(path).collect();
        let name = names.pop_back().ok_or(Error::Invalid("the root directory itself")).at(path)?;
        Ok((self.walk(names, true).at(path)?, name))
    }

    fn walk(&self, names: VecDeque<&[u8]>, follow_last: bool) -> blockyard_engine::Result<InodeNr> {
        let mut left: VecDeque<Vec<u8>> = names.into_iter().map(<[u8]>::to_vec).collect();
        let mut at = InodeNr::ROOT;
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            let next = self.fs.lookup(at, &name)?;
            if self.kind(next)? != FileType::Symlink || (left.is_empty() && !follow_last) {
                at = next;
                continue;
            }
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(Error::Invalid("too many levels of symbolic links"));
            }
            let target = self.fs.read_link(next)?;
            if target.first() == Some(&b'/') {
                at = InodeNr::ROOT;
            }
            for component in components(&target).rev() {
                left.push_front(component.to_vec());
            }
        }
        Ok(at)
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

    /// Where something called `name` goes when the user says `path`: into it, when it is a directory (links are
    /// followed), else there under the last name of the path.
    pub(super) fn destination(&self, path: &[u8], name: &[u8]) -> Result<Place, NameError> {
        if let Ok(directory) = self.walk(components(path).collect(), true)
            && self.kind(directory).at(path)? == FileType::Directory
        {
            return Ok(Place { parent: directory, name: name.to_vec(), path: join(path, name) });
        }
        self.exactly(path)
    }

    /// The place that a path names, whatever is there.
    pub(super) fn exactly(&self, path: &[u8]) -> Result<Place, NameError> {
        let (parent, name) = self.parent(path)?;
        Ok(Place { parent, name: name.to_vec(), path: path.to_vec() })
    }

    /// What a command takes somewhere, and the path in the image that it is taken to: the last one given. Several sources
    /// only go into a directory.
    pub(super) fn sources_and_dest<'p>(&self, paths: &'p [OsString]) -> Result<(&'p [OsString], &'p [u8])> {
        let (dest, sources) = paths.split_last().context("no path is given")?;
        let dest = image::path_bytes(dest);
        if sources.len() > 1 {
            let inode = self.resolve(dest, true)?;
            if self.kind(inode).at(dest)? != FileType::Directory {
                return Err(Error::NotDirectory).at(dest).map_err(Into::into);
            }
        }
        Ok((sources, dest))
    }

    /// The first names of a directory that are `wanted`, without `.` and `..`; none when there are no more.
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

/// Where a name is to be.
#[derive(Clone)]
pub(super) struct Place {
    /// The directory.
    pub(super) parent: InodeNr,
    /// The name in it.
    pub(super) name: Vec<u8>,
    /// The path, for messages.
    pub(super) path: Vec<u8>,
}

/// `directory/name`.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let end = directory.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    [&directory[..end], b"/", name].concat()
}

/// The last name of a path; nothing for the root.
pub(super) fn last_name(path: &[u8]) -> Option<&[u8]> {
    components(path).next_back()
}

/// Whether the last part of a path is `.`: it names a directory from inside, which is neither moved nor removed.
pub(super) fn ends_in_dot(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').rfind(|part| !part.is_empty()) == Some(b".")
}

/// The parts of a path that name something.
pub(super) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart_and_joined() {
        assert_eq!(components(b"//a/./b//").collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/x//", b"a"), b"/x/a");
        assert_eq!(last_name(b"/a/b/"), Some(&b"b"[..]));
        assert_eq!(last_name(b"/"), None);
        for (path, ends) in
            [("/a/.", true), ("a/.//", true), (".", true), ("/a/.b", false), ("/./a", false), ("/", false)]
        {
            assert_eq!(ends_in_dot(path.as_bytes()), ends, "{path}");
        }
    }

    #[test]
    fn owners_are_two_numbers() {
        let owner: Owner = "1000:5".parse().unwrap();
        assert_eq!((owner.uid, owner.gid), (1000, 5));
        for wrong in ["", "1000", "a:b", "1:-1", "4294967296:0"] {
            assert!(wrong.parse::<Owner>().is_err(), "{wrong}");
        }
    }
}
