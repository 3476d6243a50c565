//! The comma-separated flags of `open` and modes of `fallocate`.

use crate::error::UnknownWord;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of open(2) are independent")]
pub struct OpenFlags {
    /// Opens for writing too.
    pub write: bool,
    /// Creates the file when it is missing.
    pub create: bool,
    /// Fails when the file exists.
    pub exclusive: bool,
    /// Truncates the file to zero bytes.
    pub truncate: bool,
    /// Writes at the end of the file.
    pub append: bool,
    /// Bypasses the page cache.
    pub direct: bool,
}

impl OpenFlags {
    /// Parses the comma-separated flags of [`crate::Op::Open`].
    ///
    /// # Errors
    /// Names the unknown word.
    pub fn parse(list: &str) -> Result<Self, UnknownWord> {
        let mut flags = Self::default();
        for word in list.split(',').filter(|word| !word.is_empty()) {
            match word {
                "r" => {}
                "rw" | "w" => flags.write = true,
                "create" => flags.create = true,
                "excl" => flags.exclusive = true,
                "trunc" => flags.truncate = true,
                "append" => flags.append = true,
                "direct" => flags.direct = true,
                other => {
                    let (word, known) = (other.to_owned(), "r, w, rw, create, excl, trunc, append, direct");
                    return Err(UnknownWord { list: "open flag", word, known });
                }
            }
        }
        Ok(flags)
    }
}

/// The mode of a fallocate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of fallocate(2) are independent")]
pub struct FallocateMode {
    /// Keeps the size of the file.
    pub keep_size: bool,
    /// Deallocates the blocks of the range.
    pub punch_hole: bool,
    /// Makes the range read as zeroes.
    pub zero_range: bool,
    /// Removes the range, and moves what follows down.
    pub collapse_range: bool,
    /// Inserts a hole of the range's length, and moves what follows up.
    pub insert_range: bool,
}

impl FallocateMode {
    /// Parses the comma-separated modes of [`crate::Op::Fallocate`].
    ///
    /// # Errors
    /// Names the unknown word.
    pub fn parse(list: &str) -> Result<Self, UnknownWord> {
        let mut mode = Self::default();
        for word in list.split(',').filter(|word| !word.is_empty()) {
            match word {
                "keep_size" => mode.keep_size = true,
                "punch_hole" => mode.punch_hole = true,
                "zero_range" => mode.zero_range = true,
                "collapse_range" => mode.collapse_range = true,
                "insert_range" => mode.insert_range = true,
                other => {
                    let known = "keep_size, punch_hole, zero_range, collapse_range, insert_range";
                    return Err(UnknownWord { list: "fallocate mode", word: other.to_owned(), known });
                }
            }
        }
        Ok(mode)
    }
}
