//! `blockyard map IMAGE PATH`: the extents of a file, in blocks.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_disk::{Extent, Inode, InodeMap};
use blockyard_engine::reader::Reader;
use serde_json::json;

use super::{Output, image};

/// Flags and keys, for the help.
const KEYS: &str = "Flags: unwritten (allocated, reads as zeroes), eof (reaches the end of the file), last (no extent \
follows).\n\nJSON: one object an extent: logical, physical, length (all in blocks), flags; for a file without blocks \
of its own one object with map (none, inode).";

/// Arguments of `blockyard map`.
#[derive(clap::Args)]
#[command(after_help = image::EXIT_CODES, after_long_help = format!("{KEYS}\n\n{}", image::EXIT_CODES))]
pub(crate) struct Args {
    /// The image
    image: PathBuf,
    /// File or directory; a symbolic link at its end is not followed
    path: OsString,
}

impl Args {
    /// Prints the extents.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let reader = image::open(&self.image)?;
        image::print(&self.image, |out| {
            let inode = reader.resolve(image::path_bytes(&self.path), false)?;
            print(&reader, &inode, output.json, out)
        })
    }
}

fn print(reader: &Reader, inode: &Inode, json: bool, out: &mut dyn Write) -> Result<()> {
    let place = match inode.map() {
        InodeMap::None | InodeMap::Device(_) => Some(("none", "no content")),
        InodeMap::FastSymlink | InodeMap::Inline => Some(("inode", "the content lies in the inode")),
        InodeMap::Extents | InodeMap::Indirect => None,
    };
    if let Some((word, text)) = place {
        let line = if json { json!({ "map": word }).to_string() } else { text.to_owned() };
        return Ok(writeln!(out, "{line}")?);
    }
    let blocks = inode.size().div_ceil(1u64 << reader.superblock().geometry().block_bits());
    if !json {
        writeln!(out, "{:>12} {:>14} {:>10} flags", "logical", "physical", "length")?;
    }
    let mut extents = reader.extents(inode).peekable();
    while let Some(extent) = extents.next() {
        let extent = extent?;
        let flags = flags(&extent, blocks, extents.peek().is_none());
        let (logical, physical) = (extent.logical.raw(), extent.physical.raw());
        if json {
            let object =
                json!({"logical": logical, "physical": physical, "length": extent.length, "flags": flags});
            writeln!(out, "{object}")?;
        } else {
            let line = format!("{logical:>12} {physical:>14} {:>10} {}", extent.length, flags.join(","));
            writeln!(out, "{}", line.trim_end())?;
        }
    }
    Ok(())
}

fn flags(extent: &Extent, blocks: u64, is_last: bool) -> Vec<&'static str> {
    let reaches_end = u64::from(extent.logical.raw()) < blocks && u64::from(extent.end()) >= blocks;
    [("unwritten", extent.unwritten), ("eof", reaches_end), ("last", is_last)]
        .into_iter()
        .filter(|(_, holds)| *holds)
        .map(|(name, _)| name)
        .collect()
}
