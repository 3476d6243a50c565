//! `blockyard salvage`: copies the files that a repair would keep from an image that should not be
//! repaired in place.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use blockyard_check::{Cost, RepairOptions};
use blockyard_device::{ImagePath, OverlayDevice};
use blockyard_inspect::reader::Reader;
use blockyard_inspect::units::counted;

use super::{Output, get, image, mounted};

/// Arguments of `blockyard salvage`.
#[derive(clap::Args)]
#[command(
    after_help = "The image is repaired in memory and then copied; it is not written to. Files without a name are in \
                        DEST/lost+found.\n\nJSON: as for `blockyard get`.\n\nExit codes: 0 done, 1 some of it failed (each \
                        reported; the rest is done), 2 wrong usage, 8 nothing can be read."
)]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// The directory of the host for all files; created if it does not exist
    dest: OsString,
    /// Worker threads [default: one per CPU]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl Args {
    /// Repairs in memory, then copies.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        image::refuse_no_image(&self.image)?;
        mounted::warn(&self.image);
        let device = OverlayDevice::new(self.image.open_read_only()?);
        if !image::has_magic(&device) {
            image::refuse_partitioned(&self.image, device.below())?;
        }
        let check = blockyard_check::Options { threads: self.threads, ..Default::default() };
        let options = RepairOptions { check, ..RepairOptions::default() };
        match blockyard_check::plan(&device, &options) {
            Ok(plan) => {
                let costly = plan.actions.iter().filter(|action| action.cost > Cost::Nothing).count();
                if costly > 0 && !output.quiet && !output.json {
                    let count = counted(u64::try_from(costly).unwrap_or(u64::MAX), "change");
                    eprintln!(
                        "blockyard: {}: {count} cost something: check --plan shows them",
                        self.image.display()
                    );
                }
                plan.apply(&device)?;
            }
            Err(error) => eprintln!("blockyard: {}: {error}", self.image.display()),
        }
        let reader = Reader::open(Arc::new(device)).with_context(|| self.image.display().to_string())?;
        std::fs::create_dir_all(&self.dest).with_context(|| self.dest.display().to_string())?;
        get::Args::whole(self.image, self.dest).run_on(&reader, output)
    }
}
