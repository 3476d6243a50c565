//! `blockyard ln IMAGE TARGET LINK`: makes hard and symbolic links.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_device::ImagePath;
use blockyard_engine::Error;
use blockyard_inspect::path::{LastLink, last_name};
use serde_json::json;

use super::volume::{self, AtPath, Entry, Place, Volume};
use super::{Output, image, names};

/// Arguments of `blockyard ln`.
#[derive(clap::Args)]
#[command(after_help = volume::EXIT_CODES, after_long_help = format!("JSON: one object: path, \
    target. {}\n\n{}", names::BYTES_KEYS, volume::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// The file to give another name; with -s any text
    target: OsString,
    /// The new name, or a directory to make it in
    link: OsString,
    /// Make a symbolic link
    #[arg(short = 's', long)]
    symbolic: bool,
    /// Replace an existing file of that name
    #[arg(short = 'f', long)]
    force: bool,
    #[command(flatten)]
    options: volume::Options,
}

impl Args {
    /// Makes the link.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        Volume::change(&self.image, &self.options, output, |volume| {
            let done = self.make(volume, image::path_bytes(&self.target), image::path_bytes(&self.link));
            volume.settle(done)?;
            Ok(())
        })
    }

    fn make(&self, volume: &Volume<'_>, target: &[u8], link: &[u8]) -> Result<()> {
        let place = match last_name(target) {
            Some(name) if name != b".." => volume.destination(link, name, Entry::Other)?,
            _ => volume.exactly(link, Entry::Other)?,
        };
        // A replacement is made next to the old name and then renamed over it, so that the
        // name always exists.
        let replaces = self.force && volume.find(place.parent, &place.name).at(&place.path)?.is_some();
        let made = if replaces { volume.beside(&place)? } else { place.clone() };
        if self.symbolic {
            volume.fs.symlink(&volume.ctx, made.parent, &made.name, target).at(&place.path)?;
        } else {
            let inode = volume.resolve(target, LastLink::Keep)?;
            volume.fs.link(&volume.ctx, inode, made.parent, &made.name).at(&place.path)?;
        }
        if replaces {
            volume.put_in_place(&made, &place)?;
        }
        volume.json(|| names::with(names::with(json!({}), "path", &place.path), "target", target));
        Ok(())
    }
}

impl Volume<'_> {
    /// A place with an unused, temporary name in the directory of `place`.
    pub(super) fn beside(&self, place: &Place) -> Result<Place> {
        for number in 0..u32::MAX {
            let name = format!(".blockyard-{number}").into_bytes();
            if self.find(place.parent, &name).at(&place.path)?.is_none() {
                return Ok(Place { name, ..place.clone() });
            }
        }
        Err(Error::Exists).at(&place.path).map_err(Into::into)
    }

    /// Renames a temporary name over the final one. If that fails, removes the temporary name.
    pub(super) fn put_in_place(&self, made: &Place, place: &Place) -> Result<()> {
        let (from, to) = ((made.parent, made.name.as_slice()), (place.parent, place.name.as_slice()));
        let renamed = self.fs.rename(&self.ctx, from, to, blockyard_engine::RenameMode::Replace);
        // A rename between two names of one inode succeeds but does nothing, so the temporary name
        // may remain even after success.
        if self.find(made.parent, &made.name).at(&place.path)?.is_some() {
            self.fs.unlink(&self.ctx, made.parent, &made.name).at(&place.path)?;
        }
        renamed.at(&place.path).map_err(Into::into)
    }
}
