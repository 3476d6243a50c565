//! Edits a file in an image that is there: the new content comes whole or not at all, also when the
//! power fails midway.

use blockyard::{FileSystem, OpenOptions, Result};
use std::io::Write;
use std::path::Path;

/// Replaces a word of a file by another.
fn replace(fs: &FileSystem, path: &Path, word: &str, by: &str) -> Result<()> {
    let text = fs.read_to_string(path)?.replace(word, by);
    let mode = fs.metadata(path)?.mode();
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(fs, &new)?;
    file.write_all(text.as_bytes())?;
    // The content is durable before it gets the name.
    file.sync_all()?;
    fs.rename(&new, path)
}

/// Makes an image with a file, and edits that.
///
/// # Errors
/// Those of the library, and of files of the host.
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
