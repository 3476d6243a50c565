//! `blockyard put IMAGE SOURCE... DEST`: copies files and trees of the host into an image.
//!
//! What is copied keeps its type, permissions, owner, times, flags, extended attributes, holes and hard links. A name that
//! is replaced keeps its old content until the new is complete; a copy that fails leaves nothing behind.
//!
//! With a fixed time the result follows from names, contents and attributes alone: no time is later, times of access are
//! not the source's, and blocks of zeroes are holes. So a tree and its copies give the same bytes.

mod shortage;
mod stream;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use blockyard_device::ImagePath;
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::inode::InodeFlags;
use blockyard_disk::num::{count_as_f64, low32, u64_from_usize};
use blockyard_disk::{FileType, InodeNr, Timestamp};
use blockyard_engine::{Error, NewInode, SetAttributes, XattrMode};
use blockyard_inspect::units;
use serde_json::json;
use walkdir::WalkDir;

use self::shortage::Need;
pub(super) use self::shortage::shown_bytes;
use self::stream::Stream;
use super::host::{HostError, Links, OnHost, refused};
use super::owner::{Ids, Owner};
use super::progress::Progress;
use super::volume::{self, AtPath, Entry, NameError, Place, Volume};
use super::{Output, UsageError, host, image, interrupt, names};
use blockyard_inspect::path::{LastLink, join};

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// Arguments of `blockyard put`.
#[derive(clap::Args)]
#[command(after_help = volume::EXIT_CODES, after_long_help = format!("A directory given as DIR/. puts its content \
    into DEST, without the directory itself. Without -r links named as SOURCE are followed, and devices and pipes are \
    read; with -r they are copied as they are.\n\nWith --time (or SOURCE_DATE_EPOCH) every later time is set to it, access times \
    are those of the last change, and blocks of zeroes are holes: the same tree gives the same bytes.\n\nJSON: one object a name: path (in the image), inode, type, size. {}\n\n{}", names::BYTES_KEYS, volume::EXIT_CODES))]
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
    /// Copy symbolic links named as SOURCE themselves (with -r always so)
    #[arg(short = 'P', long)]
    no_dereference: bool,
    /// Owner and group of everything copied: USER, USER:GROUP or :GROUP, names of the image or numbers [default: those of the
    /// source; of what is read from a pipe or device 0:0]
    #[arg(long, value_name = "OWNER")]
    owner: Option<Owner>,
    /// Leave extended attributes out
    #[arg(long)]
    no_xattrs: bool,
    /// Copy the times of the last access; by default they are the time of the copy
    #[arg(long, conflicts_with = "time")]
    preserve_atime: bool,
    /// Go on with what fits when the image is full
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    options: volume::Options,
}

impl Args {
    /// Copies.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        interrupt::watch()?;
        Volume::change(&self.image, &self.options, output, |volume| {
            if self.preserve_atime && volume.fixed_time.is_some() {
                return Err(UsageError::new(
                    "--preserve-atime: a fixed time decides the times of access".into(),
                )
                .into());
            }
            let owner = self.owner.as_ref().map_or(Ok(Ids::default()), |owner| owner.ids(volume))?;
            let (sources, dest) = volume.sources_and_dest(&self.paths)?;
            volume.progress = Progress::copying(output, "put");
            expect(&volume.progress, sources);
            let began = Instant::now();
            let itself = std::fs::metadata(self.image.file()).ok().map(|data| (data.dev(), data.ino()));
            let mut copy = Copy {
                volume,
                args: &self,
                owner,
                itself,
                linked: HashMap::new(),
                flags: Vec::new(),
                names: 0,
                bytes: 0,
                copied: Need::default(),
                left_out: LeftOut::default(),
            };
            let ended = sources.iter().try_for_each(|source| copy.operand(source, dest));
            copy.set_late_flags()?;
            copy.tell_end(sources, began, ended)
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
    /// What `--owner` says.
    owner: Ids,
    /// Device and inode of the image, which is not copied into itself.
    itself: Option<(u64, u64)>,
    /// Inodes of the image by device and inode of the host, for hard links.
    linked: HashMap<(u64, u64), InodeNr>,
    /// Flags of inodes that may get more names: an immutable one can get none.
    flags: Vec<(InodeNr, u32, Vec<u8>)>,
    names: u64,
    bytes: u64,
    /// What the names that were copied take.
    copied: Need,
    left_out: LeftOut,
}

/// What was not copied and is no failure.
#[derive(Default)]
struct LeftOut {
    itself: bool,
    attributes: u64,
}

/// Flags that are copied: those that chattr sets and the image keeps for everybody.
const COPIED_FLAGS: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR);

/// A directory of the image that is being filled.
struct Filling {
    inode: InodeNr,
    path: Vec<u8>,
    source: PathBuf,
    metadata: Metadata,
}

impl Copy<'_, '_> {
    /// One SOURCE. Only what ends the work is given back.
    fn operand(&mut self, source: &OsString, dest: &[u8]) -> Result<()> {
        let done = if source == "-" {
            self.stream(Stream::StandardInput, dest)
        } else {
            self.source(Path::new(source), dest)
        };
        self.settle(done).map(|_| ())
    }

