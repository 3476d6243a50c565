//! Drains the kernel's trace buffers while the lines of an operation trace are played, so that a
//! long trace does not overflow them.
//!
//! Once for every 64 lines, the player drains all buffers if one of them is more than half full.
//! The player does this itself between two lines. A separate reader would run at the same time as
//! the kernel's work on the file system.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Lines between two checks of how full the buffers are.
const LINES: usize = 64;

/// Reads the buffers of a trace instance, and keeps what was read.
#[derive(Debug)]
pub(super) struct Drain {
    pipe: fs::File,
    /// The statistics file of each CPU's buffer.
    stats: Vec<PathBuf>,
    /// A check empties all buffers if one of them holds more than this many bytes.
    most: u64,
    lines: usize,
    taken: Vec<u8>,
}

impl Drain {
    /// Opens a trace instance. The buffer of each CPU has `buffer_kib` KiB.
    ///
    /// # Errors
    /// Those of tracefs.
    pub(super) fn new(instance: &Path, buffer_kib: u32) -> Result<Self> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let pipe = fs::OpenOptions::new().read(true).custom_flags(flags).open(instance.join("trace_pipe"))?;
        let cpus = fs::read_dir(instance.join("per_cpu"))?;
        let stats = cpus.map(|cpu| Ok(cpu?.path().join("stats"))).collect::<Result<_>>()?;
        Ok(Self { pipe, stats, most: u64::from(buffer_kib) * 1024 / 2, lines: 0, taken: Vec::new() })
    }

    /// Called once for each line, while no line is played. At every 64th call, empties the buffers
    /// if one of them is more than half full. Returns whether it emptied them.
    ///
    /// # Errors
    /// Those of tracefs.
    pub(super) fn after_line(&mut self) -> Result<bool> {
        self.lines += 1;
        if !self.lines.is_multiple_of(LINES) || !self.is_crowded()? {
            return Ok(false);
        }
        let mut part = vec![0; 1 << 20];
        loop {
            match self.pipe.read(&mut part) {
                Ok(0) => return Ok(true),
                Ok(n) => self.taken.extend_from_slice(&part[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error).context("read trace_pipe"),
            }
        }
    }

    fn is_crowded(&self) -> Result<bool> {
        for stats in &self.stats {
            let text = fs::read_to_string(stats)?;
            let bytes =
                text.lines().find_map(|line| line.strip_prefix("bytes: ")).context("trace statistics")?;
            if bytes.trim().parse::<u64>()? > self.most {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// All the text that was read.
    pub(super) fn finish(self) -> String {
        String::from_utf8_lossy(&self.taken).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a trace instance with one buffer holding this many bytes.
    fn instance(bytes: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("per_cpu/cpu0")).unwrap();
        let stats = format!("entries: 3\noverrun: 0\nbytes: {bytes}\ndropped events: 0\n");
        fs::write(folder.path().join("per_cpu/cpu0/stats"), stats).unwrap();
        fs::write(folder.path().join("trace_pipe"), "one\ntwo\n").unwrap();
        folder
    }

    /// The buffer is checked at each 64th call, and emptied if it is more than half full.
    #[test]
    fn a_buffer_is_emptied_when_it_is_half_full() {
        for (bytes, is_emptied) in [(0, false), (4096, false), (4097, true), (8192, true)] {
            let folder = instance(bytes);
            let mut drain = Drain::new(folder.path(), 8).unwrap();
            let emptied: Vec<usize> = (1..=130).filter(|_| drain.after_line().unwrap()).collect();
            assert_eq!(emptied, if is_emptied { vec![64, 128] } else { Vec::new() }, "{bytes} bytes");
            assert_eq!(drain.finish(), if is_emptied { "one\ntwo\n" } else { "" });
        }
    }
}
