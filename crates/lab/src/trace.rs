//! Operation traces: JSON Lines, one operation a line, paths from the root of the image.
//!
//! ```json
//! {"op":"mkdir","path":"/a","mode":493}
//! {"op":"open","fd":1,"path":"/a/f","flags":"rw,create"}
//! {"op":"pwrite","fd":1,"off":0,"len":4096}
//! {"op":"fallocate","fd":1,"mode":"keep_size","off":0,"len":8192,"worker":1,"at":30}
//! {"op":"sync"}
//! ```
//!
//! Every line may carry `worker` (the CPU slot that acts, default 0) and `at` (seconds of virtual time, never going
//! back; a line without it happens at the time of the line before). Content is not in a trace: it is computed from the
//! path a file was opened by, the offset and the seed ([`content`]). An operation that fails is part of the trace:
//! whoever replays it compares the error too.

pub mod content;
pub mod make;
pub mod play;
pub mod record;

use std::io::{BufRead, Write};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The operation.
    #[serde(flatten)]
    pub op: Op,
    /// CPU slot of the worker that acts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub worker: u32,
    /// Virtual time in seconds since the start of the trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(worker: &u32) -> bool {
    *worker == 0
}

const fn default_directory_mode() -> u32 {
    0o755
}

const fn default_node_mode() -> u32 {
    0o010_644
}

/// An operation. Offsets and lengths in bytes; `fd` is any number that the trace chose at `open`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// Makes a directory.
    Mkdir {
        /// Where.
        path: String,
        /// Permission bits, 0755 unless told.
        #[serde(default = "default_directory_mode")]
        mode: u32,
    },
    /// Opens a file.
    Open {
        /// The number later lines call it by.
        fd: u32,
        /// Which.
        path: String,
        /// Comma list of `r`, `rw`, `create`, `excl`, `trunc`, `append`, `direct`.
        flags: String,
    },
    /// Writes computed content.
    Pwrite {
        /// Open file.
        fd: u32,
        /// First byte; ignored for a file opened with `append`.
        off: u64,
        /// Bytes.
        len: u64,
    },
    /// fallocate.
    Fallocate {
        /// Open file.
        fd: u32,
        /// Empty (also when missing), or a comma list of `keep_size`, `punch_hole`, `zero_range`, `collapse_range`,
        /// `insert_range`.
        #[serde(default)]
        mode: String,
        /// First byte.
        off: u64,
        /// Bytes.
        len: u64,
    },
    /// Sets the size.
    Ftruncate {
        /// Open file.
        fd: u32,
        /// New size.
        len: u64,
    },
    /// Makes a file durable.
    Fsync {
        /// Open file.
        fd: u32,
    },
    /// Makes a file's data durable.
    Fdatasync {
        /// Open file.
        fd: u32,
    },
    /// Closes a file.
    Close {
        /// Open file.
        fd: u32,
    },
    /// Removes a name that is no directory.
    Unlink {
        /// Which.
        path: String,
    },
    /// Removes an empty directory.
    Rmdir {
        /// Which.
        path: String,
    },
    /// Renames, replacing what is there.
    Rename {
        /// Old name.
        from: String,
        /// New name.
        to: String,
    },
    /// Adds a name to an inode.
    Link {
        /// Existing name.
        #[serde(alias = "from")]
        target: String,
        /// New name.
        #[serde(alias = "to")]
        path: String,
    },
    /// Makes a symbolic link.
    Symlink {
        /// What it points to.
        target: String,
        /// Its name.
        path: String,
    },
    /// Makes a device, FIFO or socket.
    Mknod {
        /// Where.
        path: String,
        /// Type and permission bits, a FIFO with 0644 unless told.
        #[serde(default = "default_node_mode")]
        mode: u32,
        /// Device number: major.
        #[serde(default)]
        major: u32,
        /// Device number: minor.
        #[serde(default)]
        minor: u32,
    },
    /// Sets an extended attribute to `len` bytes of computed content.
    Setxattr {
        /// Of which file.
        path: String,
        /// Full name, such as `user.x`.
        name: String,
        /// Bytes of the value.
        len: u64,
    },
    /// Writes everything and commits: the trace's commit point.
    Sync,
    /// Forgets clean caches.
    DropCaches,
    /// Unmounts and mounts again.
    Remount,
}

impl Op {
    /// The open file that the operation acts on.
    #[must_use]
    pub const fn file(&self) -> Option<u32> {
        match *self {
            Self::Pwrite { fd, .. }
            | Self::Fallocate { fd, .. }
            | Self::Ftruncate { fd, .. }
            | Self::Fsync { fd }
            | Self::Fdatasync { fd }
            | Self::Close { fd } => Some(fd),
            _ => None,
        }
    }
}

impl From<Op> for Line {
    fn from(op: Op) -> Self {
        Self { op, worker: 0, at: None }
    }
}

