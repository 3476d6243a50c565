//! `blockyard touch IMAGE PATH...`: sets times in an image, and makes missing files.

use blockyard_inspect::path::LastLink;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_device::ImagePath;
use blockyard_disk::FileType;
use blockyard_engine::{NewInode, SetAttributes};
use serde_json::json;

use super::volume::{self, AtPath, Entry, Volume};
use super::{Output, image, names};

/// Arguments of `blockyard touch`.
#[derive(clap::Args)]
#[command(after_help = volume::EXIT_CODES, after_long_help = format!("Times are set to that of --time. A new file \
    belongs to 0:0 and has permissions 644.\n\nJSON: one object per touched file: path, inode. {}\n\n{}", names::BYTES_KEYS, volume::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// What to touch; symbolic links are followed
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Do not create files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Set only the access time
    #[arg(short = 'a')]
    access: bool,
    /// Set only the modification time
    #[arg(short = 'm')]
    modification: bool,
    #[command(flatten)]
    options: volume::Options,
}

impl Args {
    /// Sets the times.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        Volume::change(&self.image, &self.options, output, |volume| {
            for path in &self.paths {
                let done = self.one(volume, image::path_bytes(path));
                volume.settle(done)?;
            }
            Ok(())
        })
    }

    fn one(&self, volume: &Volume<'_>, path: &[u8]) -> Result<()> {
        let inode = match volume.resolve(path, LastLink::Follow) {
            Ok(inode) => inode,
            Err(error) if !error.is_missing() => return Err(error.into()),
            Err(_) if self.no_create => return Ok(()),
            Err(_) => {
                let place = volume.exactly(path, Entry::Other)?;
                let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
                volume.fs.create(&volume.ctx, place.parent, &place.name, &new).at(path)?
            }
        };
        let (both, now) = (self.access == self.modification, Some(volume.ctx.now));
        let changes = SetAttributes {
            accessed: now.filter(|_| both || self.access),
            modified: now.filter(|_| both || self.modification),
            times_are_now: true,
            ..SetAttributes::default()
        };
        volume.fs.set_attributes(&volume.ctx, inode, &changes).at(path)?;
        volume.json(|| names::with(json!({"inode": inode.raw()}), "path", path));
        Ok(())
    }
}
