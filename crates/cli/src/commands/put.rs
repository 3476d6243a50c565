//! `blockyard put IMAGE SOURCE... DEST`: copies files and trees of the host into an image.
//!
//! What is copied keeps its type, permissions, owner, times, extended attributes, holes and hard links. A name that is
//! replaced keeps its old content until the new is complete; a copy that fails leaves nothing behind.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use blockyard_device::ImagePath;
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::num::{low32, u64_from_usize};
use blockyard_disk::{FileType, InodeNr, Timestamp};
use blockyard_engine::{Error, NewInode, SetAttributes, XattrMode};
use blockyard_lab::row::count_as_f64;
use blockyard_lab::units;
use serde_json::json;
use walkdir::WalkDir;

use super::progress::Progress;
use super::volume::{self, AtPath, Owner, Place, Volume, join};
use super::{Output, host, image, names};

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// Arguments of `blockyard put`.
#[derive(clap::Args)]
#[command(after_help = volume::EXIT_CODES, after_long_help = format!("A directory given as DIR/. puts its content \
    into DEST, without the directory itself.\n\nJSON: one object a name: path (in the image), inode, type, size. {}\n\n{}", names::BYTES_KEYS, volume::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Files of the host (- is standard input), and last the directory in the image to put them into or the new name
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DEST"])]
    paths: Vec<OsString>,
    /// Copy directories with all that is in them
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Owner and group of everything copied (default: those of the source; of standard input 0:0)
    #[arg(long, value_name = "UID:GID")]
    owner: Option<Owner>,
    /// Leave extended attributes out
    #[arg(long)]
    no_xattrs: bool,
    #[command(flatten)]
    options: volume::Options,
}

impl Args {
    /// Copies.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        Volume::change(&self.image, &self.options, output, |volume| {
            let (sources, dest) = volume.sources_and_dest(&self.paths)?;
            volume.progress = Progress::copying(output, "put");
            expect(&volume.progress, sources);
            let began = Instant::now();
            let itself = std::fs::metadata(self.image.file()).ok().map(|data| (data.dev(), data.ino()));
            let mut copy = Copy { volume, args: &self, itself, linked: HashMap::new(), names: 0, bytes: 0 };
            for source in sources {
                let done =
                    if source == "-" { copy.stdin(dest) } else { copy.source(Path::new(source), dest) };
                copy.volume.settle(done)?;
            }
            let (names, bytes) = (copy.names, copy.bytes);
            if self.recursive {
                volume.say(|| copied(names, bytes, began));
            }
            Ok(())
        })
    }
}

/// Tells what there is to copy; not exactly, files may change meanwhile. Standard input is as long as it is.
fn expect(progress: &Progress, sources: &[OsString]) {
    if !progress.is_wanted() || sources.iter().any(|source| source == "-") {
        return;
    }
    let all = sources.iter().flat_map(|source| WalkDir::new(source).into_iter().flatten());
    let (names, bytes) =
        all.filter_map(|entry| entry.metadata().ok()).fold((0, 0), |(names, bytes), data| {
            // Holes are not copied.
            let content = if data.is_file() { data.size().min(data.blocks() * 512) } else { 0 };
            (names + 1, bytes + content)
        });
    progress.expect(names, bytes);
}

/// What was copied, for people.
pub(super) fn copied(names: u64, bytes: u64, began: Instant) -> String {
    let (names, bytes) = (units::counted(names, "name"), units::bytes(count_as_f64(bytes)));
    format!("{names} and {bytes} of content in {}", units::patience(began.elapsed()))
}

/// One run of the command.
struct Copy<'v, 'i> {
    volume: &'v mut Volume<'i>,
    args: &'v Args,
    /// Device and inode of the image, which is not copied into itself.
    itself: Option<(u64, u64)>,
    /// Inodes of the image by device and inode of the host, for hard links.
    linked: HashMap<(u64, u64), InodeNr>,
    names: u64,
    bytes: u64,
}

/// A directory of the image that is being filled.
struct Filling {
    inode: InodeNr,
    path: Vec<u8>,
    source: PathBuf,
    metadata: Metadata,
}

