//! `blockyard cat IMAGE PATH...`: the content of files, byte for byte.

use blockyard_inspect::path::LastLink;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_device::ImagePath;
use blockyard_disk::num::u64_from_usize;
use blockyard_inspect::reader::Reader;
use serde_json::json;

use super::{Output, image, names};

/// The keys of the JSON objects, for the help.
const KEYS: &str = "JSON: one object per piece of up to 64 KiB: path, offset, length, data (hexadecimal). If path is not UTF-8, \
path_bytes has its bytes in hexadecimal. On a terminal, control characters are shown escaped; append `| cat` to get them as they are.";

/// Arguments of `blockyard cat`.
#[derive(clap::Args)]
#[command(after_help = image::EXIT_CODES, after_long_help = format!("{KEYS}\n\n{}", image::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Regular files; symbolic links are followed
    #[arg(required = true)]
    paths: Vec<OsString>,
}

impl Args {
    /// Writes the files one after the other.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let reader = image::open(&self.image)?;
        image::print(&self.image, output.mutes_text(), |out| {
            self.paths.iter().try_for_each(|path| copy(&reader, image::path_bytes(path), output.json, out))
        })
    }
}

fn copy(reader: &Reader, path: &[u8], json: bool, out: &mut dyn Write) -> Result<()> {
    let inode = reader.resolve(path, LastLink::Follow)?;
    image::expect_file(&inode, path)?;
    let mut buf = vec![0; if json { 1 << 16 } else { 1 << 20 }];
    let mut offset = 0;
    while offset < inode.size() {
        let length = reader.read(&inode, offset, &mut buf)?;
        if json {
            let data = names::hexadecimal(&buf[..length]);
            let object = json!({"offset": offset, "length": length, "data": data});
            writeln!(out, "{}", names::with(object, "path", path))?;
        } else {
            out.write_all(&buf[..length])?;
        }
        offset += u64_from_usize(length);
    }
    Ok(())
}