/// Reads a trace.
///
/// # Errors
/// When a line is no operation, names a list value that does not exist, or goes back in time; the message names the
/// line.
pub fn read(input: impl BufRead) -> Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    let mut now = 0;
    for (index, text) in input.lines().enumerate() {
        let text = text?;
        if text.trim().is_empty() {
            continue;
        }
        let line = parse_line(&text).with_context(|| format!("trace line {}", index + 1))?;
        if let Some(at) = line.at {
            if at < now {
                bail!("trace line {}: time goes back from {now} to {at}", index + 1);
            }
            now = at;
        }
        lines.push(line);
    }
    Ok(lines)
}

fn parse_line(text: &str) -> Result<Line> {
    let line: Line = serde_json::from_str(text)?;
    match &line.op {
        Op::Open { flags, .. } => drop(OpenFlags::parse(flags)?),
        Op::Fallocate { mode, .. } => drop(FallocateMode::parse(mode)?),
        _ => {}
    }
    Ok(line)
}

/// Writes a trace.
///
/// # Errors
/// Of the writer.
pub fn write<'a>(lines: impl IntoIterator<Item = &'a Line>, mut out: impl Write) -> Result<()> {
    for line in lines {
        serde_json::to_writer(&mut out, line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of open(2) are independent")]
pub struct OpenFlags {
    /// For writing too.
    pub write: bool,
    /// Made when missing.
    pub create: bool,
    /// Refused when present.
    pub exclusive: bool,
    /// Cut to nothing.
    pub truncate: bool,
    /// Writes go to the end.
    pub append: bool,
    /// Past the page cache.
    pub direct: bool,
}

impl OpenFlags {
    /// Parses the comma list of [`Op::Open`].
    ///
    /// # Errors
    /// Naming the word that is unknown.
    pub fn parse(list: &str) -> Result<Self> {
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
                other => bail!("open flag `{other}`: use r, rw, create, excl, trunc, append, direct"),
            }
        }
        Ok(flags)
    }
}

/// Mode of a fallocate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of fallocate(2) are independent")]
pub struct FallocateMode {
    /// The size stays.
    pub keep_size: bool,
    /// Deallocates.
    pub punch_hole: bool,
    /// Makes the range read as zeroes.
    pub zero_range: bool,
    /// Removes the range.
    pub collapse_range: bool,
    /// Inserts a hole.
    pub insert_range: bool,
}

impl FallocateMode {
    /// Parses the comma list of [`Op::Fallocate`].
    ///
    /// # Errors
    /// Naming the word that is unknown.
    pub fn parse(list: &str) -> Result<Self> {
        let mut mode = Self::default();
        for word in list.split(',').filter(|word| !word.is_empty()) {
            match word {
                "keep_size" => mode.keep_size = true,
                "punch_hole" => mode.punch_hole = true,
                "zero_range" => mode.zero_range = true,
                "collapse_range" => mode.collapse_range = true,
                "insert_range" => mode.insert_range = true,
                other => bail!(
                    "fallocate mode `{other}`: use keep_size, punch_hole, zero_range, collapse_range, insert_range"
                ),
            }
        }
        Ok(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_line_leaves_out_is_what_people_mean() {
        let text = concat!(
            r#"{"op":"mkdir","path":"/a"}"#,
            "\n",
            r#"{"op":"mknod","path":"/p"}"#,
            "\n",
            r#"{"op":"fallocate","fd":1,"off":0,"len":1}"#,
            "\n",
            r#"{"op":"link","from":"/p","to":"/q"}"#,
        );
        let ops: Vec<Op> = read(text.as_bytes()).unwrap().into_iter().map(|line| line.op).collect();
        let expected = [
            Op::Mkdir { path: "/a".into(), mode: 0o755 },
            Op::Mknod { path: "/p".into(), mode: 0o010_644, major: 0, minor: 0 },
            Op::Fallocate { fd: 1, mode: String::new(), off: 0, len: 1 },
            Op::Link { target: "/p".into(), path: "/q".into() },
        ];
        assert_eq!(ops, expected);
    }

    #[test]
    fn lines_read_as_documented_and_write_back() {
        let text = concat!(
            r#"{"op":"mkdir","path":"/a","mode":493}"#,
            "\n",
            r#"{"op":"fallocate","fd":1,"mode":"keep_size,punch_hole","off":0,"len":8192,"worker":1,"at":30}"#,
            "\n",
            r#"{"op":"sync"}"#,
            "\n"
        );
        let lines = read(text.as_bytes()).unwrap();
        assert_eq!(lines[0], Op::Mkdir { path: "/a".into(), mode: 0o755 }.into());
        assert_eq!((lines[1].worker, lines[1].at), (1, Some(30)));
        let mut back = Vec::new();
        write(&lines, &mut back).unwrap();
        assert_eq!(String::from_utf8(back).unwrap(), text);
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, part) in [
            (r#"{"op":"fly"}"#, "trace line 1"),
            (r#"{"op":"open","fd":1,"path":"/","flags":"rw,shiny"}"#, "trace line 1"),
            ("{\"op\":\"sync\",\"at\":5}\n{\"op\":\"sync\",\"at\":4}", "line 2: time goes back from 5 to 4"),
        ] {
            let error = format!("{:#}", read(text.as_bytes()).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