impl Copy<'_, '_> {
    /// Standard input becomes a file.
    fn stdin(&mut self, dest: &[u8]) -> Result<()> {
        let place = self.volume.exactly(dest)?;
        let owner = self.args.owner.unwrap_or(Owner { uid: 0, gid: 0 });
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let inode = self.install(&place, |copy, made| {
            let inode = copy.create(made, &new)?;
            let written = copy.fill(inode, &place.path, |copy| {
                let mut input = std::io::stdin().lock();
                copy.append_all(inode, &place.path, &mut input)
            });
            copy.or_unlink(made, written)?;
            let changes =
                SetAttributes { uid: Some(owner.uid), gid: Some(owner.gid), ..SetAttributes::default() };
            copy.volume.fs.set_attributes(&copy.volume.ctx, inode, &changes).at(&place.path)?;
            Ok(inode)
        })?;
        self.done(&place.path, inode)
    }

    /// A file or a tree.
    fn source(&mut self, source: &Path, dest: &[u8]) -> Result<()> {
        let metadata = std::fs::symlink_metadata(source).with_context(|| source.display().to_string())?;
        let bytes = source.as_os_str().as_bytes();
        let is_content = bytes == b"." || bytes.ends_with(b"/.") || bytes.ends_with(b"/./");
        if metadata.is_dir() && !self.args.recursive {
            bail!("{}: is a directory; add -r to copy it with its content", source.display());
        }
        if is_content || (metadata.is_dir() && source.file_name().is_none()) {
            return self.tree(source, None, dest);
        }
        let Some(name) = source.file_name() else { bail!("{}: has no name to copy it by", source.display()) };
        let place = self.volume.destination(dest, name.as_bytes())?;
        if metadata.is_dir() {
            self.tree(source, Some(place), dest)
        } else {
            self.leaf(source, &metadata, &place)
        }
    }

    /// A directory with all that is in it, in the order of names: as `place`, or its content into `dest`.
    fn tree(&mut self, source: &Path, place: Option<Place>, dest: &[u8]) -> Result<()> {
        let mut open: Vec<Filling> = Vec::new();
        let mut walk = WalkDir::new(source).follow_links(false).sort_by_file_name().into_iter();
        while let Some(entry) = walk.next() {
            let Some(entry) = self.volume.settle(entry.map_err(Into::into))? else { continue };
            while open.len() > entry.depth() {
                self.finish(open.pop())?;
            }
            let Some(metadata) = self.volume.settle(entry.metadata().map_err(Into::into))? else { continue };
            let target = match (open.last(), &place) {
                (Some(parent), _) => Some(inside(parent, entry.file_name())),
                (None, Some(place)) => Some(place.clone()),
                (None, None) => None,
            };
            if !metadata.is_dir() {
                let Some(target) = target else { continue };
                let done = self.leaf(entry.path(), &metadata, &target);
                self.volume.settle(done)?;
                continue;
            }
            let made = self.directory(target.as_ref(), &metadata, dest);
            match self.volume.settle(made)? {
                Some((inode, path)) => {
                    open.push(Filling { inode, path, source: entry.path().to_owned(), metadata });
                }
                None => walk.skip_current_dir(),
            }
        }
        while let Some(filled) = open.pop() {
            self.finish(Some(filled))?;
        }
        Ok(())
    }

    /// Makes a directory, or finds the one that is there.
    fn directory(
        &mut self,
        place: Option<&Place>,
        metadata: &Metadata,
        dest: &[u8],
    ) -> Result<(InodeNr, Vec<u8>)> {
        let (found, path) = match place {
            None => (Some(self.volume.resolve(dest, true)?), dest.to_vec()),
            Some(place) => (self.volume.find(place.parent, &place.name).at(&place.path)?, place.path.clone()),
        };
        let inode = match (found, place) {
            (Some(inode), _) if self.volume.kind(inode).at(&path)? == FileType::Directory => inode,
            (None, Some(place)) => {
                let permissions = host::permissions(metadata);
                self.create(place, &NewInode { kind: FileType::Directory, permissions, device: None })?
            }
            _ => return Err(Error::NotDirectory).at(&path).map_err(Into::into),
        };
        Ok((inode, path))
    }

