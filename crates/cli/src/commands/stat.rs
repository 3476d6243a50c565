//! `blockyard stat IMAGE [PATH]`: the superblock as dumpe2fs -h shows it, the groups, or one inode.
//!
//! Labels and values of the superblock and the groups are those of dumpe2fs 1.47 with TZ=UTC, so
//! that the outputs of both programs can be compared line by line. As in dumpe2fs, superblock and
//! groups are shown as they are on disk, even if the journal needs a replay.

mod field;
mod groups;
mod inode;
mod superblock;

use std::ffi::OsString;
use std::process::ExitCode;

use blockyard_device::ImagePath;

use super::{Output, image};

/// The keys of the JSON objects, for the help.
const KEYS: &str = "JSON: without PATH one object whose keys are dumpe2fs's labels in lower case with `_` for other \
characters (block_count, free_blocks, filesystem_features as a list, times as Unix seconds); a key is absent if \
dumpe2fs prints no such line. With --groups one object per group follows: group, first_block, last_block, flags, checksum, \
superblock, descriptors, reserved, block_bitmap, inode_bitmap, inode_table, free_clusters, free_inodes, directories, \
unused_inodes, free_block_ranges, free_inode_ranges (ranges as [first, last]). With PATH: inode, type, mode, uid, gid, \
links, size, sectors, flags, generation, project, accessed, modified, changed, created (as [seconds, nanoseconds]), map, \
target (if it is not UTF-8, target_bytes has its bytes in hexadecimal), device, xattrs (values in hexadecimal; a name that is not UTF-8 is hex: and \
its bytes in hexadecimal). Other text that is not UTF-8, such as the volume name, has \
a second key, as target does.";

/// Arguments of `blockyard stat`.
#[derive(clap::Args)]
#[command(after_help = image::EXIT_CODES, after_long_help = format!("{KEYS}\n\n{}", image::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Show the inode of this path instead of the file system (a symbolic link at the end is not
    /// followed)
    path: Option<OsString>,
    /// Show every group too
    #[arg(long, short = 'g', conflicts_with = "path")]
    groups: bool,
}

impl Args {
    /// Prints the requested information.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        if let Some(path) = &self.path {
            let reader = image::open(&self.image)?;
            return image::print(&self.image, output.mutes_text(), |out| {
                inode::print(&reader, image::path_bytes(path), output.json, out)
            });
        }
        let reader = image::open_as_is(&self.image)?;
        image::print(&self.image, output.mutes_text(), |out| {
            superblock::print(&reader, output.json, out)?;
            if self.groups { groups::print(&reader, output.json, out) } else { Ok(()) }
        })
    }
}
