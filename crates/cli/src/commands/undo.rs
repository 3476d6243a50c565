//! `blockyard undo`: restores an image to its state before a repair.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use blockyard_check::{UndoError, Undone};
use blockyard_device::ImagePath;

use super::other_hosts::Unshared;
use super::{Output, image};

/// Arguments of `blockyard undo`. The example stands here and not in `examples.rs`, because a test
/// runs all examples there, and this one needs an image that was repaired.
#[derive(clap::Args)]
#[command(
    after_help = "The undo file stays. Remove it before the next repair: `check -y` does not overwrite it. The undo file of a \
                        separate journal device is FILE.journal; `blockyard undo DEVICE FILE.journal` writes it back.\n\nJSON: one \
                        object: bytes (written back), cut_at (the length of an image that was cut short, which it has \
                        again; null for others).\n\nExit codes: 0 done, 2 wrong usage, 8 the image cannot be \
                        written, was changed after the repair, or the file is not an undo file of it.\n\nExamples:\n  blockyard check -y disk.img\n  \
                        blockyard undo disk.img disk.img.undo"
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
        let Undone { bytes, cut_at } =
            undone.with_context(|| format!("{}: {}", self.image.display(), self.file.display()))?;
        if let Some(length) = cut_at {
            self.cut(length).with_context(|| self.image.display().to_string())?;
        }
        if output.json {
            println!("{}", serde_json::json!({ "bytes": bytes, "cut_at": cut_at }));
        } else if !output.quiet {
            let cut = cut_at
                .map_or_else(String::new, |length| format!(", and the image is {length} bytes long again"));
            println!(
                "{bytes} bytes written back{cut}; remove {} before the next repair",
                self.file.display()
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Truncates the file to the length that it had before the repair.
    fn cut(&self, length: u64) -> std::io::Result<()> {
        let file = File::options().write(true).open(self.image.file())?;
        file.set_len(self.image.offset().saturating_add(length))?;
        file.sync_all()
    }
}
