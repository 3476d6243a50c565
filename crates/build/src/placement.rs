//! The order of the content on the device.

use std::str::FromStr;

/// The order of the content on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// All directories, then files in the order of the tree. A walk of the tree reads all
    /// directories sequentially.
    #[default]
    DirectoriesFirst,
    /// Each directory directly before its files. A program that reads a directory and then its
    /// files finds their content next to the directory.
    WithDirectories,
    /// All directories, then files of up to 64 KiB, then larger ones. Small files are close
    /// together.
    SmallFirst,
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "directories-first" => Ok(Self::DirectoriesFirst),
            "with-directories" => Ok(Self::WithDirectories),
            "small-first" => Ok(Self::SmallFirst),
            other => Err(format!("{other}: give directories-first, with-directories or small-first")),
        }
    }
}
