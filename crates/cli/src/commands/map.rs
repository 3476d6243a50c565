//! `blockyard map IMAGE [PATH]`: the extents of a file in blocks, or the allocation map of the
//! whole image.

use blockyard_inspect::path::LastLink;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use blockyard_device::ImagePath;
use blockyard_disk::num::{u64_from_usize, usize_from_u32};
use blockyard_disk::{Extent, Inode, InodeMap};
use blockyard_inspect::map::AllocationMap;
use blockyard_inspect::reader::Reader;
use blockyard_inspect::units::counted;
use serde_json::json;

use super::{Output, image};

/// Flags and keys, for the help.
const KEYS: &str = "With PATH it prints a line per extent: logical, physical and length, all in blocks. Flags: unwritten (allocated, reads as zeroes), eof (reaches the end of the file), last (no extent \
follows).\n\nJSON: one object per extent: logical, physical, length (all in blocks), flags; for a file without blocks \
of its own one object with map (none, inode).\n\nWithout PATH it prints the map of the image: one row per group (three \
or more equal rows are shown as one), 32 squares per row, from blank (free) through . : + # to @ (full). JSON: one object per group: group, \
first_block, clusters, used, squares (used share of each, 0 to 1); then one object map: boundaries (changes between used \
and free squares), empty_groups, touched_groups, used_clusters.";

/// Arguments of `blockyard map`.
#[derive(clap::Args)]
#[command(after_help = image::EXIT_CODES, after_long_help = format!("{KEYS}\n\n{}", image::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// File or directory; a symbolic link at the end is not followed (default: the whole image)
    path: Option<OsString>,
    /// Write the map of the image as a picture with a legend: files and metadata in separate
    /// colours, long stretches without files left out
    #[arg(long, value_name = "FILE", conflicts_with = "path")]
    svg: Option<PathBuf>,
}

impl Args {
    /// Prints the extents or the map.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        if let Some(picture) = &self.svg {
            image::refuse_same(&self.image, picture)?;
        }
        let reader = image::open(&self.image)?;
        image::print(&self.image, output.mutes_text(), |out| match &self.path {
            Some(path) => {
                let inode = reader.resolve(image::path_bytes(path), LastLink::Keep)?;
                print(&reader, &inode, output.json, out)
            }
            None => self.whole(&reader, output, out),
        })
    }

    fn whole(&self, reader: &Reader, output: &Output, out: &mut dyn Write) -> Result<()> {
        let map = blockyard_inspect::scan::map_of(reader)?;
        if let Some(path) = &self.svg {
            let title = self.image.display().to_string();
            // If the image is too damaged to map its files, the picture still shows the rest.
            let files = blockyard_inspect::scan::map_of_files(reader).ok();
            std::fs::write(path, map.svg(&title, files.as_ref()) + "\n")
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if output.json {
            return print_json(reader, &map, out);
        }
        if self.svg.is_some() || output.quiet {
            return Ok(());
        }
        write!(out, "{}", map.text())?;
        let figures = map.figures();
        let clusters = reader.superblock().geometry().clusters_per_group();
        Ok(writeln!(
            out,
            "{} of {clusters} clusters, {} of them empty; {} used; {}",
            counted(u64_from_usize(map.groups()), "group"),
            figures.empty_groups,
            counted(figures.used_clusters, "cluster"),
            counted(figures.boundaries, "boundary")
        )?)
    }
}

fn print_json(reader: &Reader, map: &AllocationMap, out: &mut dyn Write) -> Result<()> {
    let geometry = reader.superblock().geometry();
    for group in geometry.all_groups() {
        let number = usize_from_u32(group.raw());
        let object = json!({"group": group.raw(), "first_block": geometry.group_first_block(group).raw(),
            "clusters": geometry.clusters_in_group(group), "used": map.used_in(number),
            "squares": map.shares(number)});
        writeln!(out, "{object}")?;
    }
    let figures = map.figures();
    let object = json!({"map": {"boundaries": figures.boundaries, "empty_groups": figures.empty_groups,
        "touched_groups": figures.touched_groups, "used_clusters": figures.used_clusters}});
    Ok(writeln!(out, "{object}")?)
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
