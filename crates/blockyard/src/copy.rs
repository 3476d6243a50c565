//! Copies of trees between the host and an image.
//!
//! These copies stop at the first error and show no progress. The commands `blockyard put` and
//! `blockyard get` do more: they continue after most errors, replace a file only once the new
//! content is complete, and report how much space is missing.

mod attributes;
mod into_image;
mod out_of_image;

use std::path::Path;

use crate::error::Result;
use crate::file_system::FileSystem;

impl FileSystem {
    /// Copies a file, link or tree of the host into the image, with types, permissions, owners,
    /// times, extended attributes (access control lists included), holes and hard links. Returns
    /// the number of files, links and directories copied.
    ///
    /// - `dest` is the path of the copy itself, not of the directory that gets it.
    /// - A directory that exists keeps its other entries. It gets the permissions, owner, times and
    ///   extended attributes of the source, even if it is the root.
    /// - A file that exists gets the new content and attributes. If there is a symbolic link where
    ///   a file is to be copied, the link is followed; if its target is missing, the target is
    ///   created.
    /// - A hard link that an earlier copy made is kept. Anything else that exists where something
    ///   is to be copied is an error.
    /// - Symbolic links are copied as links, even if `source` is one. Two hard links to one file
    ///   are copied as hard links if both are below `source`.
    /// - The flags that `chattr` sets are not copied (see [`FileSystem::set_flags`]), and neither
    ///   is the time of creation.
    /// - The copy reports no progress. A program that wants to show progress reads the host's files
    ///   itself, and writes them with [`File::write_at`](crate::File::write_at).
    ///
    /// # Errors
    /// The first error on either side ends the copy. What was copied by then stays. An attribute
    /// with a prefix that ext4 does not know is an error.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// # let folder = tempfile::tempdir().unwrap();
    /// std::fs::write(folder.path().join("file"), "text").unwrap();
    /// fs.copy_in(folder.path(), "tree")?;
    /// assert_eq!(fs.read("tree/file")?, b"text");
    /// fs.copy_out("tree", folder.path().join("back"))?;
    /// assert_eq!(std::fs::read(folder.path().join("back/file")).unwrap(), b"text");
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_in(&self, source: impl AsRef<Path>, dest: impl AsRef<Path>) -> Result<u64> {
        into_image::copy_in(self, source.as_ref(), dest.as_ref())
    }

    /// Copies a file, link or tree of the image to the host: [`FileSystem::copy_in`] in the other
    /// direction.
    ///
    /// - To set owners, make devices, and set `trusted.` and `security.` attributes, the process
    ///   needs privilege. Without privilege, the copies belong to the user who runs the process. A
    ///   file whose owner cannot be set loses its set-id bits. A device, or an attribute that
    ///   cannot be set, is an error.
    /// - If there is a symbolic link where a file is to be copied, the file replaces the link.
    /// - If there is a symbolic link to a directory where a directory is to be copied, the link is
    ///   followed if it is `dest` itself. Below `dest` it is an error.
    /// - If anything exists where a hard link is to be made, that is an error.
    ///
    /// The copy reports no progress. A program that wants to show progress reads in a loop with
    /// [`File::read_at`](crate::File::read_at), and skips holes with
    /// [`File::seek_data`](crate::File::seek_data) and
    /// [`File::seek_hole`](crate::File::seek_hole).
    ///
    /// # Errors
    /// As [`FileSystem::copy_in`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// # let folder = tempfile::tempdir().unwrap();
    /// fs.create_dir_all("etc/app")?;
    /// fs.write("etc/app/config", "colour = blue\n")?;
    /// assert_eq!(fs.copy_out("etc", folder.path().join("etc"))?, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_out(&self, source: impl AsRef<Path>, dest: impl AsRef<Path>) -> Result<u64> {
        out_of_image::copy_out(self, source.as_ref(), dest.as_ref())
    }
}
