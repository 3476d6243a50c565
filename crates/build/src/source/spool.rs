//! A file without a name that holds the content of files until the layout knows them all.

use crate::error::{Error, Result};
use blockyard_disk::num::u64_from_usize;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;
/// A file's content begins at a multiple of this, so that holes stay holes.
const ALIGN: u64 = 4096;

/// See the module's text.
pub(super) struct Spool {
    file: File,
    /// Where it ends.
    end: u64,
    buffer: Vec<u8>,
}

impl Spool {
    /// An empty one in a folder.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(folder).map_err(|error| Error::source(folder, error))?;
        Ok(Self { file, end: 0, buffer: vec![0; CHUNK] })
    }

    /// Copies the parts of a file that are no holes, which `content` gives one after the other;
    /// gives where the file begins. `None` for `data` is all of its `size` bytes.
    pub(super) fn store(
        &mut self,
        content: &mut impl Read,
        size: u64,
        data: Option<&[Range<u64>]>,
    ) -> io::Result<u64> {
        let start = self.end;
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let end = start.checked_add(size).and_then(|end| end.checked_next_multiple_of(ALIGN));
        let end = end.ok_or_else(too_large)?;
        let whole = 0..size;
        for range in data.unwrap_or(std::slice::from_ref(&whole)) {
            self.copy(content, start + range.start, range.end - range.start)?;
        }
        self.end = end;
        Ok(start)
    }

    fn copy(&mut self, content: &mut impl Read, at: u64, length: u64) -> io::Result<()> {
        let mut done = 0;
        while done < length {
            let most = usize::try_from(length - done).unwrap_or(usize::MAX).min(self.buffer.len());
            let n = content.read(&mut self.buffer[..most])?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.file.write_all_at(&self.buffer[..n], at + done)?;
            done += u64_from_usize(n);
        }
        Ok(())
    }

    /// The file.
    pub(super) fn into_file(self) -> File {
        self.file
    }
}