    /// Gives a directory its attributes once it is filled: filling changes its times.
    fn finish(&mut self, filled: Option<Filling>) -> Result<()> {
        let Some(filled) = filled else { return Ok(()) };
        let done = self
            .attributes(filled.inode, &filled.source, &filled.metadata, &filled.path)
            .and_then(|()| self.done(&filled.path, filled.inode));
        self.volume.settle(done).map(|_| ())
    }

    /// Anything but a directory.
    fn leaf(&mut self, source: &Path, metadata: &Metadata, place: &Place) -> Result<()> {
        let key = (metadata.dev(), metadata.ino());
        if self.itself == Some(key) {
            bail!("{}: is the image itself; left out", source.display());
        }
        let linked = (metadata.nlink() > 1).then(|| self.linked.get(&key).copied()).flatten();
        let inode = self.install(place, |copy, made| {
            if let Some(inode) = linked {
                copy.volume.fs.link(&copy.volume.ctx, inode, made.parent, &made.name).at(&place.path)?;
                return Ok(inode);
            }
            let inode = copy.make(source, metadata, made, &place.path)?;
            let done = copy.attributes(inode, source, metadata, &place.path);
            copy.or_unlink(made, done)?;
            Ok(inode)
        })?;
        if metadata.nlink() > 1 {
            self.linked.insert(key, inode);
        }
        self.done(&place.path, inode)
    }

    /// Makes a name with `make`: there, or when the name is taken beside it and then renamed over it.
    fn install(
        &mut self,
        place: &Place,
        make: impl FnOnce(&mut Self, &Place) -> Result<InodeNr>,
    ) -> Result<InodeNr> {
        match self.volume.find(place.parent, &place.name).at(&place.path)? {
            None => make(self, place),
            Some(there) if self.volume.kind(there).at(&place.path)? == FileType::Directory => {
                Err(Error::IsDirectory).at(&place.path).map_err(Into::into)
            }
            Some(_) => {
                let beside = self.volume.beside(place)?;
                let inode = make(self, &beside)?;
                self.volume.put_in_place(&beside, place)?;
                Ok(inode)
            }
        }
    }

    fn create(&self, place: &Place, new: &NewInode) -> Result<InodeNr> {
        Ok(self.volume.fs.create(&self.volume.ctx, place.parent, &place.name, new).at(&place.path)?)
    }

    /// Makes the inode with its content.
    fn make(&mut self, source: &Path, metadata: &Metadata, made: &Place, path: &[u8]) -> Result<InodeNr> {
        let kind = metadata.file_type();
        if kind.is_symlink() {
            let target = std::fs::read_link(source).with_context(|| source.display().to_string())?;
            let target = target.as_os_str().as_bytes();
            return Ok(self.volume.fs.symlink(&self.volume.ctx, made.parent, &made.name, target).at(path)?);
        }
        let permissions = host::permissions(metadata);
        let node = |kind, device| NewInode { kind, permissions, device };
        let number = || Some(device_number(metadata.rdev()));
        let new = match () {
            () if kind.is_file() => node(FileType::Regular, None),
            () if kind.is_fifo() => node(FileType::Fifo, None),
            () if kind.is_socket() => node(FileType::Socket, None),
            () if kind.is_char_device() => node(FileType::CharDevice, number()),
            () if kind.is_block_device() => node(FileType::BlockDevice, number()),
            () => bail!("{}: of a type that cannot be copied", source.display()),
        };
        if new.kind != FileType::Regular {
            return self.create(made, &new);
        }
        // Opened before anything is made: a file that cannot be read leaves no trace.
        let file = File::open(source).with_context(|| source.display().to_string())?;
        let inode = self.create(made, &new)?;
        let written = self.fill(inode, path, |copy| copy.content(&file, source, inode, path));
        self.or_unlink(made, written)?;
        Ok(inode)
    }

    /// Writes with the inode open, so that its last blocks are trimmed when it is done.
    fn fill(
        &mut self,
        inode: InodeNr,
        path: &[u8],
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.volume.fs.open_inode(inode, true).at(path)?;
        let filled = body(self);
        let released = self.volume.fs.release_inode(&self.volume.ctx, inode, true).at(path);
        filled?;
        Ok(released?)
    }

