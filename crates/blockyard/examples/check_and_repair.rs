//! Checks a damaged image, plans its repair, carries the repair out, and undoes it.

use blockyard::FileSystem;
use blockyard::check::{self, RepairOptions, Report};
use blockyard::device::{BlockDevice, FileDevice};
use blockyard::disk::GroupNr;
use blockyard::inspect::reader::Reader;
use std::sync::Arc;

/// Prints what a check found. Says so if the check could not look beyond the superblock.
fn tell(report: &Report) {
    for finding in &report.findings {
        println!("{} {}: {}: {}", finding.code, finding.site, finding.code.text(), finding.detail);
    }
    println!("{} errors, {} findings not listed", report.errors, report.suppressed);
    if !report.examined {
        println!("nothing beyond the superblock was checked");
    }
}

/// Damages an image, repairs it, and undoes the repair.
///
/// # Errors
/// Any error of the library or of the host's file system.
pub(crate) fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (image, undo) = (folder.path().join("disk.img"), folder.path().join("disk.undo"));
    let fs = FileSystem::make_image(&image, 16 << 20)?;
    fs.write("letter", "kept")?;
    fs.close()?;

    // Zero the block bitmap of the first group, so that all its blocks look free.
    let device = Arc::new(FileDevice::open(&image)?);
    let reader = Reader::open(Arc::<FileDevice>::clone(&device))?;
    let bitmap = reader.group(GroupNr::new(0))?.block_bitmap().raw();
    device.write_at(bitmap << reader.superblock().geometry().block_bits(), &[0; 1024])?;
    let options = check::Options::default();
    let found = check::check(&*device, &options)?;
    tell(&found);
    assert!(!found.is_clean());

    let plan = check::plan(&*device, &RepairOptions { now: 1_700_000_000, ..RepairOptions::default() })?;
    for action in &plan.actions {
        println!("{}: {}, cost: {}", action.site, action.what, action.cost.text());
    }
    assert!(plan.is_complete(), "no damage would be left");
    plan.save_undo(&*device, &undo)?;
    println!("{} blocks written", plan.apply(&*device)?.blocks);
    assert!(check::check(&*device, &options)?.is_clean());

    check::undo(&*device, &undo)?;
    assert_eq!(check::check(&*device, &options)?, found, "the image is as damaged as before");
    Ok(())
}
