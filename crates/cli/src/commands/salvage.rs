//! `blockyard salvage`: copies the files that a repair would keep, from an image that should not be
//! repaired in place.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use blockyard_check::{Action, Code, Cost, Plan, RepairOptions};
use blockyard_device::{BlockDevice, DeviceError, ImagePath, OverlayDevice};
use blockyard_disk::superblock::{MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{Checksums, Compat, Incompat};
use blockyard_inspect::reader::Reader;
use blockyard_inspect::units::counted;
use zerocopy::{FromBytes, IntoBytes};

use super::longer::Longer;
use super::{Output, get, host, image, mounted};

/// Exit code if the repair removed or cut something, so that it is missing from the copy.
const EXIT_INCOMPLETE: u8 = 1;

/// Arguments of `blockyard salvage`.
#[derive(clap::Args)]
#[command(
    after_help = "The image is repaired in memory and then copied; it is not written to. Files without a name are in \
                        DEST/lost+found.\n\nJSON: as for `blockyard get`.\n\nExit codes: 0 done, 1 some files could not be copied, have \
                        zeroes because the image was cut short, or were removed or cut by the repair (the rest is done), 2 wrong usage, 8 nothing can be read, or DEST is not empty."
)]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// The directory of the host for all files: a new or an empty one
    dest: OsString,
    /// The device or file that holds the journal, when it is not in the image. Without this option,
    /// what only a separate journal holds is left out
    #[arg(short, long, value_name = "DEVICE", value_parser = image::operand())]
    journal_device: Option<ImagePath>,
    /// Worker threads [default: one per CPU]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl Args {
    /// Repairs in memory, then copies. If no repair can be planned, copies from the image as it is.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        image::refuse_no_image(&self.image)?;
        host::refuse_occupied(Path::new(&self.dest))?;
        mounted::warn(&self.image);
        let image = self.image.open_read_only()?;
        if !image::has_magic(&image) {
            image::refuse_partitioned(&self.image, &image)?;
        }
        let longer = Longer::as_claimed(image);
        let cut_at = longer.cut_at();
        let device = OverlayDevice::new(longer);
        let journal = self.journal_device.as_ref().map(ImagePath::open_read_only).transpose()?;
        let journal = journal.map(OverlayDevice::new);
        if journal.is_none() && forget_journal_device(&device)? {
            eprintln!(
                "blockyard: {}: its journal is on another device (-j names it); what only the journal holds is left out",
                self.image.display()
            );
        }
        let journal = journal.as_ref().map(|journal| -> &dyn BlockDevice { journal });
        let check = blockyard_check::Options { threads: self.threads, ..Default::default() };
        let options = RepairOptions { check, cut_at, ..RepairOptions::default() };
        let mut is_incomplete = false;
        match blockyard_check::plan_with_journal(&device, journal, &options) {
            Ok(plan) => {
                let costly = plan.actions.iter().filter(|action| action.cost > Cost::Nothing).count();
                if costly > 0 && !output.quiet && !output.json {
                    let count = counted(u64::try_from(costly).unwrap_or(u64::MAX), "place");
                    let them = if costly == 1 { "it" } else { "them" };
                    eprintln!(
                        "blockyard: {}: a repair would cost something in {count}; `blockyard check --plan` \
                         lists {them}",
                        self.image.display()
                    );
                }
                self.tell_zeroed(&plan);
                is_incomplete = plan.actions.iter().any(|action| action.cost >= Cost::Cut);
                plan.apply_with_journal(&device, journal)?;
            }
            Err(error) => eprintln!("blockyard: {}: {error}", self.image.display()),
        }
        let reader = Reader::open(Arc::new(device)).with_context(|| self.image.display().to_string())?;
        std::fs::create_dir_all(&self.dest).with_context(|| self.dest.display().to_string())?;
        let copied = get::Args::whole(self.image, self.dest).run_on(&reader, output)?;
        Ok(if is_incomplete && copied == ExitCode::SUCCESS {
            ExitCode::from(EXIT_INCOMPLETE)
        } else {
            copied
        })
    }

    /// Reports the files that have zeroes in place of content that a truncated image lost.
    fn tell_zeroed(&self, plan: &Plan<'_>) {
        let is_zeroed = |action: &&Action| action.code == Code::DEVICE_SHORT && action.cost == Cost::Cut;
        for action in plan.actions.iter().filter(is_zeroed) {
            let inode = || action.site.inode.map_or_else(String::new, |inode| format!("inode {inode}"));
            let path = action.path.as_ref().map_or_else(inode, |path| crate::terminal::escaped(path));
            eprintln!("blockyard: {}: {path}: {}", self.image.display(), action.what);
        }
    }
}

/// If the superblock is intact and says that the journal is on another device, turns the file
/// system into one without a journal. Returns whether it did so.
fn forget_journal_device(device: &dyn BlockDevice) -> Result<bool, DeviceError> {
    let mut bytes = [0; RawSuperblock::SIZE];
    if device.size() < PRIMARY_OFFSET + 1024 {
        return Ok(false);
    }
    device.read_at(PRIMARY_OFFSET, &mut bytes)?;
    let sb = RawSuperblock::mut_from_bytes(&mut bytes).expect("1024 bytes are a superblock");
    let has_journal = sb.s_magic.get() == MAGIC && sb.compat().contains(Compat::HAS_JOURNAL);
    if !has_journal || sb.s_journal_inum.get() != 0 || Checksums::of(sb).verify_superblock(sb).is_err() {
        return Ok(false);
    }
    sb.set_compat(sb.compat().difference(Compat::HAS_JOURNAL));
    sb.set_incompat(sb.incompat().difference(Incompat::RECOVER));
    sb.s_journal_uuid = [0; 16];
    sb.s_journal_dev.set(0);
    Checksums::of(sb).seal_superblock(sb);
    device.write_at(PRIMARY_OFFSET, sb.as_bytes())?;
    Ok(true)
}
