//! Traces as text: the reader and the writer.

use std::io::{BufRead, Write};

use anyhow::{Context, Result, bail};

use crate::flags::{FallocateMode, OpenFlags};
use crate::operation::{Line, Op};

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
