//! The standard library's I/O traits for [`File`]: `Read`, `Write` and `Seek` use the file's
//! position, `FileExt` takes offsets.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use blockyard_disk::num::{u64_from_usize, usize_from_u64};

use super::File;
use crate::error::{Bare, Error, Reason};

impl File {
    fn read_on(&self, buf: &mut [u8]) -> Bare<usize> {
        let mut position = self.position.lock();
        let read = self.read_bare(buf, *position)?;
        *position += u64_from_usize(read);
        Ok(read)
    }

    fn write_on(&self, buf: &[u8]) -> Bare<usize> {
        let mut position = self.position.lock();
        // An empty write does not move the position.
        if self.abilities.append && !buf.is_empty() {
            let appended = self.append_bare(buf)?;
            *position = appended.end;
            return Ok(usize_from_u64(appended.end - appended.start));
        }
        let written = self.write_bare(buf, *position)?;
        *position += u64_from_usize(written);
        Ok(written)
    }

    fn seek_to(&self, to: SeekFrom) -> Bare<u64> {
        let mut position = self.position.lock();
        let new = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(distance) => position.checked_add_signed(distance),
            SeekFrom::End(distance) => self.attributes()?.size.checked_add_signed(distance),
        };
        let new = new.filter(|new| i64::try_from(*new).is_ok());
        *position = new.ok_or(Reason::Invalid("a position before the beginning, or too large"))?;
        Ok(*position)
    }
}

/// Converts an error for the standard library's traits. Keeps the kind and the errno.
fn plain(file: &File, reason: Reason) -> io::Error {
    let error: Error = file.error(reason);
    error.into()
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_on(buf).map_err(|reason| plain(self, reason))
    }
}

impl Write for &File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_on(buf).map_err(|reason| plain(self, reason))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.seek_to(to).map_err(|reason| plain(self, reason))
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(File::read_at(self, buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        Ok(File::write_at(self, buf, offset)?)
    }
}
