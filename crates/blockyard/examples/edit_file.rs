//! Edits a file in an existing image. The new content replaces the old completely or not at all,
//! even if the power fails midway.

use blockyard::{FileSystem, OpenOptions, Result};
use std::io::Write;
use std::path::Path;

/// Replaces `word` in a file with `by`.
fn replace(fs: &FileSystem, path: &Path, word: &str, by: &str) -> Result<()> {
    let text = fs.read_to_string(path)?.replace(word, by);
    let mode = fs.metadata(path)?.mode();
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(fs, &new)?;
    file.write_all(text.as_bytes())?;
    // The new content must be durable before the rename replaces the old file.
    file.sync_all()?;
    fs.rename(&new, path)
}

/// Makes an image with a file, and edits the file.
///
/// # Errors
/// Any error of the library or of the host's file system.
pub(crate) fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let image = folder.path().join("disk.img");
    let fs = FileSystem::make_image(&image, 32 << 20)?;
    fs.create_dir_all("etc/app")?;
    fs.write("etc/app/config", "colour = blue\nsize = 3\n")?;
    fs.close()?;

    let fs = FileSystem::open_image(&image)?;
    replace(&fs, Path::new("etc/app/config"), "blue", "green")?;
    print!("{}", fs.read_to_string("etc/app/config")?);
    assert_eq!(fs.read_dir("etc/app")?.count(), 1);
    fs.close()?;
    Ok(())
}
