//! `blockyard mv IMAGE SOURCE... DEST`: renames and moves inside an image.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Result, bail};
use blockyard_device::ImagePath;
use blockyard_engine::{Error, RenameMode};
use blockyard_inspect::path::{ends_in_dot, last_name, names_directory};
use serde_json::json;

use super::volume::{self, AtPath, Entry, Volume};
use super::{Output, image, names};

/// Arguments of `blockyard mv`.
#[derive(clap::Args)]
#[command(after_help = volume::EXIT_CODES, after_long_help = format!("JSON: one object per moved name: from, \
    to. {}\n\n{}", names::BYTES_KEYS, volume::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// What to move, then the directory to move it into, or the new name
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DEST"])]
    paths: Vec<OsString>,
    /// Do not replace an existing name
    #[arg(short = 'n', long, conflicts_with = "exchange")]
    no_clobber: bool,
    /// Exchange the two names
    #[arg(long)]
    exchange: bool,
    /// Treat DEST as the new name, even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    #[command(flatten)]
    options: volume::Options,
}

impl Args {
    /// Moves the names.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        Volume::change(&self.image, &self.options, output, |volume| {
            let (sources, dest) = volume.sources_and_dest(&self.paths)?;
            for source in sources {
                let done = self.one(volume, image::path_bytes(source), dest);
                volume.settle(done)?;
            }
            Ok(())
        })
    }

    fn one(&self, volume: &Volume<'_>, source: &[u8], dest: &[u8]) -> Result<()> {
        let from = volume.parent(source)?;
        let Some(name) = last_name(source).filter(|name| *name != b".." && !ends_in_dot(source)) else {
            bail!("{}: cannot be moved", String::from_utf8_lossy(source));
        };
        let inode = volume.fs.lookup(from.0, from.1).at(source)?;
        let kind = volume.kind(inode).at(source)?;
        let entry = Entry::of(kind);
        if names_directory(source) && entry == Entry::Other {
            return Err(Error::NotDirectory).at(source).map_err(Into::into);
        }
        let place = if self.exchange || self.no_target_directory {
            volume.exactly(dest, entry)?
        } else {
            volume.destination(dest, name, entry)?
        };
        let mode = match (self.exchange, self.no_clobber) {
            (true, _) => RenameMode::Exchange,
            (false, true) => RenameMode::NoReplace,
            (false, false) => RenameMode::Replace,
        };
        // A rename between two names of one inode would do nothing, so it is refused.
        if mode != RenameMode::NoReplace
            && volume.fs.lookup(place.parent, &place.name).is_ok_and(|there| there == inode)
        {
            let [source, dest] = [source, &place.path].map(|path| String::from_utf8_lossy(path));
            bail!("{source} and {dest} are the same file");
        }
        volume.fs.rename(&volume.ctx, from, (place.parent, &place.name), mode).at(&place.path)?;
        volume.json(|| names::with(names::with(json!({}), "from", source), "to", &place.path));
        Ok(())
    }
}
