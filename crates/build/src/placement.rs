//! In which order content lies.

use std::str::FromStr;

/// In which order content lies on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// All directories, then files in the order of the tree: who walks the tree reads its names in
    /// one piece.
    #[default]
    DirectoriesFirst,
    /// Each directory right before the files in it: who opens one directory after the other finds
    /// their content beside it.
    WithDirectories,
    /// All directories, then files of up to 64 KiB, then larger ones: small files lie close
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
            other => Err(format!("{other}: content lies directories-first, with-directories or small-first")),
        }
    }
}
