//! Copies everything except directories: the name, the inode and the content.

use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::Result;
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::num::{low32, u64_from_usize};
use blockyard_disk::{FileType, InodeNr};
use blockyard_engine::{Error, NewInode};

use super::{CHUNK, Copy};
use crate::commands::host::{self, Links, OnHost, refused};
use crate::commands::interrupt;
use crate::commands::volume::{AtPath, Place};

impl Copy<'_, '_> {
    /// Copies anything but a directory.
    pub(super) fn leaf(
        &mut self,
        source: &Path,
        links: Links,
        metadata: &Metadata,
        place: &Place,
    ) -> Result<()> {
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

    /// Calls `make` with the place of a new name. If the name exists already, `make` gets a
    /// temporary name, which is then renamed over the existing one.
    pub(super) fn install(
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

    pub(super) fn create(&self, place: &Place, new: &NewInode) -> Result<InodeNr> {
        Ok(self.volume.fs.create(&self.volume.ctx, place.parent, &place.name, new).at(&place.path)?)
    }

    /// Makes the inode with its content. Returns the inode and, for a regular file, the flags of
    /// `source` if the host reports them.
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
        // Open the file before making anything: a file that cannot be read leaves no trace.
        let file = File::open(source).on_host(source)?;
        let inode = self.create(made, &new)?;
        let written = self.fill(inode, path, |copy| copy.content(&file, source, inode, path));
        self.or_unlink(made, written)?;
        Ok((inode, host::flags(&file)))
    }

    /// Runs `body` with the inode open for writing. Closing the inode releases its preallocations.
    pub(super) fn fill(
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

    /// If a step after making the name `made` failed, removes the name, unless the file system
    /// itself has failed.
    pub(super) fn or_unlink(&self, made: &Place, done: Result<()>) -> Result<()> {
        if done.is_err() && !self.volume.fs.has_failed() {
            self.volume.fs.unlink(&self.volume.ctx, made.parent, &made.name).at(&made.path)?;
        }
        done
    }

    /// Copies the data of a file. Holes stay holes; with a fixed time, blocks of zeroes become
    /// holes too.
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
}

fn device_number(number: u64) -> DeviceNumber {
    DeviceNumber {
        major: low32(u64::from(rustix::fs::major(number))),
        minor: low32(u64::from(rustix::fs::minor(number))),
    }
}
