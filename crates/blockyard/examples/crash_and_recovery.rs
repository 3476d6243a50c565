//! Simulates a power cut between two writes: what was synced is there afterwards, and the image is
//! clean. Then simulates later cuts of a disk with a volatile cache: the image is clean each time.

use blockyard::device::{CrashPlan, MemoryDevice, RecorderDevice};
use blockyard::{FileSystem, ImageOptions, check};
use std::sync::Arc;

/// Writes files, simulates the power cuts, and opens the disk as each cut left it.
///
/// # Errors
/// Any error of the library.
pub(crate) fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let disk = Arc::new(MemoryDevice::new(64 << 20));
    ImageOptions::new().make_on(Arc::clone(&disk))?.close()?;
    // The state of the disk now, and a record of every write from now on.
    let before = disk.duplicate();
    let recorder = Arc::new(RecorderDevice::new(Arc::clone(&disk)));

    let fs: FileSystem = ImageOptions::new().open_device(Arc::clone(&recorder))?;
    fs.write("order", "first")?;
    fs.open("order")?.sync_all()?;
    let cut = recorder.log().events().len();
    fs.write("order-2", "second")?;
    fs.remove_file("order")?;
    fs.close()?;

    // The disk after the power cut has all writes made before the cut, and no later write.
    let left = before.duplicate();
    recorder.log().apply_prefix(cut, &left)?;
    let fs = ImageOptions::new().open_device(Arc::new(left.duplicate()))?;
    assert_eq!(fs.read("order")?, b"first");
    assert!(!fs.exists("order-2")?);
    fs.close()?;

    let report = check::check(&left, &check::Options::default())?;
    println!("after the cut: {} findings, and the order is there", report.findings.len());
    assert!(report.is_clean());

    // Later power cuts, now of a disk with a volatile write cache: of the writes before a cut, any
    // after the last flush may be missing. The plan limits how many combinations of missing writes
    // are tried.
    let log = recorder.log();
    let plan = CrashPlan { subsets_max: 3, random_subsets: 2, torn: 0, ..CrashPlan::default() };
    let mut states = 0;
    for state in log.crash_states(&plan).filter(|state| state.point >= cut) {
        let left = Arc::new(before.duplicate());
        state.build(&log, &*left)?;
        ImageOptions::new().open_device(Arc::clone(&left))?.close()?;
        assert!(check::check(&*left, &check::Options::default())?.is_clean(), "{state}");
        states += 1;
    }
    println!("{states} states of the disk, all sound once they were opened");
    Ok(())
}
