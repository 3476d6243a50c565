//! A small image with three directories, and its repair.

use std::path::{Path, PathBuf};

use blockyard_check::{RepairOptions, plan};
use blockyard_device::FileDevice;
use blockyard_testkit::{e2fsck_clean, mke2fs, run};

/// The directories `one`, `one/two` and `three`.
pub(crate) fn made(folder: &Path, options: &[&str], size: &str) -> PathBuf {
    let image = folder.join("image");
    mke2fs(&image, options, size);
    for request in ["mkdir one", "mkdir one/two", "mkdir three"] {
        debugfs(&image, request);
    }
    image
}

/// What debugfs says to a request; it may write.
pub(crate) fn debugfs(image: &Path, request: &str) -> String {
    let output = run("debugfs", &["-w", "-R", request, image.to_str().expect("names here are text")]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Repairs it; e2fsck finds nothing after.
pub(crate) fn repair(image: &Path) {
    let device = FileDevice::open(image).expect("the image was just made");
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).expect("a plan");
    assert!(plan.is_complete(), "{:?}", plan.after);
    plan.apply(&device).expect("the plan fits the image");
    e2fsck_clean(image);
}