    /// As [`Volume::settle`]; a full image ends the work, too, unless it is to go on.
    fn settle<T>(&mut self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Err(failed) if !self.args.keep_going && is_full(&failed) => Err(failed),
            done => self.volume.settle(done),
        }
    }

    /// A file or a tree.
    fn source(&mut self, source: &Path, dest: &[u8]) -> Result<()> {
        let links =
            if self.args.recursive || self.args.no_dereference { Links::Kept } else { Links::Followed };
        let metadata = links.metadata(source)?;
        let bytes = source.as_os_str().as_bytes();
        let is_content = bytes == b"." || bytes.ends_with(b"/.") || bytes.ends_with(b"/./");
        if metadata.is_dir() && !self.args.recursive {
            return Err(refused(source, "is a directory; add -r to copy it with its content"));
        }
        if is_content || (metadata.is_dir() && source.file_name().is_none()) {
            return self.tree(source, None, dest);
        }
        let Some(name) = source.file_name() else {
            return Err(refused(source, "has no name to copy it by"));
        };
        let entry = if metadata.is_dir() { Entry::Directory } else { Entry::Other };
        let place = self.volume.destination(dest, name.as_bytes(), entry)?;
        if metadata.is_dir() {
            return self.tree(source, Some(place), dest);
        }
        if !self.args.recursive && !metadata.is_file() && !metadata.is_symlink() {
            return self.stream_to(Stream::Of(source.to_owned()), &place);
        }
        if self.itself == Some((metadata.dev(), metadata.ino())) {
            return Err(refused(source, "is the image itself"));
        }
        self.leaf(source, links, &metadata, &place)
    }

    /// A directory with all that is in it, in the order of names: as `place`, or its content into `dest`.
    fn tree(&mut self, source: &Path, place: Option<Place>, dest: &[u8]) -> Result<()> {
        let mut open: Vec<Filling> = Vec::new();
        let ended = self.walk(source, place.as_ref(), dest, &mut open);
        // Also when the work ends early: what was made is as complete as it can be.
        while let Some(filled) = open.pop() {
            self.finish(Some(filled))?;
        }
        ended
    }

