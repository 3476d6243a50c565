//! Reads and writes that bypass the cache, and copies of ranges.

use blockyard_disk::num::{u64_from_usize, usize_from_u64};

use super::{File, PIECE, check_offset};
use crate::error::{Reason, Result};

impl File {
    /// Reads at byte `offset` straight from the device, after writing back dirty data in the range.
    /// Offset and length must be whole blocks. Returns the number of bytes read, which is short
    /// only at the end of the file. Content that is stored in the inode, and journaled data, are
    /// read as by [`File::read_at`].
    ///
    /// # Errors
    /// As [`File::read_at`]; `EINVAL` for partial blocks.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", [7; 8192])?;
    /// let mut block = [0; 4096];
    /// assert_eq!(fs.open("file")?.read_direct_at(&mut block, 4096)?, 4096);
    /// assert_eq!(block, [7; 4096]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_direct_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = check_offset(offset).and_then(|()| {
            if !self.abilities.read {
                return Err(Reason::NotOpenForThis);
            }
            self.run(|engine, ctx, id| engine.read_direct(ctx, id, offset, buf))
        });
        self.named(read)
    }

    /// Writes at byte `offset` straight to the device. Offset and length must be whole blocks.
    /// Returns the number of bytes written, which is short only when space runs out or the file
    /// reaches the largest size that it may have. The data and its block mapping are durable only
    /// after [`File::sync_data`].
    ///
    /// There are two exceptions. If the file's data is journaled, the write is an ordinary one, as
    /// by [`File::write_at`]. If the file has a block map instead of extents, and the write reaches
    /// a hole before the end of the file, the rest of the data is written as by
    /// [`File::write_at`], and then written back.
    ///
    /// # Errors
    /// As [`File::write_at`]; `EINVAL` for partial blocks, and for a file opened for appending.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// assert_eq!(file.write_direct_at(&[7; 4096], 0)?, 4096);
    /// assert!(file.write_direct_at(b"a part of a block", 4096).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_direct_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let written = check_offset(offset)
            .and_then(|()| self.check_written())
            .and_then(|()| self.check_not_appending())
            .and_then(|()| self.run(|engine, ctx, id| engine.write_direct(ctx, id, offset, buf)));
        self.named(written)
    }

    /// Copies at most `len` bytes from byte `offset` of this file to byte `to` of another file, or
    /// of this one if the ranges do not overlap. Returns the number of bytes copied, which is short
    /// if this file ends first, or if an error (such as a lack of space) occurs after some bytes
    /// were copied. Holes are copied as zeroes.
    ///
    /// # Errors
    /// As [`File::read_at`] and [`File::write_at`], if nothing was copied. Also `EINVAL`, in two
    /// cases:
    ///
    /// - Both files are the same, and the ranges overlap. Of the range to read, only the part
    ///   before the end of the file counts.
    /// - The target was opened for appending.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("from", b"0123456789")?;
    /// let (from, to) = (fs.open("from")?, fs.create("to")?);
    /// assert_eq!(from.copy_range(2, 100, &to, 0)?, 8);
    /// assert_eq!(fs.read("to")?, b"23456789");
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_range(&self, offset: u64, len: u64, target: &Self, to: u64) -> Result<u64> {
        target.named(target.check_not_appending())?;
        let mut len = len;
        if self.id() == target.id() {
            // Copy at most up to the present end of the file: bytes that the copy itself appends
            // must not be copied again.
            len = len.min(self.metadata()?.len().saturating_sub(offset));
            if offset < to.saturating_add(len) && to < offset.saturating_add(len) {
                return Err(self.error(Reason::Invalid("the ranges overlap")));
            }
        }
        let mut buf = vec![0; usize_from_u64(len.min(PIECE))];
        let mut done = 0;
        while done < len {
            let piece = usize_from_u64((len - done).min(PIECE));
            let copied = self
                .read_at(&mut buf[..piece], offset + done)
                .and_then(|read| if read == 0 { Ok(0) } else { target.write_at(&buf[..read], to + done) });
            match copied {
                Ok(0) => break,
                Ok(bytes) => done += u64_from_usize(bytes),
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}
