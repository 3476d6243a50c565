//! `blockyard mkdir IMAGE PATH...`: makes directories.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_device::ImagePath;
use blockyard_disk::{FileType, InodeNr};
use blockyard_engine::{Error, NewInode, SetAttributes};
use blockyard_inspect::path::{LastLink, components};
use serde_json::json;

use super::owner::{Ids, Owner};
use super::volume::{self, AtPath, Entry, Place, Volume};
use super::{Output, image, names};

/// Arguments of `blockyard mkdir`.
#[derive(clap::Args)]
#[command(after_help = volume::EXIT_CODES, after_long_help = format!("JSON: one object per new directory: path, \
    inode. {}\n\n{}", names::BYTES_KEYS, volume::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Directories to make
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Make missing parents; an existing directory is not an error
    #[arg(short = 'p', long)]
    parents: bool,
    /// Permissions, in octal; parents that -p makes get 755
    #[arg(short = 'm', long, default_value = "755", value_parser = permissions)]
    mode: u16,
    /// Owner and group: USER, USER:GROUP or :GROUP, as names in the image or numbers [default: 0:0]
    #[arg(long, value_name = "OWNER")]
    owner: Option<Owner>,
    #[command(flatten)]
    options: volume::Options,
}

fn permissions(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("permissions are up to four octal digits, such as 755".to_owned()),
    }
}

impl Args {
    /// Makes the directories.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        Volume::change(&self.image, &self.options, output, |volume| {
            let owner = self.owner.as_ref().map_or(Ok(Ids::default()), |owner| owner.ids(volume))?;
            for path in &self.paths {
                let done = self.make(volume, image::path_bytes(path), owner);
                volume.settle(done)?;
            }
            Ok(())
        })
    }

    fn make(&self, volume: &Volume<'_>, path: &[u8], owner: Ids) -> Result<()> {
        if !self.parents {
            let place = volume.exactly(path, Entry::Directory)?;
            one(volume, &place, self.mode, owner)?;
            return Ok(());
        }
        let names: Vec<&[u8]> = components(path).collect();
        let mut at = InodeNr::ROOT;
        for depth in 0..names.len() {
            let so_far = [b"/", names[..=depth].join(&b'/').as_slice()].concat();
            at = match volume.resolve(&so_far, LastLink::Follow) {
                Ok(inode) if volume.kind(inode).at(&so_far)? == FileType::Directory => inode,
                Ok(_) => return Err(Error::NotDirectory).at(&so_far).map_err(Into::into),
                Err(_) => {
                    // The owner must be able to enter the parents, as with mkdir -p.
                    let mode = if depth + 1 == names.len() { self.mode } else { 0o755 };
                    one(
                        volume,
                        &Place { parent: at, name: names[depth].to_vec(), path: so_far },
                        mode,
                        owner,
                    )?
                }
            };
        }
        Ok(())
    }
}

fn one(volume: &Volume<'_>, place: &Place, mode: u16, owner: Ids) -> Result<InodeNr> {
    let path = &place.path;
    let new = NewInode { kind: FileType::Directory, permissions: mode, device: None };
    let inode = volume.fs.create(&volume.ctx, place.parent, &place.name, &new).at(path)?;
    let changes = SetAttributes {
        permissions: Some(mode),
        uid: Some(owner.uid.unwrap_or(0)),
        gid: Some(owner.gid.unwrap_or(0)),
        ..SetAttributes::default()
    };
    volume.fs.set_attributes(&volume.ctx, inode, &changes).at(path)?;
    volume.json(|| names::with(json!({"inode": inode.raw()}), "path", path));
    Ok(inode)
}