    fn walk(
        &mut self,
        source: &Path,
        place: Option<&Place>,
        dest: &[u8],
        open: &mut Vec<Filling>,
    ) -> Result<()> {
        let mut walk = WalkDir::new(source).follow_links(false).sort_by_file_name().into_iter();
        while let Some(entry) = walk.next() {
            let Some(entry) = self.settle(entry.map_err(|error| HostError::from(error).into()))? else {
                continue;
            };
            while open.len() > entry.depth() {
                self.finish(open.pop())?;
            }
            let metadata = entry.metadata().map_err(|error| HostError::from(error).into());
            let Some(metadata) = self.settle(metadata)? else { continue };
            let target = match (open.last(), place) {
                (Some(parent), _) => Some(inside(parent, entry.file_name())),
                (None, place) => place.cloned(),
            };
            if !metadata.is_dir() {
                let Some(target) = target else { continue };
                let done = self.leaf(entry.path(), Links::Kept, &metadata, &target);
                self.settle(done)?;
                continue;
            }
            let made = self.directory(target.as_ref(), &metadata, dest);
            match self.settle(made)? {
                Some((inode, path)) => {
                    open.push(Filling { inode, path, source: entry.path().to_owned(), metadata });
                }
                None => walk.skip_current_dir(),
            }
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
            None => (Some(self.volume.resolve(dest, LastLink::Follow)?), dest.to_vec()),
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
        let Some(Filling { inode, path, source, metadata }) = filled else { return Ok(()) };
        let done = self.attributes(inode, (&source, Links::Kept), &metadata, &path).and_then(|()| {
            if let Some(flags) = File::open(&source).ok().as_ref().and_then(host::flags) {
                self.set_flags(inode, flags, &path)?;
            }
            self.done(&path, inode, &metadata)
        });
        self.settle(done).map(|_| ())
    }

    /// Anything but a directory.
    fn leaf(&mut self, source: &Path, links: Links, metadata: &Metadata, place: &Place) -> Result<()> {
        interrupt::check()?;
        let key = (metadata.dev(), metadata.ino());
        if self.itself == Some(key) {
            self.left_out.itself = true;
            return Ok(());
        }
        let linked = (metadata.nlink() > 1).then(|| self.linked.get(&key).copied()).flatten();
        let mut flags = None;
        let inode = self.install(place, |copy, made| {
            if let Some(inode) = linked {
                copy.volume.fs.link(&copy.volume.ctx, inode, made.parent, &made.name).at(&place.path)?;
                return Ok(inode);
            }
            let (inode, of_file) = copy.make(source, metadata, made, &place.path)?;
            flags = of_file;
            let done = copy.attributes(inode, (source, links), metadata, &place.path);
            copy.or_unlink(made, done)?;
            Ok(inode)
        })?;
        if metadata.nlink() > 1 {
            self.linked.insert(key, inode);
            self.flags.extend(flags.map(|flags| (inode, flags, place.path.clone())));
        } else if let Some(flags) = flags {
            self.set_flags(inode, flags, &place.path)?;
        }
        if linked.is_some() {
            self.copied.add_name();
            return self.made(&place.path, inode);
        }
        self.done(&place.path, inode, metadata)
    }

    /// Gives an inode the flags that chattr sets. They come last: an immutable inode takes nothing else.
    fn set_flags(&self, inode: InodeNr, flags: u32, path: &[u8]) -> Result<()> {
        let wanted = InodeFlags::from_bits_retain(flags) & COPIED_FLAGS;
        let now = self.volume.fs.attributes(inode).at(path)?.flags;
        if InodeFlags::from_bits_retain(now) & COPIED_FLAGS != wanted {
            self.volume.fs.set_flags(&self.volume.ctx, inode, wanted.bits()).at(path)?;
        }
        Ok(())
    }

    /// Sets the flags of inodes that have all their names now.
    fn set_late_flags(&mut self) -> Result<()> {
        for (inode, flags, path) in std::mem::take(&mut self.flags) {
            let done = self.set_flags(inode, flags, &path);
            self.volume.settle(done)?;
        }
        Ok(())
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

    /// Makes the inode with its content; gives its flags, too, where the host has some.
    fn make(
        &mut self,
        source: &Path,
        metadata: &Metadata,
        made: &Place,
        path: &[u8],
    ) -> Result<(InodeNr, Option<u32>)> {
        let kind = metadata.file_type();
        if kind.is_symlink() {
            let target = std::fs::read_link(source).on_host(source)?;
            let target = target.as_os_str().as_bytes();
            let inode = self.volume.fs.symlink(&self.volume.ctx, made.parent, &made.name, target).at(path)?;
            return Ok((inode, None));
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
            () => return Err(refused(source, "of a type that cannot be copied")),
        };
        if new.kind != FileType::Regular {
            return Ok((self.create(made, &new)?, None));
        }
        // Opened before anything is made: a file that cannot be read leaves no trace.
        let file = File::open(source).on_host(source)?;
        let inode = self.create(made, &new)?;
        let written = self.fill(inode, path, |copy| copy.content(&file, source, inode, path));
        self.or_unlink(made, written)?;
        Ok((inode, host::flags(&file)))
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
        let block = self.volume.fs.geometry().block_size();
        let is_fixed = self.volume.fixed_time.is_some();
        let mut write = |offset: u64, bytes: &[u8]| -> Result<()> {
            interrupt::check()?;
            self.volume.fs.write(&self.volume.ctx, inode, offset, bytes).at(path)?;
            self.bytes += u64_from_usize(bytes.len());
            self.volume.progress.add_bytes(bytes.len());
            end = offset + u64_from_usize(bytes.len());
            Ok(())
        };
        if is_fixed {
            host::for_each_run_of_content(file, source, &mut buf, block, &mut write)?;
        } else {
            host::for_each_data(file, source, &mut buf, &mut write)?;
        }
        let size = file.metadata().on_host(source)?.size();
        if size > end {
            self.volume.fs.truncate(&self.volume.ctx, inode, size).at(path)?;
        }
        Ok(())
    }

    /// Owner, permissions, extended attributes and times.
    fn attributes(
        &mut self,
        inode: InodeNr,
        (source, links): (&Path, Links),
        metadata: &Metadata,
        path: &[u8],
    ) -> Result<()> {
        let (fs, ctx) = (&self.volume.fs, &self.volume.ctx);
        if !self.args.no_xattrs {
            for (name, value) in host::xattrs(source, links)? {
                match fs.set_xattr(ctx, inode, &name, &value, XattrMode::Set) {
                    // Attributes of other file systems mean nothing in this one.
                    Err(Error::NotSupported(_)) => self.left_out.attributes += 1,
                    done => done.at(path).with_context(|| about_attribute(&name, value.len()))?,
                }
            }
        }
        let (accessed, modified) = self.times(metadata);
        let changes = SetAttributes {
            permissions: (!metadata.is_symlink()).then(|| host::permissions(metadata)),
            uid: Some(self.owner.uid.unwrap_or(metadata.uid())),
            gid: Some(self.owner.gid.unwrap_or(metadata.gid())),
            accessed,
            modified: Some(modified),
        };
        Ok(fs.set_attributes(ctx, inode, &changes).at(path)?)
    }

    /// The times of the last access and of the last change that a copy gets.
    fn times(&self, metadata: &Metadata) -> (Option<Timestamp>, Timestamp) {
        let time = |seconds, nanoseconds: i64| Timestamp {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
        };
        let modified = time(metadata.mtime(), metadata.mtime_nsec());
        if let Some(latest) = self.volume.fixed_time {
            let modified = modified.min(latest);
            return (Some(modified), modified);
        }
        let accessed = time(metadata.atime(), metadata.atime_nsec());
        (self.args.preserve_atime.then_some(accessed), modified)
    }

    fn done(&mut self, path: &[u8], inode: InodeNr, metadata: &Metadata) -> Result<()> {
        self.copied.add(metadata, self.cluster());
        self.made(path, inode)
    }

    fn made(&mut self, path: &[u8], inode: InodeNr) -> Result<()> {
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

    /// Says how the work ended: what was copied, what was left out, and when the image was full what it would take.
    fn tell_end(&mut self, sources: &[OsString], began: Instant, ended: Result<()>) -> Result<()> {
        match ended {
            Err(failed) if is_full(&failed) => {
                let told = self.shortage(sources);
                self.volume.report(anyhow::anyhow!("{}; {told}", super::describe(&failed)))?;
            }
            Ok(()) if self.args.recursive => {
                let (names, bytes) = (self.names, self.bytes);
                self.volume.say(|| copied(names, bytes, began));
            }
            ended => ended?,
        }
        let LeftOut { itself, attributes } = self.left_out;
        if itself {
            self.volume.say(|| "left out: the image itself".to_owned());
        }
        if attributes > 0 {
            self.volume.say(|| format!("left out: {attributes} extended attributes that ext4 does not know"));
        }
        Ok(())
    }
}

/// Whether the image has no more room.
fn is_full(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref()).any(NameError::is_full)
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
