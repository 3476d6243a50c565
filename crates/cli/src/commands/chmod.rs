//! `blockyard chmod IMAGE MODE PATH...`: changes permissions in an image.

use blockyard_inspect::path::LastLink;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_device::ImagePath;
use blockyard_disk::FileType;
use blockyard_engine::SetAttributes;
use serde_json::json;

use super::below::{Named, Reach};
use super::mode::ModeChange;
use super::volume::{self, AtPath, Volume};
use super::{Output, image, names};

/// Arguments of `blockyard chmod`.
#[derive(clap::Args)]
#[command(after_help = volume::EXIT_CODES, after_long_help = format!("A symbolic link given as PATH is followed; links \
    below it are left alone. An octal mode keeps the set-id bits of a directory.\n\nJSON: one object per changed name: path, mode. {}\n\n{}", names::BYTES_KEYS, volume::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Permissions in octal, or changes such as u+x,go-w; a change without u, g, o or a applies to
    /// all (there is no umask)
    #[arg(allow_hyphen_values = true)]
    mode: ModeChange,
    /// What to change
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Change directories and everything in them
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    options: volume::Options,
}

impl Args {
    /// Changes the permissions.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let reach = if self.recursive { Reach::Below } else { Reach::Itself };
        Volume::change(&self.image, &self.options, output, |volume| {
            for path in &self.paths {
                let path = image::path_bytes(path);
                let found = volume.resolve(path, LastLink::Follow).map_err(Into::into);
                let Some(inode) = volume.settle(found)? else { continue };
                volume.each_below(path, inode, reach, |volume, named| self.one(volume, named))?;
            }
            Ok(())
        })
    }

    fn one(&self, volume: &Volume<'_>, named: &Named<'_>) -> Result<()> {
        if named.kind == FileType::Symlink {
            return Ok(());
        }
        let before = volume.fs.attributes(named.inode).at(named.path)?;
        let permissions = self.mode.applied(before.permissions, named.kind == FileType::Directory);
        let changes = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
        volume.fs.set_attributes(&volume.ctx, named.inode, &changes).at(named.path)?;
        volume.json(|| names::with(json!({"mode": permissions}), "path", named.path));
        Ok(())
    }
}