    /// Takes back what was made when the rest of it failed.
    fn or_unlink(&self, made: &Place, done: Result<()>) -> Result<()> {
        if done.is_err() && !self.volume.fs.has_failed() {
            self.volume.fs.unlink(&self.volume.ctx, made.parent, &made.name).at(&made.path)?;
        }
        done
    }

    /// Copies the data of a file; holes stay holes.
    fn content(&mut self, file: &File, source: &Path, inode: InodeNr, path: &[u8]) -> Result<()> {
        let mut buf = vec![0; CHUNK];
        let mut end = 0;
        host::for_each_data(file, &mut buf, |offset, bytes| {
            self.volume.fs.write(&self.volume.ctx, inode, offset, bytes).at(path)?;
            self.bytes += u64_from_usize(bytes.len());
            self.volume.progress.add_bytes(bytes.len());
            end = offset + u64_from_usize(bytes.len());
            Ok(())
        })
        .with_context(|| source.display().to_string())?;
        let size = file.metadata().with_context(|| source.display().to_string())?.size();
        if size > end {
            self.volume.fs.truncate(&self.volume.ctx, inode, size).at(path)?;
        }
        Ok(())
    }

    fn append_all(&mut self, inode: InodeNr, path: &[u8], input: &mut dyn Read) -> Result<()> {
        let mut buf = vec![0; CHUNK];
        loop {
            let length = input.read(&mut buf).context("standard input")?;
            if length == 0 {
                return Ok(());
            }
            self.volume.fs.append(&self.volume.ctx, inode, &buf[..length]).at(path)?;
            self.bytes += u64_from_usize(length);
            self.volume.progress.add_bytes(length);
        }
    }

    /// Owner, permissions, extended attributes and times.
    fn attributes(&self, inode: InodeNr, source: &Path, metadata: &Metadata, path: &[u8]) -> Result<()> {
        let (fs, ctx) = (&self.volume.fs, &self.volume.ctx);
        if !self.args.no_xattrs {
            for (name, value) in host::xattrs(source).with_context(|| source.display().to_string())? {
                match fs.set_xattr(ctx, inode, &name, &value, XattrMode::Set) {
                    // Attributes of other file systems mean nothing in this one.
                    Err(Error::NotSupported(_)) => {}
                    done => done.at(path).with_context(|| about_attribute(&name, value.len()))?,
                }
            }
        }
        let owner = self.args.owner.unwrap_or(Owner { uid: metadata.uid(), gid: metadata.gid() });
        let time = |seconds, nanoseconds: i64| Timestamp {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
        };
        let changes = SetAttributes {
            permissions: (!metadata.is_symlink()).then(|| host::permissions(metadata)),
            uid: Some(owner.uid),
            gid: Some(owner.gid),
            accessed: Some(time(metadata.atime(), metadata.atime_nsec())),
            modified: Some(time(metadata.mtime(), metadata.mtime_nsec())),
        };
        Ok(fs.set_attributes(ctx, inode, &changes).at(path)?)
    }

    fn done(&mut self, path: &[u8], inode: InodeNr) -> Result<()> {
        self.names += 1;
        self.volume.progress.add_name();
        let attributes = self.volume.fs.attributes(inode).at(path)?;
        self.volume.json(|| {
            let kind = super::ls::type_word(attributes.kind);
            let object = json!({"inode": inode.raw(), "type": kind, "size": attributes.size});
            names::with(object, "path", path)
        });
        Ok(())
    }
}

fn inside(parent: &Filling, name: &OsStr) -> Place {
    let name = name.as_bytes().to_vec();
    Place { parent: parent.inode, path: join(&parent.path, &name), name }
}

fn device_number(number: u64) -> DeviceNumber {
    DeviceNumber {
        major: low32(u64::from(rustix::fs::major(number))),
        minor: low32(u64::from(rustix::fs::minor(number))),
    }
}

/// What to know and do when an attribute cannot be set.
fn about_attribute(name: &[u8], length: usize) -> String {
    let name = String::from_utf8_lossy(name);
    format!(
        "attribute {name} of {length} bytes (those of a file share its inode and one block, unless the file system was \
         made with -O ea_inode; --no-xattrs leaves them out)"
    )
}
