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

/// An image with so many directories in `many`, named by their numbers.
pub(crate) fn with_many(folder: &Path, count: usize, options: &[&str], size: &str) -> PathBuf {
    let tree = folder.join("tree");
    for n in 0..count {
        std::fs::create_dir_all(tree.join(format!("many/{n}"))).expect("a folder can be made");
    }
    let image = folder.join("image");
    let tree = tree.to_str().expect("test paths are UTF-8");
    mke2fs(&image, &[options, &["-d", tree]].concat(), size);
    image
}

/// The answer of debugfs to a request, which may write.
pub(crate) fn debugfs(image: &Path, request: &str) -> String {
    let output = run("debugfs", &["-w", "-R", request, image.to_str().expect("names here are text")]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Repairs the image; e2fsck finds nothing afterwards.
pub(crate) fn repair(image: &Path) {
    let device = FileDevice::open(image).expect("the image was just made");
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).expect("a plan");
    assert!(plan.is_complete(), "{:?}", plan.after);
    plan.apply(&device).expect("the plan fits the image");
    e2fsck_clean(image);
}

/// Byte offset of an inode's slot in the image; `inode` as debugfs takes it.
pub(crate) fn slot_at(image: &Path, inode: &str, block_size: u64) -> u64 {
    // located at block 43, offset 0x0080
    let said = debugfs(image, &format!("imap {inode}"));
    let behind = |mark: &str| said.split(mark).nth(1).and_then(|rest| rest.split([',', '\n']).next());
    let block = behind("at block ").and_then(|block| block.parse::<u64>().ok());
    let offset = behind("offset 0x").and_then(|offset| u64::from_str_radix(offset.trim(), 16).ok());
    block.zip(offset).map(|(block, offset)| block * block_size + offset).expect("debugfs knows the inode")
}

/// The entries of lost+found, as `(inode, name)`.
pub(crate) fn lost_found(image: &Path) -> Vec<(u32, String)> {
    let listed = debugfs(image, "ls -p lost+found");
    let entries = listed.lines().filter_map(|line| {
        let mut fields = line.split('/').skip(1);
        let inode = fields.next()?.parse().ok()?;
        Some((inode, fields.nth(3)?.to_owned()))
    });
    entries.filter(|(_, name)| name != "." && name != "..").collect()
}
