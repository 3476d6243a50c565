//! An unnamed file that holds the content of files until it can be written to the image.

use crate::error::{Error, Result};
use blockyard_disk::num::u64_from_usize;
use std::fs::File;
use std::io::{self, BufRead};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The content of each file starts at a multiple of this many bytes, so that holes stay holes.
const ALIGN: u64 = 4096;

/// The unnamed file, to which the content of one file after the other is appended.
pub(super) struct Spool {
    file: File,
    /// The end of the content so far.
    end: u64,
}

impl Spool {
    /// An empty spool in a folder.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(folder).map_err(|error| Error::source(folder, error))?;
        Ok(Self { file, end: 0 })
    }

    /// Copies a file of `size` bytes. `data` is the ranges that are not holes; `content` delivers
    /// only their bytes, range after range. If `data` is `None`, there are no holes. Returns the
    /// byte where the file begins in the spool.
    pub(super) fn store(
        &mut self,
        content: &mut impl BufRead,
        size: u64,
        data: Option<&[Range<u64>]>,
    ) -> io::Result<u64> {
        let start = self.end;
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let end = start.checked_add(size).and_then(|end| end.checked_next_multiple_of(ALIGN));
        let end = end.ok_or_else(too_large)?;
        let whole = 0..size;
        let data = data.unwrap_or(std::slice::from_ref(&whole));
        for range in data {
            self.copy(content, start + range.start, range.end - range.start)?;
        }
        if i64::try_from(end).is_err() {
            return Err(too_large());
        }
        // Nothing was written for a hole at the end, but the spool must extend to the file's end.
        if data.last().map_or(0, |last| last.end) < size {
            self.file.set_len(end)?;
        }
        self.end = end;
        Ok(start)
    }

    /// Copies `length` bytes to position `at`, directly from the reader's buffer.
    fn copy(&self, content: &mut impl BufRead, at: u64, length: u64) -> io::Result<()> {
        let mut done = 0;
        while done < length {
            let there = match content.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                there => there?,
            };
            if there.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let n = usize::try_from(length - done).unwrap_or(usize::MAX).min(there.len());
            self.file.write_all_at(&there[..n], at + done)?;
            content.consume(n);
            done += u64_from_usize(n);
        }
        Ok(())
    }

    /// The file.
    pub(super) fn into_file(self) -> File {
        self.file
    }
}
