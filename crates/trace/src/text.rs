//! Traces as text: the reader and the writer.

use std::io::{self, BufRead, Write};

use crate::error::{Error, LineError};
use crate::flags::{FallocateMode, OpenFlags};
use crate::operation::{Line, Op};

/// Reads a trace.
///
/// # Errors
/// When the input cannot be read. Also when a line is not an operation, has an unknown word in a
/// list, or goes back in time: then the message names the line.
pub fn read(input: impl BufRead) -> Result<Vec<Line>, Error> {
    let mut lines: Vec<Line> = Vec::new();
    let mut now = 0;
    for (index, text) in input.lines().enumerate() {
        let text = text?;
        if text.trim().is_empty() {
            continue;
        }
        let line = parse_line(&text).map_err(|source| Error::Line { line: index + 1, source })?;
        if let Some(at) = line.at {
            if at < now {
                return Err(Error::TimeGoesBack { line: index + 1, from: now, to: at });
            }
            now = at;
        }
        lines.push(line);
    }
    Ok(lines)
}

fn parse_line(text: &str) -> Result<Line, LineError> {
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
/// Those of the writer.
pub fn write<'a>(lines: impl IntoIterator<Item = &'a Line>, mut out: impl Write) -> io::Result<()> {
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
        let refused = |text: &str| read(text.as_bytes()).unwrap_err();
        let unknown = refused(r#"{"op":"fly"}"#);
        assert!(matches!(unknown, Error::Line { line: 1, source: LineError::Json(_) }), "{unknown:?}");
        let Error::Line { line: 2, source } =
            refused("{\"op\":\"sync\"}\n{\"op\":\"open\",\"fd\":1,\"path\":\"/\",\"flags\":\"rw,shiny\"}")
        else {
            panic!("line 2 has a flag that does not exist");
        };
        let told = "open flag `shiny`: use r, w, rw, create, excl, trunc, append, direct";
        assert_eq!(source.to_string(), told);
        let back = refused("{\"op\":\"sync\",\"at\":5}\n{\"op\":\"sync\",\"at\":4}");
        assert_eq!(back.to_string(), "trace line 2: time goes back from 5 to 4");
    }
}
