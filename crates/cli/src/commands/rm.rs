//! `blockyard rm IMAGE PATH...`: removes names, and on request everything below them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use blockyard_device::ImagePath;
use blockyard_disk::{FileType, InodeNr};
use blockyard_engine::{DirEntry, Error};
use blockyard_inspect::path::{ends_in_dot, join, names_directory};
use serde_json::json;

use super::progress::Progress;
use super::volume::{self, AtPath, NameError, Place, Volume};
use super::{Output, image, names};

/// Arguments of `blockyard rm`.
#[derive(clap::Args)]
#[command(after_help = volume::EXIT_CODES, after_long_help = format!("JSON: one object per removed name: \
    path. {}\n\n{}", names::BYTES_KEYS, volume::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Names to remove; symbolic links are not followed
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Remove directories and everything in them
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Remove empty directories
    #[arg(short = 'd', long)]
    dir: bool,
    /// Ignore names that do not exist
    #[arg(short = 'f', long)]
    force: bool,
    #[command(flatten)]
    options: volume::Options,
}

/// A directory that is being emptied.
struct Emptying {
    parent: InodeNr,
    name: Vec<u8>,
    inode: InodeNr,
    path: Vec<u8>,
    /// Entries read and not yet removed.
    pending: Vec<DirEntry>,
    /// Names in this directory that stay.
    kept: HashSet<Vec<u8>>,
}

impl Args {
    /// Removes the names.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        Volume::change(&self.image, &self.options, output, |volume| {
            volume.progress = Progress::counting(output, "rm", "names");
            self.expect(volume);
            for path in &self.paths {
                let done = self.remove(volume, image::path_bytes(path));
                volume.settle(done)?;
            }
            Ok(())
        })
    }

    /// Counts the names to remove, for the progress line. Names that cannot be found and names in
    /// unreadable directories are not counted. The removal itself reports errors.
    fn expect(&self, volume: &Volume<'_>) {
        if !volume.progress.is_wanted() {
            return;
        }
        let mut names = 0;
        let mut met = HashSet::new();
        let paths = self.paths.iter().map(|path| find(volume, image::path_bytes(path)));
        let mut left: Vec<InodeNr> = paths.flatten().map(|(_, _, inode)| inode).collect();
        while let Some(inode) = left.pop() {
            names += 1;
            let is_directory = volume.kind(inode).is_ok_and(|kind| kind == FileType::Directory);
            if is_directory && self.recursive && met.insert(inode) {
                // A directory that cannot be read counts as empty.
                let _ = volume.fs.read_dir(inode, 0, |entry| {
                    let is_name = entry.name != b"." && entry.name != b"..";
                    left.extend(is_name.then_some(entry.inode));
                    true
                });
            }
        }
        volume.progress.expect(names, 0);
    }

    fn remove(&self, volume: &mut Volume<'_>, path: &[u8]) -> Result<()> {
        let (parent, name, inode) = match find(volume, path) {
            Ok(found) => found,
            Err(error) if self.force && error.is_missing() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if name == b".." || ends_in_dot(path) {
            bail!("{}: '.' and '..' are not removed", String::from_utf8_lossy(path));
        }
        if volume.kind(inode).at(path)? != FileType::Directory {
            if names_directory(path) {
                return Err(Error::NotDirectory).at(path).map_err(Into::into);
            }
            return file(volume, parent, name, path);
        }
        if self.recursive {
            let place = Place { parent, name: name.to_vec(), path: path.to_vec() };
            return tree(volume, place, inode);
        }
        if !self.dir {
            bail!("{}: is a directory; add -r to remove it with its content", String::from_utf8_lossy(path));
        }
        directory(volume, parent, name, path)
    }
}

/// Parent directory, name and inode of a path.
fn find<'p>(volume: &Volume<'_>, path: &'p [u8]) -> Result<(InodeNr, &'p [u8], InodeNr), NameError> {
    let (parent, name) = volume.parent(path)?;
    Ok((parent, name, volume.fs.lookup(parent, name).at(path)?))
}

fn file(volume: &Volume<'_>, parent: InodeNr, name: &[u8], path: &[u8]) -> Result<()> {
    volume.fs.unlink(&volume.ctx, parent, name).at(path)?;
    volume.progress.add_name();
    volume.json(|| names::with(json!({}), "path", path));
    Ok(())
}

fn directory(volume: &Volume<'_>, parent: InodeNr, name: &[u8], path: &[u8]) -> Result<()> {
    volume.fs.rmdir(&volume.ctx, parent, name).at(path)?;
    volume.progress.add_name();
    volume.json(|| names::with(json!({}), "path", path));
    Ok(())
}

/// Removes a directory with its content, depth first. It does so without recursion, because
/// directories may be nested deeper than the stack allows. A name that cannot be removed is
/// reported and skipped. In a damaged tree, a name that leads to a directory visited before is also
/// skipped. Directories that hold skipped names stay. An inode or directory that cannot be read
/// ends the removal of this tree.
fn tree(volume: &mut Volume<'_>, place: Place, inode: InodeNr) -> Result<()> {
    let mut met = HashSet::from([inode]);
    let mut open = vec![Emptying::new(place, inode)];
    while let Some(mut top) = open.pop() {
        let Some(entry) = top.next(volume)? else {
            let removed = top.kept.is_empty() && {
                let done = directory(volume, top.parent, &top.name, &top.path);
                volume.settle(done)?.is_some()
            };
            if let Some(above) = open.last_mut()
                && !removed
            {
                above.kept.insert(top.name);
            }
            continue;
        };
        let path = join(&top.path, &entry.name);
        if volume.kind(entry.inode).at(&path)? == FileType::Directory {
            if !met.insert(entry.inode) {
                let shown = String::from_utf8_lossy(&path);
                volume.report(anyhow!("{shown}: the directory was met before: the image is damaged"))?;
                top.kept.insert(entry.name);
                open.push(top);
                continue;
            }
            let place = Place { parent: top.inode, name: entry.name, path };
            open.push(top);
            open.push(Emptying::new(place, entry.inode));
            continue;
        }
        let done = file(volume, top.inode, &entry.name, &path);
        if volume.settle(done)?.is_none() {
            top.kept.insert(entry.name);
        }
        open.push(top);
    }
    Ok(())
}

impl Emptying {
    fn new(place: Place, inode: InodeNr) -> Self {
        let Place { parent, name, path } = place;
        Self { parent, name, inode, path, pending: Vec::new(), kept: HashSet::new() }
    }

    /// The next entry to remove. Each batch is read from the start of the directory, because the
    /// entries of earlier batches have been removed.
    fn next(&mut self, volume: &Volume<'_>) -> Result<Option<DirEntry>> {
        if self.pending.is_empty() {
            self.pending = volume.batch(self.inode, |name| !self.kept.contains(name)).at(&self.path)?;
        }
        Ok(self.pending.pop())
    }
}
