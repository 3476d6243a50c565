//! `blockyard undo`: restores an image to its state before a repair.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use blockyard_check::UndoError;
use blockyard_device::ImagePath;

use super::other_hosts::Unshared;
use super::{Output, image};

/// Arguments of `blockyard undo`.
#[derive(clap::Args)]
#[command(
    after_help = "The undo file stays. Remove it once the image is as you want it: while it is there, the next repair of \
                        the image is refused.\n\nJSON: one object: bytes (written back).\n\nExit codes: 0 done, 2 wrong usage, 8 the image cannot be \
                        written, was changed after the repair, or the file is not an undo file of it."
)]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// The undo file that `blockyard check -y` or `-z` wrote
    file: PathBuf,
    /// Write the old content back even if the image was changed after the repair: those changes are
    /// lost where the repair wrote, and the result may be damaged
    #[arg(short, long)]
    force: bool,
}

impl Args {
    /// Writes the old content back.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        image::refuse_no_image(&self.image)?;
        image::refuse_in_use(&self.image)?;
        let device = self.image.open()?;
        Unshared::new(&self.image, &device, output)?;
        let undo = if self.force { blockyard_check::undo_forced } else { blockyard_check::undo };
        let undone = undo(&device, &self.file).map_err(|error| match error {
            UndoError::Changed => anyhow!("{error} (--force overwrites it all the same)"),
            error => error.into(),
        });
        let bytes = undone.with_context(|| format!("{}: {}", self.image.display(), self.file.display()))?;
        if output.json {
            println!("{}", serde_json::json!({ "bytes": bytes }));
        } else if !output.quiet {
            println!("{bytes} bytes written back; {} is no longer needed", self.file.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}
