//! Eight threads write to one image at once: each to its own file, and all of them to one common
//! file.

use blockyard::{FileSystem, Result};
use std::os::unix::fs::FileExt;
use std::thread;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 512;

/// Writes one thread's blocks: to the thread's own file, and to every eighth block of the common
/// file.
fn write(fs: &FileSystem, common: &blockyard::File, thread: u8) -> Result<()> {
    let own = fs.create(format!("own/{thread}"))?;
    let block = [thread; 4096];
    for number in 0..BLOCKS {
        own.write_all_at(&block, number * BLOCK)?;
        common.write_all_at(&block, (number * 8 + u64::from(thread)) * BLOCK)?;
    }
    own.sync_all()
}

/// Starts the threads, and checks what they wrote to the common file.
///
/// # Errors
/// Any error of the library or of the host's file system.
pub(crate) fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let fs = FileSystem::make_image(folder.path().join("disk.img"), 128 << 20)?;
    fs.create_dir("own")?;
    let common = fs.create_new("common")?;
    thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|thread| {
                scope.spawn({
                    let (fs, common) = (&fs, &common);
                    move || write(fs, common, thread)
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("no writer panics"))
    })?;
    for (at, block) in fs.read("common")?.chunks(4096).enumerate() {
        assert!(block.iter().all(|byte| usize::from(*byte) == at % 8), "block {at}");
    }
    println!("{} bytes, {} files and directories", 2 * 8 * BLOCKS * BLOCK, fs.walk("/")?.count());
    fs.close()?;
    Ok(())
}
