//! Cuts the power in the middle of work: what was synced is there afterwards, and the image is
//! sound.

use blockyard::device::{MemoryDevice, RecorderDevice};
use blockyard::{FileSystem, ImageOptions, check};
use std::sync::Arc;

/// Writes, cuts the power, and opens what is left.
///
/// # Errors
/// Those of the library.
pub(crate) fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let disk = Arc::new(MemoryDevice::new(64 << 20));
    ImageOptions::new().make_on(Arc::clone(&disk))?.close()?;
    // What the disk holds now, and what happens to it from now on.
    let before = disk.duplicate();
    let recorder = Arc::new(RecorderDevice::new(Arc::clone(&disk)));

    let fs: FileSystem = ImageOptions::new().open_device(Arc::clone(&recorder))?;
    fs.write("order", "first")?;
    fs.open("order")?.sync_all()?;
    let cut = recorder.log().events().len();
    fs.write("order-2", "second")?;
    fs.remove_file("order")?;
    fs.close()?;

    // The disk as the power cut left it: what was written up to then, and nothing after.
    let left = before;
    recorder.log().apply_prefix(cut, &left)?;
    let fs = ImageOptions::new().open_device(Arc::new(left.duplicate()))?;
    assert_eq!(fs.read("order")?, b"first");
    assert!(!fs.exists("order-2")?);
    fs.close()?;

    let report = check::check(&left, &check::Options::default())?;
    println!("after the cut: {} findings, and the order is there", report.findings.len());
    assert!(report.is_clean());
    Ok(())
}
