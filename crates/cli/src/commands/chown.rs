//! `blockyard chown IMAGE OWNER PATH...`: changes owners and groups in an image.

use blockyard_inspect::path::LastLink;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_device::ImagePath;
use blockyard_disk::FileType;
use blockyard_engine::SetAttributes;
use serde_json::json;

use super::below::{Named, Reach};
use super::owner::{Ids, Owner};
use super::volume::{self, AtPath, Volume};
use super::{Output, image, names};

/// Arguments of `blockyard chown`.
#[derive(clap::Args)]
#[command(after_help = volume::EXIT_CODES, after_long_help = format!("Names are looked up in /etc/passwd and /etc/group of \
    the image. Numbers need neither file, except for USER: with a number: the user's group is looked up in /etc/passwd. \
    As on Linux, a regular file loses its set-id bits, even if owner and group stay the same. \
    An exception is the set-group-ID bit of a file that the group may not execute: it stays.\n\n\
    JSON: one object per changed name: path, uid, gid. {}\n\n{}", names::BYTES_KEYS, volume::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// USER, USER:GROUP, :GROUP, or USER: for the user's own group; names of the image, or numbers
    owner: Owner,
    /// What to change
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Change directories and everything in them; symbolic links are changed themselves
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links themselves
    #[arg(short = 'P', long)]
    no_dereference: bool,
    #[command(flatten)]
    options: volume::Options,
}

impl Args {
    /// Changes the owners.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let reach = if self.recursive { Reach::Below } else { Reach::Itself };
        let last = if self.recursive || self.no_dereference { LastLink::Keep } else { LastLink::Follow };
        Volume::change(&self.image, &self.options, output, |volume| {
            let ids = self.owner.ids(volume)?;
            for path in &self.paths {
                let path = image::path_bytes(path);
                let found = volume.resolve(path, last).map_err(Into::into);
                let Some(inode) = volume.settle(found)? else { continue };
                volume.each_below(path, inode, reach, |volume, named| one(volume, named, ids))?;
            }
            Ok(())
        })
    }
}

fn one(volume: &Volume<'_>, named: &Named<'_>, ids: Ids) -> Result<()> {
    let before = volume.fs.attributes(named.inode).at(named.path)?;
    let kept = without_set_id(before.permissions);
    let loses = named.kind == FileType::Regular && kept != before.permissions;
    let changes = SetAttributes {
        uid: ids.uid,
        gid: ids.gid,
        permissions: loses.then_some(kept),
        ..SetAttributes::default()
    };
    volume.fs.set_attributes(&volume.ctx, named.inode, &changes).at(named.path)?;
    let (uid, gid) = (ids.uid.unwrap_or(before.uid), ids.gid.unwrap_or(before.gid));
    volume.json(|| names::with(json!({"uid": uid, "gid": gid}), "path", named.path));
    Ok(())
}

/// The permissions without the set-user-ID bit. The set-group-ID bit is cleared, too, if the group
/// may execute; otherwise it marks mandatory locking.
const fn without_set_id(permissions: u16) -> u16 {
    let gone = if permissions & 0o010 != 0 { 0o6000 } else { 0o4000 };
    permissions & !gone
}
